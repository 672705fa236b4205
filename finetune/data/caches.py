"""The toolkit's folders in the cache of ``datasets``: what is in them, and how it is removed.

An entry is a directory or a single small file. Nothing else in the cache of the library is ever
looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.runtime import hub
from finetune.runtime.files import write_whole

TOKENIZED, MEMORY = "finetune-tokenized", "finetune-memory"
#: Our folders in the cache of ``datasets``, and what they hold.
KINDS = {
    TOKENIZED: "tokenized rows",
    "finetune-files": "converted file",
    MEMORY: "rows passed in Python",
    "finetune-baselines": "baseline",
}
_ABOUT = "about.json"


@dataclass(frozen=True)
class Entry:
    """Something in the cache.

    Attributes:
        path: The directory, or the file.
        kind: What it is, for people.
        size: Bytes.
        used: When it was used last.
        about: What was noted of it, by name: ``source``, ``tokenizer``, ``split``, ``rows``.
    """

    path: Path
    kind: str
    size: int
    used: datetime
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name by which it is removed."""
        return self.path.stem


def place(folder: str, name: str) -> Path:
    """Return the directory of an entry in one of our folders; it may not be there."""
    return hub.caches()["datasets"] / folder / name


def unwritable(error: OSError) -> UserError:
    """Return the refusal of a cache that cannot be written."""
    return UserError(
        f"the cache {hub.caches()['datasets']} cannot be written ({error.strerror}): set HF_HOME "
        "or HF_DATASETS_CACHE to a directory of yours"
    )


def use(directory: Path, **about: Any) -> None:
    """Make the directory of an entry if need be, and note that it is used now.

    Args:
        directory: From :func:`place`.
        **about: What to note of a new entry.

    Raises:
        UserError: If it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / _ABOUT).exists():
            write_whole(directory / _ABOUT, json.dumps(about, default=str))
        os.utime(directory)
    except OSError as error:
        if not directory.is_dir():  # else it is of somebody who lets us read it
            raise unwritable(error) from error


def entries() -> list[Entry]:
    """Return what is in the cache, the largest first."""
    result = []
    for folder, kind in KINDS.items():
        for path in (hub.caches()["datasets"] / folder).glob("[!.]*"):
            if not (path.is_dir() or path.suffix in (".json", ".npz")):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                files = [file for file in (path, *path.rglob("*")) if file.is_file()]
                size = sum(file.stat().st_size for file in files)
                used = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                about: dict[str, Any] = {}
                with contextlib.suppress(OSError, ValueError):
                    about = dict(json.loads((path / _ABOUT).read_text(encoding="utf-8")))
                result.append(Entry(path, kind, size, used, about))
    return sorted(result, key=lambda entry: (-entry.size, entry.path))


def remove(entry: Entry) -> str | None:
    """Remove an entry; a running process that has read it keeps what it needs.

    Returns:
        Why it was not removed; None if it is gone.
    """
    try:
        if entry.path.is_dir():
            shutil.rmtree(entry.path)
        else:
            entry.path.unlink(missing_ok=True)
    except OSError as error:
        return str(error)
    return None
