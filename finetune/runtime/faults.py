"""What a process says when it cannot go on, so that a job of many tells its first cause once.

One that fails by itself speaks at once. One that lost another (a closed connection) has nothing to
tell but the symptom: it waits for the launcher, which knows whose end came first and ends the
others too.
"""

from __future__ import annotations

import sys
import time
import traceback

from finetune.errors import UserError
from finetune.runtime import distributed

_LAUNCHER_ENDS_US_WITHIN = 3.0  # seconds; torchrun looks every tenth


def refuse(error: UserError) -> int:
    """Say what the user's mistake is, once; rank 0 if it found it too.

    Returns:
        The exit status.
    """
    me = distributed.ranks()
    if me.rank != 0:
        time.sleep(_LAUNCHER_ENDS_US_WITHIN)
    elsewhere = me.rank > 0 and me.local_rank == 0  # another machine, whose log is another
    if me.world_size == 1 or distributed.first_to_fail() or elsewhere:
        for mistake in error.mistakes:
            print(f"error: {mistake}", file=sys.stderr)
        sys.stderr.flush()
    return 2


def stop(error: Exception) -> int:
    """Say why this process of a job stops, if it was the first.

    Returns:
        The exit status.
    """
    rank = distributed.ranks().rank
    lost, silent = _lost_connection(error), _timed_out(error)
    if lost and not silent:
        time.sleep(_LAUNCHER_ENDS_US_WITHIN)
    if not distributed.first_to_fail():
        if not lost:
            time.sleep(_LAUNCHER_ENDS_US_WITHIN)
        print(
            f"error: rank {rank} stops, since another rank failed first; that one's log says why",
            file=sys.stderr,
        )
    elif silent:
        print(
            f"error: rank {rank} waited for another rank in vain (--ddp_timeout): {_line(error)}",
            file=sys.stderr,
        )
    elif lost:
        print(
            f"error: rank {rank} lost another rank, which has ended: {_line(error)}",
            file=sys.stderr,
        )
    else:
        print(f"rank {rank} failed:", file=sys.stderr)
        traceback.print_exception(error)
    sys.stderr.flush()
    return 1


def _lost_connection(error: BaseException) -> bool:
    from torch.distributed import DistError

    text = str(error)
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text)
    )


def _timed_out(error: BaseException) -> bool:
    text = str(error).lower()
    return _lost_connection(error) and ("timed out" in text or "timeout" in text)


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
