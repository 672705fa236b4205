"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a request to stop: at once, or where work can be saved.

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
#: Launchers pass on what a terminal sent to all: within so many seconds it is the same request.
_SAME_REQUEST = 2.0
_POLL_PARENT, _WITHOUT_PARENT = 1.0, 7.0  # seconds


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop; the message is its name."""


@dataclass
class _State:
    """The handling of signals in this process."""

    is_active: bool = False
    request: str | None = None  # the name of the signal
    requested_at: float = 0.0
    is_deferred: bool = False
    grace_seconds: float = 0.0
    give_up: Callable[[str], object] = str
    timer: threading.Timer | None = None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


_state = _State()


def requested() -> str | None:
    """Return the name of the signal that asked this process to stop, if one did."""
    return _state.request


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle the signals inside the block; only in the main thread, which is who gets them."""
    global _state
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state = _State(is_active=True)
    handlers = {
        number: signal.signal(number, _handle)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # under nohup
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _state.cancel_timer()
        _state = _State()


def heed() -> None:
    """Stop now if a signal asked for it meanwhile.

    Raises:
        Stopped: If one did.
    """
    if _state.request is not None:
        raise Stopped(_state.request)


@contextlib.contextmanager
def deferred(grace_seconds: float, give_up: Callable[[str], object]) -> Iterator[None]:
    """Only note a signal inside the block, whose code looks at :func:`requested`.

    Args:
        grace_seconds: How long after a signal the process ends itself, with status 75.
        give_up: Called then, with the name of the signal, in another thread.
    """
    _state.grace_seconds, _state.give_up, _state.is_deferred = grace_seconds, give_up, True
    try:
        yield
    finally:
        _state.is_deferred = False
        _state.cancel_timer()


def leave_with_parent() -> None:
    """End this process soon after its launcher, which may be killed without passing that on.

    It is asked to stop as by SIGTERM, and has less time to save than from a scheduler.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_PARENT)
        os.write(2, b"error: the launcher is gone: this process stops\n")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_WITHOUT_PARENT)
        os._exit(STATUS)

    threading.Thread(target=watch, daemon=True).start()


def _handle(number: int, frame: FrameType | None) -> None:
    time_of_signal = time.monotonic()
    if _state.request is not None:
        if time_of_signal - _state.requested_at > _SAME_REQUEST:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    _state.request, _state.requested_at = signal.Signals(number).name, time_of_signal
    if not _state.is_deferred:
        raise Stopped(_state.request)
    _state.timer = threading.Timer(_state.grace_seconds, _end, [_state.give_up, _state.request])
    _state.timer.daemon = True
    _state.timer.start()


def _end(give_up: Callable[[str], object], request: str) -> None:
    try:
        give_up(request)
    finally:
        os._exit(STATUS)
