"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a wish to stop: at once, or where work can be kept.

Outside :func:`deferred` a signal raises :class:`Stopped`. Inside it is only noted, for the training
to save first. A second signal ends the process at once, and so does the end of the grace period.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

#: Exit status of a process that was asked to stop and can be started again (EX_TEMPFAIL).
STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
#: Launchers pass on what a terminal sent to all: within so many seconds it is the same wish.
_SAME_WISH = 2.0
_LOOKS_AT_PARENT, _WITHOUT_PARENT = 1.0, 7.0  # seconds


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop; the message is its name."""


@dataclass
class _Wish:
    """What was asked of this process, and what it does about it."""

    handled: bool = False
    name: str | None = None
    at: float = 0.0
    deferred: int = 0
    grace_seconds: float = 0.0
    give_up: Callable[[str], object] = str
    timer: threading.Timer | None = None


_wish = _Wish()


def requested() -> str | None:
    """Return the name of the signal that asked this process to stop, if one did."""
    return _wish.name


def are_handled() -> bool:
    """Return whether signals are taken as wishes here."""
    return _wish.handled


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Take the signals inside the block; outside the main thread, which gets them, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _forget()
    _wish.handled = True
    before = {
        each: signal.signal(each, _handle)
        for each in SIGNALS
        if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        _forget()


def heed() -> None:
    """Stop now if a signal asked for it meanwhile.

    Raises:
        Stopped: if one did.
    """
    if _wish.name is not None:
        raise Stopped(_wish.name)


@contextlib.contextmanager
def deferred(grace_seconds: float, give_up: Callable[[str], object]) -> Iterator[None]:
    """Only note a signal inside the block, whose code looks at :func:`requested`.

    Args:
        grace_seconds: How long after a signal the process ends itself, with status 75.
        give_up: Is called then, with the name of the signal, in another thread.
    """
    _wish.grace_seconds, _wish.give_up = grace_seconds, give_up
    _wish.deferred += 1
    try:
        yield
    finally:
        _wish.deferred -= 1
        if _wish.timer is not None:
            _wish.timer.cancel()


def leave_with_parent() -> None:
    """End this process soon after its launcher, which may be killed without a word.

    It is asked to stop as by SIGTERM, and has less time to save than from a scheduler.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS_AT_PARENT)
        os.write(2, b"error: the launcher is gone: this process stops\n")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_WITHOUT_PARENT)
        os._exit(STATUS)

    threading.Thread(target=watch, daemon=True).start()


def _handle(number: int, frame: FrameType | None) -> None:
    now, name = time.monotonic(), signal.Signals(number).name
    if _wish.name is not None and now - _wish.at > _SAME_WISH:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    if _wish.name is not None:
        return
    _wish.name, _wish.at = name, now
    if not _wish.deferred:
        raise Stopped(name)
    _wish.timer = threading.Timer(_wish.grace_seconds, _end, [_wish])
    _wish.timer.daemon = True
    _wish.timer.start()


def _end(wish: _Wish) -> None:
    try:
        wish.give_up(wish.name or "")
    finally:
        os._exit(STATUS)


def _forget() -> None:
    global _wish
    if _wish.timer is not None:
        _wish.timer.cancel()
    _wish = _Wish()
