"""Files that are written whole or not at all, and JSON that any parser reads."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Bytes that are kept beside a run's files, so that its status can be written on a full disk.
_RESERVE, _RESERVED = ".reserve", 1 << 18


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader never sees half of it; on a full disk, into the reserve."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if not is_full(error) or not path.with_name(_RESERVE).exists():
            raise
        release(path.parent)
        temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def reserve(directory: Path) -> None:
    """Take some bytes of the disk, for when it is full."""
    with contextlib.suppress(OSError):
        (directory / _RESERVE).write_bytes(os.urandom(_RESERVED))  # zeros might take no space


def release(directory: Path) -> None:
    """Give the bytes of :func:`reserve` back."""
    (directory / _RESERVE).unlink(missing_ok=True)


def is_full(error: OSError) -> bool:
    """Return whether a disk, a quota or the size that a file may have ended the writing."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def to_json(content: Any, **options: Any) -> str:
    """Return JSON in which numbers that are not finite, which JSON lacks, are null.

    Args:
        content: What ``json.dumps`` takes.
        **options: Of ``json.dumps``.
    """
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False, **options)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {_finite(name): _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
