"""How long the texts are for the model, and how many are cut."""

from __future__ import annotations

import math

import numpy as np

from finetune.errors import Finding

#: Rows that are tokenized to know the lengths of all.
SAMPLE = 2000
#: The share of texts cut from which on it is suspicious, and that which the advice would cut.
_MUCH, _ADVISED = 0.25, 0.01


def findings(
    lengths: np.ndarray, rows: int, max_length: int, positions: int | None
) -> list[Finding]:
    """Return how many texts are cut, and what would cut fewer.

    Args:
        lengths: Tokens of each text that was sampled, not cut, special tokens included.
        rows: How many texts there are.
        max_length: Tokens that are kept.
        positions: Tokens that the model can read; None without a limit.
    """
    share = float((lengths > max_length).mean())
    about = "about " if len(lengths) < rows else ""
    middle, high, longest = (int(each) for each in np.quantile(lengths, [0.5, 0.95, 1]))
    message = (
        f"training texts have {middle:,} tokens (median), 95% up to {high:,}, the longest "
        f"{'of the sample ' if about else ''}{longest:,}; "
        f"{f'{about}{share:.1%} are' if share else 'none is'} cut at --max_length {max_length}"
    )
    wanted = math.ceil(float(np.quantile(lengths, 1 - _ADVISED)) / 8) * 8
    fix = ""
    if share > _ADVISED:
        fits = positions is None or wanted <= positions
        fix = f"--max_length {wanted} cuts 1%" if fits else "--long_texts windows reads all of them"
    return [
        Finding(
            name="lengths",
            severity="warning" if share > _MUCH else "info",
            message=message,
            fix=fix,
            count=round(share * rows),
            examined=rows,
        )
    ]
