"""One process at a time in a directory: a lock that the system releases when the process ends.

However it ends: a status in a file would be left behind, and the number of a process is used again.
Machines that share a disk may not see each other's locks; for them the process that holds one
touches the file every few seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

NAME = ".lock"
_BEAT = 10.0  # seconds
_GONE_AFTER = 3 * _BEAT
_HELD: dict[Path, tuple[FileLock, threading.Event]] = {}


def hold(directory: Path) -> None:
    """Take the lock of a directory, which must exist, until :func:`release` or the process's end.

    Raises:
        BlockingIOError: if another process has it.
        OSError: if the file cannot be made or the file system has no locks.
    """
    place = directory.resolve()
    if place in _HELD:
        return
    lock = FileLock(place / NAME, timeout=0, thread_local=False)
    try:
        if held(place):  # the library would empty the file first
            raise Timeout(str(place / NAME))
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"{place / NAME} is held by another process") from error
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    _HELD[place] = lock, threading.Event()


def holder(directory: Path) -> str:
    """Return who has, or had, the lock of a directory; empty if that is unknown."""
    path = directory / NAME
    try:
        return path.read_text().strip() if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def beat(directory: Path) -> None:
    """Write into the lock of a directory who has it, this process, and touch it until released."""
    place = directory.resolve()
    _, ended = _HELD[place]
    started = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    with contextlib.suppress(OSError):  # of a full disk
        (place / NAME).write_text(
            f"process {os.getpid()} on {platform.node()}, started "
            f"{started.isoformat(timespec='seconds')}\n"
        )
    threading.Thread(target=_beat, args=(place / NAME, ended), daemon=True).start()


def release() -> None:
    """Release every lock of this process."""
    while _HELD:
        _, (lock, ended) = _HELD.popitem()
        ended.set()
        lock.release()


def held(directory: Path, *, elsewhere: bool = False) -> bool:
    """Return whether a process, perhaps this one, has the lock of a directory.

    Args:
        directory: Which may be another user's.
        elsewhere: Whether it would be one of another machine, whose lock may not be seen here: then
            one that was touched lately counts.
    """
    path = directory.resolve() / NAME
    if mine(directory):
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # even if it is a pipe
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return elsewhere and time.time() - path.stat().st_mtime < _GONE_AFTER


def mine(directory: Path) -> bool:
    """Return whether this process has the lock of a directory."""
    return directory.resolve() in _HELD


def wait_for_silence(directory: Path) -> bool:
    """Wait until the holder of a lock on another machine must be gone, half a minute at most.

    Returns:
        Whether it is gone: the file was not touched for so long.
    """
    path = directory / NAME
    with contextlib.suppress(FileNotFoundError):
        touched = path.stat().st_mtime
        with tempfile.TemporaryFile(dir=directory) as now:  # by the clock of the file system
            silent = os.fstat(now.fileno()).st_mtime - touched
        until = time.monotonic() + max(0.0, _GONE_AFTER - silent)
        while time.monotonic() < until:
            if path.stat().st_mtime != touched:
                return False
            time.sleep(0.2)
    return True


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):  # the directory may be renamed, or the disk full
            os.utime(path)
