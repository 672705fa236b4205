"""Deal the chunks of an input to processes, the same on each of them, and tell how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from finetune.data import files
from finetune.data.files import Mine

#: Takes the position in the input and the rows that are done.
Tell = Callable[[float, int], object]


def dealt(rank: int, world_size: int, row_groups: Sequence[int] = ()) -> Mine:
    """Return which chunks are for a process: every n-th one.

    Where there are as many row groups as processes, those that begin in a row group are for the
    process that has the fewest so far, up to an equal share of all, and what is left for the next
    one: so each reads few of the groups. No process has more chunks than its share, rounded up.

    Args:
        rank: Of the process.
        world_size: The number of processes.
        row_groups: The rows of each row group of the input, if it has any.
    """
    if world_size == 1 or len(row_groups) < world_size:
        return lambda number: number % world_size == rank
    ends = [-(-int(end) // files.CHUNK_ROWS) for end in np.cumsum(row_groups)]
    owners, counts = np.empty(ends[-1], dtype=np.int32), [0] * world_size
    most, start = -(-ends[-1] // world_size), 0
    for end in ends:
        while start < end:
            owner = counts.index(min(counts))
            count = min(end - start, most - counts[owner])
            owners[start : start + count] = owner
            counts[owner] += count
            start += count
    return lambda number: bool(owners[number] == rank)


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
