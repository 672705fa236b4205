"""Cut rows into batches of a token budget, padding included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Rows are padded to a multiple of this many tokens: matrix products are faster for it.
PADDED_TO = 8


def cut(lengths: Sequence[int] | np.ndarray, budget: int) -> list[int]:
    """Return the number of rows of each batch, in order.

    Args:
        lengths: Tokens of each row, the longest first.
        budget: Tokens per batch, rows padded to its first; a longer row is a batch of its own.
    """
    sizes, start = list[int](), 0
    while start < len(lengths):
        sizes.append(min(max(1, budget // max(1, int(lengths[start]))), len(lengths) - start))
        start += sizes[-1]
    return sizes


def split(order: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Split ``order`` into batches of these sizes."""
    return np.split(order, np.cumsum(sizes)[:-1]) if sizes else []


def lengths_of(rows: Any, column: str) -> np.ndarray | None:
    """Return the column that holds the length of each row, shape ``(rows,)``; None without one."""
    if column not in (getattr(rows, "column_names", None) or ()):
        return None
    return np.asarray(rows[column][:])


def padded(lengths: Sequence[int] | np.ndarray, multiple: int = PADDED_TO) -> np.ndarray:
    """Return the padded length of each row, shape ``(rows,)``."""
    return -(-np.asarray(lengths) // multiple) * multiple
