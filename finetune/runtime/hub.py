"""Whether the Hub can be reached, found out in a second and before the libraries are imported.

With the Hub out of reach each look-up of the libraries fails only after 23 s. So: what is cached
already needs no network; for the rest the endpoint is tried once; and afterwards
``HF_HUB_OFFLINE=1`` holds.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finetune.errors import UserError
from finetune.runtime.bounded import accepts

FILES = (".csv", ".tsv", ".jsonl", ".parquet")
_KINDS = {"dataset": "data set", "model": "model"}


def names_repository(name: str | None) -> bool:
    """Whether the words mean a repository on the Hub, rather than a path or something embedded."""
    if not name or ":" in name or name.startswith((".", "/", "~")):
        return False
    return Path(name).suffix.lower() not in FILES and not Path(name).exists()


def missing(wanted: Mapping[str, Any]) -> list[str]:
    """Return what is on the Hub and not in the cache, for people.

    Args:
        wanted: ``dataset`` and ``model`` as the options name them, and ``dataset_revision`` and
            ``model_revision`` where they are pinned.
    """
    return [
        f"the {_KINDS[kind]} '{name}'" + (f" at revision '{revision}'" if revision else "")
        for kind in _KINDS
        for name, revision in [(wanted.get(kind), wanted.get(f"{kind}_revision"))]
        if name and names_repository(name) and not _is_cached(kind, name, revision)
    ]


def wanted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a recipe that say where data and model come from."""
    names = (name for kind in _KINDS for name in (kind, f"{kind}_revision"))
    return {name: options[name] for name in names if options.get(name) is not None}


def go_offline() -> None:
    """Keep the libraries of this process from asking the Hub, unless the user said otherwise.

    Call it before ``huggingface_hub`` is imported, which reads the variable once.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def unreachable(what: Sequence[str]) -> UserError | None:
    """The refusal, if something is wanted of the Hub and it does not answer within a second.

    Args:
        what: Of :func:`missing`.

    Returns:
        An error that names what could not be had and the three ways on; None if all is well.
    """
    if not what:
        return None
    if offline():
        reason = "HF_HUB_OFFLINE is set"
    elif answers(endpoint()):
        return None
    else:
        reason = f"{endpoint()} does not answer"
    return UserError(
        f"{' and '.join(what)} could not be had: {reason}. Three ways on:\n"
        "  --embedded                          data and model from installed packages\n"
        "  --dataset FILE --model DIRECTORY    your own\n"
        "  HF_ENDPOINT=https://a.mirror or HF_HOME=/a/filled/cache before the command"
    )


def _is_cached(kind: str, name: str, revision: str | None = None) -> bool:
    if kind == "model":
        repository = caches()["hub"] / f"models--{name.replace('/', '--')}"
        commit = _commit(repository, revision) if revision else "*"
        snapshots = repository / "snapshots"
        weights = [
            path
            for pattern in ("*.safetensors", "pytorch_model*.bin")
            for path in snapshots.glob(f"{commit}/{pattern}")
        ]
        return bool(weights) and any(
            (path.parent / "config.json").exists() and any(path.parent.glob("tokenizer*.json"))
            for path in weights
        )
    wanted = _spelled_alike(name.replace("/", "___"))
    # a directory is named by the commit; which one a branch means, only the Hub knows
    return any(
        _spelled_alike(path.name) == wanted
        and any(path.glob(f"*/*/{revision or '*'}/dataset_info.json"))
        for path in caches()["datasets"].glob("*")
    )


def _commit(repository: Path, revision: str) -> str:
    """The commit that a revision was when it was fetched."""
    reference = repository / "refs" / revision
    return reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision


def _spelled_alike(name: str) -> str:
    """The cache writes ``MyReviews`` as ``my_reviews``."""
    return name.replace("_", "").lower()


def answers(endpoint: str) -> bool:
    """Whether a connection to the endpoint, or to its proxy, opens within a second."""
    parts = urlsplit(proxy(endpoint) or endpoint)
    return accepts(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def proxy(endpoint: str) -> str | None:
    """The URL of the proxy over which the endpoint is asked, if there is one."""
    parts = urlsplit(endpoint)
    found = urllib.request.getproxies().get(parts.scheme)
    return None if found is None or urllib.request.proxy_bypass(parts.hostname or "") else found


def endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """The URL of the Hub or its mirror."""
    return environment.get("HF_ENDPOINT", "https://huggingface.co")


def offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the libraries are told not to ask it."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def caches(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The directories of the libraries: ``hub`` for models, ``datasets`` for data sets."""
    common = environment.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    home = Path(environment.get("HF_HOME", f"{common}/huggingface"))
    return {
        "hub": Path(environment.get("HF_HUB_CACHE", home / "hub")).expanduser(),
        "datasets": Path(environment.get("HF_DATASETS_CACHE", home / "datasets")).expanduser(),
    }
