"""Deal the chunks of an input to processes, the same on each of them, and tell how far they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from finetune.data import files
from finetune.data.files import Mine

#: Takes the position in the input and the rows that are done.
Tell = Callable[[float, int], object]


def dealt(rank: int, world_size: int, rows: int = 0, row_groups: int = 0) -> Mine:
    """Return which chunks are for a process: every n-th one.

    Where there is a row group or more for each process, every n-th run of chunks of the length of
    an average row group, so that a process reads few of them; the chunks behind the last whole
    round are a run for each process. Either way no process has two chunks more than another.

    Args:
        rank: Of the process.
        world_size: The number of processes.
        rows: Of the input, if they are counted.
        row_groups: Of the input; 0 if it has none.
    """
    chunks = -(-rows // files.CHUNK_ROWS)
    run = chunks // row_groups if 1 < world_size <= row_groups else 0
    if run < 2:
        return lambda number: number % world_size == rank
    rest = chunks % (run * world_size)

    def mine(number: int) -> bool:
        behind = number - (chunks - rest)
        owner = number // run % world_size if behind < 0 else behind * world_size // rest
        return owner == rank

    return mine


def paced(tell: Tell, rows: int, mine: Mine) -> Tell:
    """Return a function that tells how far a process is among its own rows, as a part of all.

    The position in the input would say nothing where the share of a process is the beginning.

    Args:
        tell: Is called with positions that are rows.
        rows: Of the input.
        mine: Which chunks are for the process.
    """
    ends = np.minimum(np.arange(0, rows + files.CHUNK_ROWS, files.CHUNK_ROWS), rows)
    is_own = [mine(number) for number in range(len(ends) - 1)]
    own = np.cumsum([0, *(np.diff(ends) * is_own)])
    if own[-1] in (0, rows):
        return tell

    def told(position: float, _: int) -> None:
        done = round(float(np.interp(position, ends, own)) * rows / own[-1])
        tell(done, done)

    return told
