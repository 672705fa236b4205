"""Whether the Hub can be reached, found out in a second and before the libraries are imported.

With the Hub out of reach each look-up of the libraries fails only after 23 s. So: what is cached
already needs no network; for the rest the endpoint is tried once; and afterwards
``HF_HUB_OFFLINE=1`` holds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finetune.errors import UserError

FILES = (".csv", ".tsv", ".jsonl", ".parquet")
_SECONDS = 1.0
_KINDS = {"dataset": "data set", "model": "model"}


def names_repository(name: str | None) -> bool:
    """Whether the words mean a repository on the Hub, rather than a path or something embedded."""
    if not name or ":" in name or name.startswith((".", "/", "~")):
        return False
    return Path(name).suffix not in FILES and not Path(name).exists()


def missing(wanted: Mapping[str, Any]) -> list[str]:
    """What is on the Hub and not in the cache. If that is nothing, the process goes offline.

    Must be called before ``huggingface_hub`` is imported: it reads ``HF_HUB_OFFLINE`` once.

    Args:
        wanted: ``dataset`` and ``model`` as the options name them.
    """
    found = [
        f"the {_KINDS[kind]} '{name}'"
        for kind, name in wanted.items()
        if names_repository(name) and not _is_cached(kind, name)
    ]
    if not found:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return found


def unreachable(what: Sequence[str]) -> UserError | None:
    """The refusal, if something is wanted of the Hub and it does not answer within a second.

    Args:
        what: Of :func:`missing`.

    Returns:
        An error that names what could not be had and the three ways on; None if all is well.
    """
    if not what:
        return None
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    if not offline and answers(endpoint):
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing else shall wait for it
    reason = "HF_HUB_OFFLINE is set" if offline else f"{endpoint} does not answer"
    return UserError(
        f"{' and '.join(what)} could not be had: {reason}. Three ways on:\n"
        "  --embedded                          data and model from installed packages\n"
        "  --dataset FILE --model DIRECTORY    your own\n"
        "  HF_ENDPOINT=https://a.mirror or HF_HOME=/a/filled/cache before the command"
    )


def _is_cached(kind: str, name: str) -> bool:
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("HF_HOME", caches / "huggingface")).expanduser()
    if kind == "model":
        hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
        snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
        weights = [*snapshots.glob("*/*.safetensors"), *snapshots.glob("*/pytorch_model*.bin")]
        return bool(weights) and any(
            (path.parent / "config.json").exists() and any(path.parent.glob("tokenizer*.json"))
            for path in weights
        )
    datasets = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    wanted = _spelled_alike(name.replace("/", "___"))
    return any(
        _spelled_alike(path.name) == wanted and any(path.glob("*/*/*/dataset_info.json"))
        for path in datasets.glob("*")
    )


def _spelled_alike(name: str) -> str:
    """The cache writes ``MyReviews`` as ``my_reviews``."""
    return name.replace("_", "").lower()


def answers(endpoint: str) -> bool:
    """Whether a connection to the endpoint, or to its proxy, opens within a second."""
    parts = urlsplit(endpoint)
    host, scheme = parts.hostname or "", parts.scheme
    proxy = urllib.request.getproxies().get(scheme)
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urlsplit(proxy)
        host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answered = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_SECONDS):
            answered.set()

    # in a thread, because the look-up of the name has no timeout of its own
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_SECONDS)
    return answered.is_set()
