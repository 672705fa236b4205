"""What the toolkit keeps in the cache of ``datasets``: who uses it, who makes it, how it goes.

An entry is a directory of ours, with a file that says what it holds, one that is locked by every
process that uses it, one that is locked by the process of a machine that makes it, and one of which
a byte is locked for each file that a machine writes; or a single small file. Locks are those of the
system: they go with their process, however it ends. Nothing else in the cache of the library is
ever looked at.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from finetune.errors import UserError, counted
from finetune.runtime import activity, hub
from finetune.runtime.files import write_whole

TOKENIZED, MEMORY = "finetune-tokenized", "finetune-memory"
#: Our folders in the cache of ``datasets``, and what they hold.
KINDS = {
    TOKENIZED: "tokenized rows",
    "finetune-files": "converted file",
    MEMORY: "rows passed in Python",
    "finetune-digests": "hashes of texts",
    "finetune-baselines": "baseline",
    "finetune-near": "near duplicates",
}
_ABOUT, _USED, _MAKING, _MAKER = "about.json", ".used", ".making", ".maker"
_CLAIMS = ".claims"
_LOOKS = 0.5  # seconds between looks at a lock
#: Descriptors whose shared locks this process keeps to its end, or until it used that many others.
_IN_USE: dict[Path, int] = {}
_MOST_IN_USE = 64


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
    """Keep the directory of an entry, made if need be, from being removed while this process runs.

    Args:
        directory: From :func:`place`.
        **about: What to note of a new entry.

    Raises:
        UserError: if it cannot be made.
    """
    if directory in _IN_USE and directory.exists():
        return
    try:
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            if (descriptor := _locked(directory / _USED, fcntl.LOCK_SH)) is None:
                return
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # it was removed before it was locked
        if directory in _IN_USE:  # which was removed by force since
            os.close(_IN_USE.pop(directory))
        while len(_IN_USE) >= _MOST_IN_USE:  # in a notebook, say
            os.close(_IN_USE.pop(next(iter(_IN_USE))))
        _IN_USE[directory] = descriptor
        os.utime(directory / _USED)
        if not (directory / _ABOUT).exists():
            write_whole(directory / _ABOUT, json.dumps(about, default=str))
    except OSError as error:
        if not directory.is_dir():  # else it is of somebody who lets us read it
            raise unwritable(error) from error


@contextlib.contextmanager
def making(directory: Path) -> Iterator[None]:
    """Let one process of this machine at a time into the block; the others wait, and are told for
    whom. Machines that share the file system all come in, and claim what they write, see
    :func:`claimed`.

    Where the file system has no locks nobody waits: then the same is made twice.

    Args:
        directory: Of an entry that is in :func:`use`.
    """
    here = platform.node()
    lock = FileLock(directory / f"{_MAKING}-{here}", thread_local=False)
    maker = directory / f"{_MAKER}-{here}"
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who = f" ({said})" if (said := _said(maker)) else ""
            activity.say(f"another run{who} is preparing the same data: waiting for it")
            lock.acquire(poll_interval=_LOOKS)
    except NotImplementedError:
        yield
        return
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(maker, f"process {os.getpid()} on {here}, since {now}")
        yield
    finally:
        maker.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def claimed(path: Path, number: int) -> Iterator[bool]:
    """Yield whether this process may write a file of an entry, because no other machine does.

    It is the only one until the end of the block, or of the process. Where the file system has no
    locks every process may.

    Args:
        path: The file.
        number: Of the file in its directory, 0 or more; another one for each.
    """
    descriptor = os.open(path.with_name(_CLAIMS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                yield False
                return
        for left in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
            left.unlink(missing_ok=True)
        yield True
    finally:
        os.close(descriptor)


def wait_for_other_machines(directory: Path, files: int, *, tell: bool) -> None:
    """Wait a moment for files of an entry that other machines write.

    Args:
        directory: Of the entry.
        files: How many there are.
        tell: Whether to say so.
    """
    if tell:
        own = f"{_MAKER}-{platform.node()}"
        makers = [each for each in sorted(directory.glob(f"{_MAKER}-*")) if each.name != own]
        told = "; ".join(filter(None, map(_said, makers)))
        who = f" ({told})" if told else ""
        activity.say(f"waiting for {counted(files, 'file')} that another machine{who} tokenizes")
    time.sleep(_LOOKS)


def entries() -> list[Entry]:
    """Return what is in the cache, the largest first."""
    found = []
    for folder, kind in KINDS.items():
        for path in sorted((hub.caches()["datasets"] / folder).glob("*")):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if path.is_dir() or path.suffix in (".json", ".npz"):
                    found.append(_entry(path, kind))
    return sorted(found, key=lambda entry: -entry.size)


def remove(entry: Entry) -> str | None:
    """Remove an entry.

    Returns:
        Why it was not removed: a living process uses it or makes it; None if it is gone.
    """
    if not entry.path.is_dir():
        for path in (entry.path, *entry.path.parent.glob(f"{entry.path.name}.*")):
            path.unlink(missing_ok=True)
        return None
    descriptor = None
    try:
        # whoever makes it uses it, too
        descriptor = _locked(entry.path / _USED, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path)
    except BlockingIOError:
        return "used by a running process"
    except OSError as error:
        return str(error)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return None


def _entry(path: Path, kind: str) -> Entry:
    if path.is_file():
        state = path.stat()
        return Entry(path, kind, state.st_size, _when(state.st_mtime), {})
    states = [(file, file.stat()) for file in path.rglob("*") if file.is_file()]
    marked = [state.st_mtime for file, state in states if file.name == _USED]
    used = max(marked or [state.st_mtime for _, state in states], default=path.stat().st_mtime)
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        about = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
    size = sum(state.st_size for _, state in states)
    return Entry(path, kind, size, _when(used), about if isinstance(about, dict) else {})


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _said(maker: Path) -> str:
    """Return which process makes an entry; empty if that is not known."""
    try:
        return maker.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _locked(path: Path, how: int) -> int | None:
    """Return a descriptor of a file, made if need be, with that lock; None if there are no locks.

    Raises:
        BlockingIOError: if another process has a lock that excludes it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
