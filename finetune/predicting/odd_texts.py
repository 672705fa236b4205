"""What is told of texts to predict that training would tell too: null bytes, and rows that ran
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from finetune.checking.texts import LONG, find_far_longer
from finetune.errors import counted


def count(values: Sequence[Any]) -> tuple[int, int]:
    """Return how many values of a chunk have null bytes, and how many are far longer than most.

    Args:
        values: What the model reads of each row: a text, or a tuple of several; others are no
            texts.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    texts = [[each for each in row if isinstance(each, str)] for row in rows]
    is_long, _ = find_far_longer(np.array([sum(map(len, row)) for row in texts], dtype=np.int64))
    return sum(any("\0" in each for each in row) for row in texts), int(is_long.sum())


def notes(null_bytes: int, too_long: int) -> Iterator[str]:
    """Yield a sentence for each kind of odd text, by how many rows have such."""
    if null_bytes:
        yield (
            f"{counted(null_bytes, 'row')} with null bytes, which no text has unless its file was "
            "damaged: export it again, or remove these bytes"
        )
    if too_long:
        yield (
            f"{counted(too_long, 'row')} with a text of more than {LONG:,} characters, far "
            "longer than the others: did rows run together, by a quotation mark that is never "
            "closed for instance?"
        )
