"""Files that are written whole or not at all, and never through a link that somebody left."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from finetune.errors import UserError


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
    """Write a file so that a reader never sees half of it."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def apply_umask(directory: Path, pattern: str) -> None:
    """Give files the modes of the umask; safetensors lets only their owner read them."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    for path in directory.glob(pattern):
        if not path.is_symlink():
            path.chmod(0o666 & ~umask)


def refuse_link(directory: Path) -> None:
    """Refuse a directory to write into that is a link to another one.

    Raises:
        UserError: if it is a link.
    """
    if directory.is_symlink():
        raise UserError(
            f"{directory} is a link to {os.readlink(directory)}, where nothing is written: remove "
            "the link"
        )
