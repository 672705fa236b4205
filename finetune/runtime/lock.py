"""One process at a time in a directory: a lock that the system releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout

NAME = ".lock"
#: Of this process, by the directory as it was when it was locked.
_LOCKS: dict[Path, FileLock] = {}


def acquire(directory: Path) -> None:
    """Take the lock of a directory, which must exist, until :func:`release` or the process's end.

    Raises:
        BlockingIOError: If another process has it.
        OSError: If the file cannot be made or the file system has no locks.
    """
    path = directory.resolve()
    if path in _LOCKS:
        return
    lock = FileLock(path / NAME, timeout=1, thread_local=False)  # another may look who has it
    try:
        if is_held(path):  # `acquire` would first empty the file, which names the holder
            raise Timeout(str(path / NAME))
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"{path / NAME} is held by another process") from error
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    _LOCKS[path] = lock
    (path / NAME).write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")


def release(directory: Path) -> None:
    """Release the lock of a directory, if this process has it."""
    if lock := _LOCKS.pop(directory.resolve(), None):
        lock.release()


def is_mine(directory: Path) -> bool:
    """Return whether this process has the lock of a directory."""
    return directory.resolve() in _LOCKS


def is_held(directory: Path) -> bool:
    """Return whether a process, perhaps this one, has the lock of a directory of any user."""
    if is_mine(directory):
        return True
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_NONBLOCK)  # even if it is a pipe
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def holder(directory: Path) -> str:
    """Return who has, or had, the lock of a directory; empty if that is unknown."""
    try:
        return (directory / NAME).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
