"""Find out within a second, before the libraries are imported, whether the Hub can be reached.

If it cannot, each request of the libraries fails only after 23 s. So if everything is cached,
``HF_HUB_OFFLINE=1`` is set; if not, one connection to the endpoint is tried first.
"""

import contextlib
import glob
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finetune.errors import UserError
from finetune.runtime import formats

_SECONDS = 1.0
#: What names own files instead, by option.
_OWN_FILES = {
    "dataset": "--dataset FILE (of evaluate: --data FILE)",
    "unlabelled": "--unlabelled FILE",
    "model": "--model DIRECTORY",
}
#: Weight files of a cached model. They are downloaded last, so a model with them is complete.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of huggingface_hub in a block, unless they are hidden already."""
    # public names, which mypy cannot read
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def names_repository(name: str | None) -> bool:
    """Return whether ``name`` is a repository on the Hub, not a path or an embedded name."""
    if not name or not set(":*?[").isdisjoint(name) or name.startswith((".", "/", "~")):
        return False
    return formats.suffix(name) not in formats.FILES and not Path(name).exists()


def missing(options: Mapping[str, Any]) -> dict[str, str]:
    """Return descriptions of the data set and the model that must be downloaded, by option. Their
    revisions and the ``dataset_config`` in ``options`` count.
    """
    names = {}
    for option in _OWN_FILES:
        name = options.get(option)
        revision = options.get(f"{option}_revision")
        config = options.get(f"{option}_config")
        if names_repository(name) and not _is_cached(option, str(name), revision, config):
            noun = "model" if option == "model" else "data set"
            names[option] = f"the {noun} '{name}'"
            if revision:
                names[option] += f" at revision '{revision}'"
    return names


def go_offline(options: Mapping[str, Any]) -> None:
    """Set ``HF_HUB_OFFLINE=1`` if nothing is :func:`missing`, unless the user has set the variable.

    Call it before ``huggingface_hub`` is imported, which reads the variable only once.
    """
    if not missing(options):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def require(options: Mapping[str, Any], recipe: Any = None) -> None:
    """Require that the Hub answers within a second, if a download is :func:`missing`.

    Args:
        options: The options that name data set and model.
        recipe: The recipe, or its class, whose ``embedded`` and ``packaged_model`` may be
            alternatives.

    Raises:
        UserError: With the alternatives.
    """
    names = missing(options)
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    if not names or (not is_offline and answers(endpoint)):
        return
    reason = "HF_HUB_OFFLINE is set" if is_offline else f"{endpoint} does not answer"
    alternatives = []
    if getattr(recipe, "embedded", None):
        alternatives.append("--embedded: data and model from installed packages")
    packaged_model = getattr(recipe, "packaged_model", "")
    if packaged_model and "model" in names:
        alternatives.append(f"--model {packaged_model}: a small model, no download")
    alternatives += [
        f"{', '.join(_OWN_FILES[name] for name in names)}: your own files",
        "HF_ENDPOINT=https://a.mirror, HF_HUB_OFFLINE=0 or HF_HOME=/a/filled/cache before the "
        "command",
    ]
    message = f"{' and '.join(names.values())} cannot be loaded: {reason}. Options:"
    raise UserError("\n  ".join([message, *alternatives]))


def _is_cached(option: str, name: str, revision: str | None, config: str | None) -> bool:
    if option == "model":
        repository = caches()["hub"] / f"models--{name.replace('/', '--')}"
        reference = repository / "refs" / (revision or "main")
        commit = revision or ""
        if reference.is_file():  # the commit of the branch when it was downloaded
            commit = reference.read_text(encoding="utf-8").strip()
        snapshot = repository / "snapshots" / commit
        return any(any(snapshot.glob(pattern)) for pattern in _WEIGHTS)
    # directories are named by commit; only the Hub knows the commit of a branch
    pattern = f"{glob.escape(config or '')}*/*/{revision or '*'}/dataset_info.json"
    # the cache writes `MyReviews` as `my_reviews`
    spelling = name.replace("/", "___").replace("_", "").lower()
    return any(
        path.name.replace("_", "").lower() == spelling and any(path.glob(pattern))
        for path in caches()["datasets"].glob("*")
    )


def answers(endpoint: str) -> bool:
    """Return whether the endpoint, or its proxy, accepts a connection within a second."""
    parts = urlsplit(endpoint)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is not None and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connections = []

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=_SECONDS):
            connections.append(address)

    thread = threading.Thread(target=connect, daemon=True)  # a DNS look-up has no timeout
    thread.start()
    thread.join(_SECONDS)
    return bool(connections)


def caches() -> dict[str, Path]:
    """Return the cache directories: ``hub`` for models, ``datasets`` for data sets."""
    home = os.environ.get("HF_HOME", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface")
    variables = {"hub": "HF_HUB_CACHE", "datasets": "HF_DATASETS_CACHE"}
    directories = {}
    for name, key in variables.items():
        directories[name] = Path(os.environ.get(key, f"{home}/{name}")).expanduser()
    return directories
