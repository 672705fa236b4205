"""Write files atomically and never through a link, write standard JSON, and lock directories. The
system releases a lock when its process ends.
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
_LOCKS: dict[Path, FileLock] = {}  # the locks of this process by the path of their file


@contextlib.contextmanager
def replacing(path: Path, directory: Path | None = None) -> Iterator[Path]:
    """Yield the path of a new, empty file; at the end of the block, once its content is on the
    disk, it replaces ``path``.

    The file is in ``directory``, by default that of ``path``. Its name is random and its mode
    follows the umask. A link at ``path`` is replaced; its target is not changed. The path is
    absolute, because pyarrow takes a relative one with a colon, ``exp:1/a.parquet``, for a URI.
    """
    new = (directory or path.parent).absolute() / f".{path.name}.{secrets.token_hex(8)}.tmp"
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically, so that a reader never sees half of it."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def to_json(content: Any, **options: Any) -> str:
    """Return ``json.dumps(content, **options)`` with null for NaN and infinity."""
    text = json.dumps(content, **options)
    return json.dumps(json.loads(text, parse_constant=lambda name: None), **options)


def lock(directory: Path) -> None:
    """Lock an existing directory until :func:`unlock` is called or the process ends.

    Raises:
        TimeoutError: If another process has the lock.
        OSError: If the lock file cannot be created or written, or is a link.
    """
    path = directory.resolve() / LOCK
    if path not in _LOCKS:
        file_lock = FileLock(path, thread_local=False)
        file_lock.acquire(timeout=0.5)  # `is_locked` in another process holds it for a moment
        path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        _LOCKS[path] = file_lock


def unlock(directory: Path) -> None:
    """Release the lock of a directory, if this process has it."""
    if file_lock := _LOCKS.pop(directory.resolve() / LOCK, None):
        file_lock.release()


def is_locked(directory: Path) -> bool:
    """Return whether a process of any user, including this one, has the lock of a directory."""
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
