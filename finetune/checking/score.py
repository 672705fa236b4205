"""What a score owes to test rows that resemble training rows."""

from __future__ import annotations

import math

import numpy as np

from finetune.checking.bag import Bag
from finetune.data import near, targets
from finetune.data.near import Part
from finetune.errors import Finding, Severity, counted
from finetune.statistics import intervals

#: Test rows like training rows, and others, below which there is nothing to compare.
_FEWEST = 20


def findings(bag: Bag, *, is_split_off: bool) -> list[Finding]:
    """Return how a bag of words scores on all test rows, and on those that resemble no training
    row.

    Args:
        bag: Of rows with one class each.
        is_split_off: Whether the test rows were split off the training rows.
    """
    train, test = (
        Part(rows, np.arange(len(rows))) for rows in (bag.splits["train"], bag.splits["test"])
    )
    alike = near.resembling([train], test, bag.column, within=False).row >= 0
    if min(alike.sum(), (~alike).sum()) < _FEWEST:
        return []
    predicted = bag.predicted()
    if predicted is None:
        return []
    right = predicted == targets.strata(test.rows)
    low, high = _difference(right[alike], right[~alike])
    gain = right.mean() - right[~alike].mean()
    severity: Severity = "warning" if low > 0 else "info"
    return [
        Finding(
            name="score_of_resembling_rows",
            severity=severity,
            message=f"a bag of words has accuracy {right.mean():.3f} on all "
            f"{counted(len(right), 'test row')}, and {right[~alike].mean():.3f} without the "
            f"{alike.sum():,} that are nearly the same as a training row (difference {gain:+.3f}, "
            f"95% CI {low:+.3f} to {high:+.3f})",
            fix=f"{'--drop_duplicates' if is_split_off else '--drop_overlap'} near",
            count=int(alike.sum()),
            examined=len(right),
        )
    ]


def _difference(alike: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Return the ends of the interval of the difference of the shares of all and of others: that of
    two shares by Newcombe's method (Statistics in Medicine 17, 1998), as much as there are alike.
    """
    one, other = (intervals.of_share(float(each.sum()), len(each)) for each in (alike, others))
    difference = one.value - other.value
    low = difference - math.hypot(one.value - one.low, other.high - other.value)
    high = difference + math.hypot(one.high - one.value, other.value - other.low)
    share = len(alike) / (len(alike) + len(others))
    return share * low, share * high
