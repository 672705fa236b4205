"""One process at a time in a directory: a lock that the system releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from pathlib import Path

NAME = ".lock"
_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
#: The files that this process has locked, by the directory as it was then.
_DESCRIPTORS: dict[Path, int] = {}


def acquire(directory: Path) -> None:
    """Take the lock of a directory, which must exist, until :func:`release` or the process's end.

    Raises:
        BlockingIOError: If another process has it; its text says which, if that is known.
        OSError: If the file cannot be made or the file system has no locks.
    """
    path = directory.resolve()
    if path in _DESCRIPTORS:
        return
    descriptor = os.open(path / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(descriptor, _EXCLUSIVE)
        except BlockingIOError:
            time.sleep(0.2)  # a process that only looks has it for a moment, see `is_held`
            fcntl.flock(descriptor, _EXCLUSIVE)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode())
    except OSError as error:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise BlockingIOError(holder) from error
        raise
    _DESCRIPTORS[path] = descriptor


def release(directory: Path) -> None:
    """Release the lock of a directory, if this process has it."""
    if descriptor := _DESCRIPTORS.pop(directory.resolve(), None):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for forked processes, too
        os.close(descriptor)


def is_held(directory: Path) -> bool:
    """Return whether a process, perhaps this one, has the lock of a directory of any user."""
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_NONBLOCK)  # even if it is a pipe
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
