"""How a process stops: at a signal where work can be saved, or with its first cause shown once.

Outside :func:`deferred` SIGTERM, SIGINT, SIGUSR1 or SIGHUP raises :class:`Stopped`. Inside it is
only noted, for the training to save first. A second signal ends the process at once, and so does
the end of the grace period.

Rank 0 reports at once. Another rank, or one that lost its connection to another and so knows only
the symptom, first waits for the launcher, which ends the processes of a job when one has failed.
"""

import contextlib
import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from finetune.errors import RunError, UserError, masked
from finetune.runtime import distributed
from finetune.runtime.formats import visible

#: Exit status of a process that was asked to stop and can be started again (EX_TEMPFAIL).
STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_request: tuple[str, float] | None = None  # the name of a signal, and when it came
_deferral: tuple[float, Callable[[str], object]] | None = None  # the arguments of `deferred`
_launcher: int | None = None  # the process that started this one, where it is a launcher


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop; the message is its name."""


def requested() -> str | None:
    """Return the name of the signal that asked this process to stop, if one did."""
    return None if _request is None else _request[0]


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle the signals inside the block, which the main thread runs: it gets them.

    On Linux the end of a launcher, which may be killed without passing that on, is a SIGTERM, too.
    """
    global _launcher, _request
    handlers = {
        number: signal.signal(number, _handle)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # under nohup
    }
    if distributed.under_launcher():
        _launcher = os.getppid()
        if prctl := getattr(ctypes.CDLL(None), "prctl", None):
            prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG of <sys/prctl.h>
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
        if _request is not None and distributed.lost_connection(error):
            raise Stopped(_request[0]) from error
        raise
    finally:
        _deferral = None


def _handle(number: int, frame: FrameType | None) -> None:
    global _request
    if _request is not None:
        # launchers pass on what a terminal sent to all: within 2 s it is the same request
        if time.monotonic() - _request[1] > 2:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    name = signal.Signals(number).name
    _request = name, time.monotonic()
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


@functools.cache
def keep_secrets() -> None:
    """Mask passwords and tokens in what the libraries log."""
    make_record = logging.getLogRecordFactory()

    def make_masked_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        with contextlib.suppress(Exception):  # arguments that do not fit the message
            record.msg = masked(record.getMessage())
            record.args = ()
        return record

    logging.setLogRecordFactory(make_masked_record)


def _wait_to_be_ended() -> None:
    """Wait for the launcher as long as it runs; the processes of a machine one after the other.

    torchrun polls ten times a second, if it gets a core. What has reported is gone within 2 s.
    """
    launcher = _launcher or os.getppid()
    end = time.monotonic() + 15
    while os.getppid() == launcher and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(2 * min(distributed.ranks().local_rank, 10))


def stop(error: BaseException) -> int:
    """Print why this process stops, once per machine, and return the exit status."""
    rank = distributed.ranks().rank
    is_lost = distributed.lost_connection(error)
    if rank != 0 or is_lost:
        _wait_to_be_ended()
    line = str(error).strip().partition("\n")[0]
    if isinstance(error, Stopped):  # rank 0 has said how to go on
        return STATUS
    if isinstance(error, (UserError, RunError)):
        message = "\n".join(f"error: {line}" for line in getattr(error, "mistakes", (error,)))
    elif is_lost:
        reason = "it exited, or took longer than --ddp_timeout"
        message = f"error: rank {rank} lost the connection to another rank: {reason}: {line}"
    else:
        title = f"rank {rank} failed:\n" * (distributed.ranks().world_size > 1)
        message = f"{title}{''.join(traceback.format_exception(error))}".rstrip()
    print(visible(masked(message)), file=sys.stderr, flush=True)
    return 2 if isinstance(error, UserError) else 1
