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


def stop(error: BaseException) -> int:
    """Print why this process stops, once per machine, and return the exit status."""
    rank = distributed.ranks().rank
    failure = distributed.communication_failure(error)
    if rank != 0 or failure == "lost":
        _wait_to_be_ended()
    line = str(error).strip().partition("\n")[0]
    status = 1
    if isinstance(error, signals.Stopped):  # rank 0 has said how to go on
        return signals.STATUS
    if isinstance(error, UserError):
        message = "\n".join(f"error: {mistake}" for mistake in error.mistakes)
        status = 2
    elif isinstance(error, RunError):
        message = f"error: {error}"
    elif failure == "lost":
        message = f"error: rank {rank} lost the connection to another rank, which exited: {line}"
    elif failure == "timeout":
        message = f"error: rank {rank} timed out waiting for another rank (--ddp_timeout): {line}"
    else:
        message = f"rank {rank} failed:\n{''.join(traceback.format_exception(error))}".rstrip()
    print(visible(masked(message)), file=sys.stderr, flush=True)
    return status
