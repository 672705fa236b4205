"""Report a failure so that a job shows its first cause, and shows it once.

Rank 0 reports at once. Another rank, or one that lost its connection to another and so knows only
the symptom, first waits for the launcher, which ends the processes of a job when one has failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from typing import Any

from finetune.errors import RunError, UserError, masked
from finetune.runtime import distributed, signals
from finetune.runtime.formats import visible


def keep_secrets() -> None:
    """Mask passwords and tokens in tracebacks and in what the libraries log."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def print_masked(*error: Any) -> None:
        print(masked("".join(traceback.format_exception(*error))), end="", file=sys.stderr)

    def make_masked_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        with contextlib.suppress(Exception):  # arguments that do not fit the message
            record.msg = masked(record.getMessage())
            record.args = ()
        return record

    make_record = logging.getLogRecordFactory()
    sys.excepthook = print_masked
    logging.setLogRecordFactory(make_masked_record)


def _wait_to_be_ended() -> None:
    """Wait for the launcher as long as it runs; the processes of a machine one after the other.

    torchrun polls ten times a second, if it gets a core. What has reported is gone within 2 s.
    """
    launcher = signals.launcher or os.getppid()
    end = time.monotonic() + 15
    while os.getppid() == launcher and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(2 * min(distributed.ranks().local_rank, 10))


def refuse(error: UserError) -> int:
    """Print the user's mistakes once per machine, and return the exit status."""
    if not distributed.is_main_process():
        _wait_to_be_ended()
    for mistake in error.mistakes:
        print(f"error: {visible(mistake)}", file=sys.stderr, flush=True)
    return 2


def stopped() -> int:
    """Leave rank 0 the time to say how to go on, and return the exit status of a stopped job."""
    if not distributed.is_main_process():
        _wait_to_be_ended()
    return signals.STATUS


def stop(error: Exception) -> int:
    """Print why this process stops, and return the exit status."""
    from torch.distributed import DistError

    rank = distributed.ranks().rank
    text = str(error)
    line = text.strip().partition("\n")[0]
    is_lost = isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text)
    )
    is_timeout = is_lost and ("timed out" in text.lower() or "timeout" in text.lower())
    if rank != 0 or (is_lost and not is_timeout):
        _wait_to_be_ended()
    if is_timeout:
        message = f"error: rank {rank} timed out waiting for another rank (--ddp_timeout): {line}"
    elif is_lost:
        message = f"error: rank {rank} lost the connection to another rank, which exited: {line}"
    elif isinstance(error, RunError):
        message = f"error: {error}"
    else:
        message = f"rank {rank} failed:\n{''.join(traceback.format_exception(error))}".rstrip()
    print(visible(masked(message)), file=sys.stderr, flush=True)
    return 1
