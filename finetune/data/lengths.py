"""Cut rows into batches of similar length, with a budget of tokens that counts padding.

Torch is not imported: an export answers without it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Rows are padded to a multiple of this many tokens, which makes matrix products faster.
PADDED_TO = 8


def default_budget(device_type: str) -> int:
    """Return the tokens of a batch in a prediction, padding included."""
    # on a CPU the activations of a layer then nearly fit into its cache
    return 1024 if device_type == "cpu" else 65_536


def cut(lengths: Sequence[int] | np.ndarray, budget: int, max_rows: int | None = None) -> list[int]:
    """Return the number of rows of each batch, for rows sorted by length, longest first.

    The rows of a batch are padded to its first one. A batch has at most ``budget`` tokens, unless
    a single row has more: such a row is a batch of its own.
    """
    sizes = list[int]()
    start = 0
    while start < len(lengths):
        rows = max(1, budget // max(1, int(lengths[start])))
        sizes.append(min(rows, max_rows or rows, len(lengths) - start))
        start += sizes[-1]
    return sizes


def cut_by_length(
    lengths: np.ndarray, budget: int, max_rows: int | None = None
) -> list[np.ndarray]:
    """Return the numbers of the rows of each batch, see :func:`cut`, the longest rows first."""
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, np.cumsum(cut(lengths[order], budget, max_rows), dtype=int))[:-1]


def lengths_of(rows: Any, column: str) -> np.ndarray | None:
    """Return the lengths in ``column``, shape ``(rows,)``; None if there is no such column."""
    if column not in (getattr(rows, "column_names", None) or ()):
        return None
    return np.asarray(rows[column][:])


def padded(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return ``lengths`` rounded up to a multiple of :data:`PADDED_TO`, shape ``(rows,)``."""
    return -(-np.asarray(lengths) // PADDED_TO) * PADDED_TO
