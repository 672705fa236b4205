"""Stop a process after a signal, with its work saved, or after an error, with the cause shown once.

SIGTERM, SIGINT, SIGUSR1 and SIGHUP raise :class:`Stopped`. Inside :func:`deferred` a signal is only
recorded, so that the training can save a checkpoint first. A second signal, or the end of the grace
period, ends the process at once.

Rank 0 prints an error at once. The other ranks, and ranks that only lost the connection to a failed
one, first wait for the launcher: it ends the processes of a job when one has failed.
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

from finetune.errors import RunError, UserError, first_line, masked
from finetune.runtime import distributed
from finetune.runtime.formats import visible

#: Exit status of a process that was asked to stop and can be started again (EX_TEMPFAIL).
STATUS = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_request: tuple[str, float] | None = None  # the name of the signal, and its time
_deferral: tuple[float, Callable[[str], object]] | None = None  # the arguments of `deferred`
_launcher: int | None = None  # the process id of the launcher that started this process


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(f"interrupted by {name}")
        self.name = name  # of the signal


def requested() -> str | None:
    """Return the name of the signal that asked this process to stop; None without a signal."""
    if _request is None:
        return None
    return _request[0]


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle the signals inside the block, which must run in the main thread.

    On Linux this process also gets a SIGTERM when its launcher ends, e.g. because it was killed.
    """
    global _launcher, _request
    handlers = {}
    for number in SIGNALS:
        is_ignored = signal.getsignal(number) == signal.SIG_IGN
        if number != signal.SIGHUP or not is_ignored:  # it is ignored under nohup
            handlers[number] = signal.signal(number, _handle)
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
    """Only record a signal inside the block, whose code checks :func:`requested`.

    ``grace_seconds`` after the signal another thread calls ``give_up`` with its name, and the
    process exits with status 75.
    """
    global _deferral
    _deferral = grace_seconds, give_up
    try:
        yield
    except RuntimeError as error:
        # the launcher sends the signal when another rank has failed, and reports that rank; the
        # lost connection is only a symptom
        if _request is not None and distributed.lost_connection(error):
            raise Stopped(_request[0]) from error
        raise
    finally:
        _deferral = None


def _handle(number: int, frame: FrameType | None) -> None:
    global _request
    if _request is not None:
        # a launcher forwards a signal that the terminal sent to all: within 2 s it is the same one
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
    """Mask passwords and tokens in the log records of all libraries."""
    make_record = logging.getLogRecordFactory()

    def make_masked_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        with contextlib.suppress(Exception):  # arguments that do not fit the message
            record.msg = masked(record.getMessage())
            record.args = ()
        return record

    logging.setLogRecordFactory(make_masked_record)


def _wait_to_be_ended() -> None:
    """Wait up to 15 s for the launcher to end this process, then 2 s longer per local rank.

    torchrun polls ten times a second if it gets a core. A rank that has reported exits within 2 s.
    """
    launcher = _launcher or os.getppid()
    end = time.monotonic() + 15
    while os.getppid() == launcher and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(2 * min(distributed.ranks().local_rank, 10))


def stop(error: BaseException) -> int:
    """Print why this process stops, once per machine, and return its exit status."""
    from tqdm import tqdm  # its `write` does not print into a progress bar

    rank = distributed.ranks().rank
    is_lost = distributed.lost_connection(error)
    if rank != 0 or is_lost:
        _wait_to_be_ended()
    line = first_line(error)
    if isinstance(error, Stopped):
        message = str(error) if rank == 0 else ""  # a value in its command may have several lines
    elif isinstance(error, (UserError, RunError)):
        message = "\n".join(f"error: {line}" for line in getattr(error, "mistakes", (error,)))
    elif is_lost:
        message = (
            f"error: rank {rank} lost the connection to another rank: it exited, or took longer "
            f"than --ddp_timeout: {line}"
        )
    else:
        message = "".join(traceback.format_exception(error)).rstrip()
        if distributed.ranks().world_size > 1:
            message = f"rank {rank} failed:\n{message}"
    with contextlib.suppress(OSError):  # after SIGHUP there may be no terminal
        if message:
            tqdm.write(visible(masked(message)), file=sys.stderr)
    if isinstance(error, Stopped):
        return STATUS
    return 2 if isinstance(error, UserError) else 1
