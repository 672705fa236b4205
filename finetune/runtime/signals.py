"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a request to stop: at once, or where work can be saved.

Outside :func:`deferred` a signal raises :class:`Stopped`. Inside it is only noted, for the training
to save first. A second signal ends the process at once, and so does the end of the grace period.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from finetune.runtime import distributed

#: Exit status of a process that was asked to stop and can be started again (EX_TEMPFAIL).
STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_request: tuple[str, float] | None = None  # the name of a signal, and when it came
_deferral: tuple[float, Callable[[str], object]] | None = None  # the arguments of `deferred`
launcher: int | None = None  # the process that started this one, once `leave_with_parent` is called


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop; the message is its name."""


def requested() -> str | None:
    """Return the name of the signal that asked this process to stop, if one did."""
    return None if _request is None else _request[0]


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle the signals inside the block, which the main thread runs: it gets them."""
    global _request
    _request = None
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
        _request = None


@contextlib.contextmanager
def deferred(grace_seconds: float, give_up: Callable[[str], object]) -> Iterator[None]:
    """Only note a signal inside the block, whose code looks at :func:`requested`.

    ``grace_seconds`` after it ``give_up`` is called in another thread, with the name of the signal,
    and the process ends with status 75.
    """
    global _deferral
    _deferral = grace_seconds, give_up
    try:
        yield
    except RuntimeError as error:
        # a launcher sends the signal when another rank has failed: that is what it reports, and the
        # connection that is lost then is a symptom
        if _request is not None and distributed.communication_failure(error) == "lost":
            raise Stopped(_request[0]) from error
        raise
    finally:
        _deferral = None


def leave_with_parent() -> None:
    """Get SIGTERM when the launcher ends, which may be killed without passing that on; on Linux."""
    global launcher
    launcher = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG of <sys/prctl.h>


def _handle(number: int, frame: FrameType | None) -> None:
    global _request
    time_of_signal = time.monotonic()
    if _request is not None:
        # launchers pass on what a terminal sent to all: within 2 s it is the same request
        if time_of_signal - _request[1] > 2:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    name = signal.Signals(number).name
    _request = name, time_of_signal
    if (deferral := _deferral) is None:
        raise Stopped(name)

    def end_after_grace() -> None:
        time.sleep(deferral[0])
        if _deferral is not deferral:
            return
        try:
            deferral[1](name)
        finally:
            os._exit(STATUS)

    threading.Thread(target=end_after_grace, daemon=True).start()
