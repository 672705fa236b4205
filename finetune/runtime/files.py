"""Files that are written whole or not at all and never through a link, JSON for any parser, and one
process at a time in a directory: a lock that the system releases when the process ends.
"""

import contextlib
import fcntl
import json
import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

LOCK = ".lock"
_LOCKS: dict[Path, FileLock] = {}  # those of this process, by the file as it was then


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


def to_json(content: Any, **options: Any) -> str:
    """Return what ``json.dumps`` does, but null for numbers that are not finite: JSON has none."""
    text = json.dumps(content, **options)
    return json.dumps(json.loads(text, parse_constant=lambda name: None), **options)


def lock(directory: Path) -> None:
    """Take the lock of a directory, which must exist, until :func:`unlock` or the process's end.

    Raises:
        TimeoutError: If another process has it.
        OSError: If the file cannot be made or written, or is a link.
    """
    path = directory.resolve() / LOCK
    if path not in _LOCKS:
        file_lock = FileLock(path, thread_local=False)
        file_lock.acquire(timeout=0.5)  # a process that only looks has it for a moment, `is_locked`
        path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        _LOCKS[path] = file_lock


def unlock(directory: Path) -> None:
    """Release the lock of a directory, if this process has it."""
    if file_lock := _LOCKS.pop(directory.resolve() / LOCK, None):
        file_lock.release()


def is_locked(directory: Path) -> bool:
    """Return whether a process, perhaps this one, has the lock of a directory of any user."""
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
