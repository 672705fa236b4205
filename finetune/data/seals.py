"""Notice a damaged cache of prepared data: each file has its size and hash written beside it.

Arrow files have no checksums: from one that is cut off or has a flipped byte other rows would be
read, or none. A file without a seal was left by a process that was killed and is regenerated; what
was finished before it, like the other splits, is kept. xxh3 reads some gigabytes a second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import xxhash
from datasets import Dataset, DatasetDict

from finetune.runtime.files import write_whole

Loaded = TypeVar("Loaded", Dataset, DatasetDict)
_SUFFIX = ".xxh3"
_BLOCK = 2**22  # bytes


def intact(path: Path, note: Callable[[str], object]) -> bool:
    """Return whether a cached file is as it was sealed; if not, it is to be replaced.

    Args:
        path: The file, which may not be there.
        note: Is given a sentence about a file that was damaged.
    """
    sealed = _seal(path)
    if not path.exists():
        with contextlib.suppress(NotADirectoryError):
            sealed.unlink(missing_ok=True)
        return False
    if not sealed.exists() and not os.access(path.parent, os.W_OK):
        return True  # of an earlier release, in a cache that is only read
    if not sealed.exists():
        return False  # and not removed: another run may have just made it
    if _same(path):
        return True
    note(f"the cached file {path} is damaged (its size or hash has changed): regenerated")
    sealed.unlink(missing_ok=True)
    return False


def seal(path: Path) -> None:
    """Write down the size and the hash of a finished file, beside it."""
    with contextlib.suppress(FileNotFoundError):  # another run makes it again at the same time
        write_whole(_seal(path), _content(path))


def loaded(load: Callable[[str | None], Loaded], note: Callable[[str], object]) -> Loaded:
    """Return what the library loads, over a cache of its own that is sealed when it is first used.

    Args:
        load: Takes the ``download_mode`` of ``datasets.load_dataset``.
        note: Is given a sentence if the cache was damaged; then it is regenerated.
    """
    try:
        found = load(None)
        each = found.values() if isinstance(found, DatasetDict) else [found]
        paths = {Path(file["filename"]) for rows in each for file in rows.cache_files}
        broken = [str(path) for path in sorted(paths) if _seal(path).exists() and not _same(path)]
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and "Expected to be able to read" not in str(error):
            raise  # not of Arrow: the network, the disk
        found, paths, broken = None, set(), [f"of a data set ({error})"]
    if broken:
        note(f"the cached file {broken[0]} is damaged: regenerated")
        found = load("reuse_cache_if_exists")  # of the downloads
    for path in paths:
        if (broken or not _seal(path).exists()) and os.access(path.parent, os.W_OK):
            seal(path)
    assert found is not None
    return found


def _same(path: Path) -> bool:
    return _seal(path).read_text(encoding="utf-8", errors="replace") == _content(path)


def _seal(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _content(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{path.stat().st_size} {digest.hexdigest()}\n"
