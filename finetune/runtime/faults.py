"""Report a failure so that a job shows its first cause, and shows it once.

A process that fails on its own reports at once. One that lost its connection to another knows only
the symptom: it waits for the launcher, which knows which process ended first and ends the others
too.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import traceback
from typing import Any

from finetune.errors import RunError, UserError, masked
from finetune.runtime import distributed, signals
from finetune.runtime.terminal import visible

_LAUNCHER_ENDS_US_WITHIN = 3.0  # seconds; torchrun polls ten times a second


def keep_secrets() -> None:
    """Mask passwords and tokens in tracebacks and in what the libraries log."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def show(*error: Any) -> None:
        print(masked("".join(traceback.format_exception(*error))), end="", file=sys.stderr)

    def record(*given: Any, **named: Any) -> logging.LogRecord:
        made = make(*given, **named)
        with contextlib.suppress(Exception):  # arguments that do not fit the message
            made.msg, made.args = masked(made.getMessage()), ()
        return made

    make = logging.getLogRecordFactory()
    sys.excepthook = show
    logging.setLogRecordFactory(record)


def refuse(error: UserError) -> int:
    """Print the user's mistakes once per job, and return the exit status."""
    me = distributed.ranks()
    if me.rank != 0:
        time.sleep(_LAUNCHER_ENDS_US_WITHIN)
    elsewhere = me.rank > 0 and me.local_rank == 0  # another machine has a log of its own
    if me.world_size == 1 or distributed.first_to_fail() or elsewhere:
        for mistake in error.mistakes:
            print(f"error: {visible(mistake)}", file=sys.stderr, flush=True)
    return 2


def stopped() -> int:
    """Leave rank 0 the time to say how to go on, and return the exit status of a stopped job."""
    if distributed.ranks().rank != 0:
        time.sleep(_LAUNCHER_ENDS_US_WITHIN)
    return signals.STATUS


def stop(error: Exception) -> int:
    """Print why this process stops, and return the exit status."""
    from torch.distributed import DistError

    rank, text = distributed.ranks().rank, str(error)
    lost = isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text)
    )
    silent = lost and ("timed out" in text.lower() or "timeout" in text.lower())
    line = text.strip().partition("\n")[0]
    if lost and not silent:
        time.sleep(_LAUNCHER_ENDS_US_WITHIN)
    if not distributed.first_to_fail():
        if not lost:
            time.sleep(_LAUNCHER_ENDS_US_WITHIN)
        told = f"error: rank {rank} stops: another rank failed first, see its log"
    elif silent:
        told = f"error: rank {rank} timed out waiting for another rank (--ddp_timeout): {line}"
    elif lost:
        told = f"error: rank {rank} lost the connection to another rank, which has exited: {line}"
    elif isinstance(error, RunError):
        told = f"error: {error}"
    else:
        told = f"rank {rank} failed:\n{''.join(traceback.format_exception(error))}".rstrip()
    print(visible(masked(told)), file=sys.stderr, flush=True)
    return 1
