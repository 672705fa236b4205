"""What is told of texts to predict that training would tell too: null bytes, and rows that ran
together.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from finetune.checking.texts import LONG, TIMES_LONGER
from finetune.errors import counted


def count(values: Sequence[Any]) -> tuple[int, int]:
    """Return how many values of a chunk have null bytes, and how many are far longer than most.

    Args:
        values: What the model reads of each row: a text, or a tuple of several; others are no
            texts.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    texts = [[each for each in row if isinstance(each, str)] for row in rows]
    lengths = [sum(map(len, row)) for row in texts]
    far_longer = 0
    if max(lengths, default=0) > LONG:
        usual = statistics.median(filter(None, lengths))
        far_longer = sum(each > max(LONG, TIMES_LONGER * usual) for each in lengths)
    return sum(any("\0" in each for each in row) for row in texts), far_longer


def notes(null_bytes: int, far_longer: int) -> Iterator[str]:
    """Yield a sentence for each kind of odd text, by how many rows have such."""
    if null_bytes:
        yield (
            f"{counted(null_bytes, 'row')} with null bytes, which no text has unless its file was "
            "damaged: export it again, or remove these bytes"
        )
    if far_longer:
        yield (
            f"{counted(far_longer, 'row')} with a text of more than {LONG:,} characters, far "
            "longer than the others: did rows run together, by a quotation mark that is never "
            "closed for instance?"
        )
