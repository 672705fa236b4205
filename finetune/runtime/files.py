"""Files that are written whole or not at all and never through a link, and JSON for any parser."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.errors import UserError

#: Holds bytes beside a run's files, so that its status can be written on a full disk.
_RESERVE = ".reserve"


@contextlib.contextmanager
def replacing(path: Path, directory: Path | None = None) -> Iterator[Path]:
    """Give the path of a new, empty file to write, which then takes the place of ``path``.

    It lies in the same directory or in that one, has a name that nobody can guess, and the mode of
    the umask. A link at ``path`` is replaced, and what it points to is left alone.
    """
    new = (directory or path.parent) / f".{path.name}.{secrets.token_hex(8)}.tmp"
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader never sees half of it; on a full disk, into the reserve."""
    try:
        with replacing(path) as new:
            new.write_text(text, encoding="utf-8")
    except OSError as error:
        if not is_full(error) or not path.with_name(_RESERVE).exists():
            raise
        release(path.parent)
        write_whole(path, text)


def refuse_link(directory: Path) -> None:
    """Refuse to write into a directory that is a link: a run may come from somebody else."""
    if directory.is_symlink():
        raise UserError(
            f"{directory} is a link to {os.readlink(directory)}, where nothing is written: remove "
            "the link"
        )


def reserve(directory: Path) -> None:
    """Take some bytes of the disk, for when it is full."""
    with contextlib.suppress(OSError), replacing(directory / _RESERVE) as new:
        new.write_bytes(os.urandom(1 << 18))  # zeros might take no space


def release(directory: Path) -> None:
    """Give the bytes of :func:`reserve` back."""
    (directory / _RESERVE).unlink(missing_ok=True)


def is_full(error: OSError) -> bool:
    """Return whether a disk, a quota or the size that a file may have ended the writing."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def to_json(content: Any, **options: Any) -> str:
    """Return what ``json.dumps`` does, but null for numbers that are not finite: JSON has none."""
    text = json.dumps(content, **options)
    return json.dumps(json.loads(text, parse_constant=lambda name: None), **options)
