"""The toolkit's folders in the cache of ``datasets``; their content can be removed at any time."""

from __future__ import annotations

from pathlib import Path

from finetune.errors import UserError
from finetune.runtime import hub

FILES, TOKENIZED, MEMORY = "finetune-files", "finetune-tokenized", "finetune-memory"


def place(folder: str, name: str) -> Path:
    """Return the path of an entry in one of our folders; it may not be there."""
    return hub.caches()["datasets"] / folder / name


def make(directory: Path) -> None:
    """Make a directory unless it is there; refuse a cache that cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> UserError:
    """Return the refusal of a cache that cannot be written."""
    return UserError(
        f"the cache {hub.caches()['datasets']} cannot be written ({error.strerror}): set HF_HOME "
        "or HF_DATASETS_CACHE to a directory of yours"
    )
