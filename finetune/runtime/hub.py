"""Whether the Hub can be reached, known within a second and before the libraries are imported.

With the Hub out of reach each look-up of the libraries fails only after 23 s. So what is cached
needs no network, for the rest the endpoint is tried once, and then ``HF_HUB_OFFLINE=1`` holds.
"""

from __future__ import annotations

import glob
import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finetune.errors import UserError
from finetune.runtime import formats
from finetune.runtime.bounded import accepts

_KINDS = {"dataset": "data set", "model": "model"}
#: Of which one file each makes a cached model complete.
_MODEL_FILES = (
    ("config.json",),
    ("*.safetensors", "pytorch_model*.bin"),
    ("tokenizer*.json", "preproc*.json"),
)


def names_repository(name: str | None) -> bool:
    """Whether the words mean a repository on the Hub, rather than a path or something embedded."""
    if not name or not {*":*?["}.isdisjoint(name) or name.startswith((".", "/", "~")):
        return False
    return formats.suffix(name) not in formats.FILES and not Path(name).exists()


def missing(options: Mapping[str, Any]) -> list[str]:
    """Return what is on the Hub and not in the cache, for people.

    Args:
        options: Of which ``dataset``, ``model``, ``dataset_revision``, ``model_revision`` and
            ``dataset_config`` count.
    """
    names = []
    for kind, noun in _KINDS.items():
        name, revision = options.get(kind), options.get(f"{kind}_revision")
        config = options.get(f"{kind}_config")
        if name and names_repository(name) and not _is_cached(kind, name, revision, config):
            names.append(f"the {noun} '{name}'" + (f" at revision '{revision}'" * bool(revision)))
    return names


def go_offline() -> None:
    """Keep the libraries of this process from asking the Hub, unless the user said otherwise.

    Call it before ``huggingface_hub`` is imported, which reads the variable once.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def unreachable(
    names: Sequence[str],
    *,
    embedded: bool = False,
    packaged: str = "",
    data: str = "--dataset FILE",
) -> UserError | None:
    """Refuse what is :func:`missing`, if the Hub does not answer within a second.

    Args:
        names: Of :func:`missing`.
        embedded: Whether ``--embedded`` is a way out.
        packaged: The model that needs no Hub, if there is one of the kind.
        data: The flag that names other data.
    """
    if not names or (not offline() and answers(endpoint())):
        return None
    needs_data = any(name.startswith("the data set") for name in names)
    needs_model = any(name.startswith("the model") for name in names)
    files = " ".join([data] * needs_data + ["--model DIRECTORY"] * needs_model)
    options = [("--embedded", "data and model from installed packages")] * embedded
    if needs_model and packaged:
        options.append((f"--model {packaged}", "a small model, no download"))
    options.append((files, "your own files"))
    width = max(len(flag) for flag, _ in options)
    reason = "HF_HUB_OFFLINE is set" if offline() else f"{endpoint()} does not answer"
    variable = "HF_HUB_OFFLINE=0" if offline() else "HF_ENDPOINT=https://a.mirror"
    lines = [
        f"{' and '.join(names)} cannot be loaded: {reason}. Options:",
        *(f"  {flag:<{width}}  {text}" for flag, text in options),
        f"  {variable} or HF_HOME=/a/filled/cache before the command",
    ]
    return UserError("\n".join(lines))


def require(options: Mapping[str, Any], *, embedded: bool, packaged: str = "") -> None:
    """Raise what :func:`unreachable` says of what is :func:`missing`."""
    if refusal := unreachable(missing(options), embedded=embedded, packaged=packaged):
        raise refusal


def _is_cached(kind: str, name: str, revision: str | None, config: str | None) -> bool:
    if kind == "model":
        repository = caches()["hub"] / f"models--{name.replace('/', '--')}"
        commit, reference = revision or "*", repository / "refs" / (revision or "*")
        if reference.is_file():  # the commit that a branch was when it was fetched
            commit = reference.read_text(encoding="utf-8").strip()
        return any(
            all(any(any(snapshot.glob(name)) for name in names) for names in _MODEL_FILES)
            for snapshot in (repository / "snapshots").glob(commit)
        )
    # a directory is named by the commit; which one a branch means, only the Hub knows
    pattern = f"{glob.escape(config or '')}*/*/{revision or '*'}/dataset_info.json"
    spelling = _without_case(name.replace("/", "___"))
    return any(
        _without_case(path.name) == spelling and any(path.glob(pattern))
        for path in caches()["datasets"].glob("*")
    )


def _without_case(name: str) -> str:
    """Spell a name as the cache does: ``MyReviews`` is ``my_reviews`` there."""
    return name.replace("_", "").lower()


def answers(endpoint: str) -> bool:
    """Whether a connection to the endpoint, or to its proxy, opens within a second."""
    parts = urlsplit(proxy(endpoint) or endpoint)
    return accepts(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def proxy(endpoint: str) -> str | None:
    """Return the URL of the proxy over which the endpoint is asked, if there is one."""
    parts = urlsplit(endpoint)
    url = urllib.request.getproxies().get(parts.scheme)
    return None if url is None or urllib.request.proxy_bypass(parts.hostname or "") else url


def endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the Hub or its mirror."""
    return environment.get("HF_ENDPOINT", "https://huggingface.co")


def offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the libraries are told not to ask it."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def caches(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Return the directories of the libraries: ``hub`` for models, ``datasets`` for data sets."""
    common = environment.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    home = Path(environment.get("HF_HOME", f"{common}/huggingface"))
    return {
        "hub": Path(environment.get("HF_HUB_CACHE", home / "hub")).expanduser(),
        "datasets": Path(environment.get("HF_DATASETS_CACHE", home / "datasets")).expanduser(),
    }
