"""Two classifiers on the same rows: is one better, or was it luck?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from finetune.statistics import counts, estimates
from finetune.statistics.counts import Function
from finetune.statistics.estimates import Estimate

#: Of fewer rows with different predictions, all may favour one model by chance in 1 of 20 cases.
_FEWEST_DIFFERING = 6


@dataclass(frozen=True)
class McNemar:
    """How many rows only one of two models gets right, and how probable a split at least as uneven
    is if neither is better.
    """

    only_first: int
    only_second: int
    p_value: float


def mcnemar(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> McNemar:
    """Return the exact test of McNemar (Psychometrika 12, 1947) for a difference in accuracy; true
    and predicted classes have shape ``(rows,)``.
    """
    _, only_first, only_second, _ = _table(labels, first, second)
    discordant = only_first + only_second
    p_value = float(binomtest(only_first, discordant).pvalue) if discordant else 1.0
    return McNemar(only_first, only_second, p_value)


def difference(
    function: Function, labels: np.ndarray, first: np.ndarray, second: np.ndarray, classes: int
) -> Estimate:
    """Return how much higher a metric of counts is for the second model; of accuracy, Newcombe's
    interval.

    Args:
        function: Of tallies, see :mod:`finetune.statistics.counts`.
        labels: The true classes, shape ``(rows,)``.
        first: Predictions of the first model, shape ``(rows,)``.
        second: Predictions of the second.
        classes: How many there are.
    """
    if function is counts.accuracy:
        return accuracy_difference(labels, first, second)
    before, after = (
        counts.Tallies.of(labels, predicted, classes).measure(function)
        for predicted in (first, second)
    )
    gap = (after - before).difference()
    if int((first != second).sum()) < _FEWEST_DIFFERING:
        return Estimate(gap.value, min(gap.low, 0.0), max(gap.high, 0.0))
    return gap


def accuracy_difference(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> Estimate:
    """Return Newcombe's interval for the difference of paired shares (Statistics in Medicine 17,
    1998, method 10), which has a width where all rows that differ favour one model.
    """
    both, only_first, only_second, neither = _table(labels, first, second)
    right, rows = (both + only_first, both + only_second), len(labels)
    before, after = (estimates.share(float(hits), rows) for hits in right)
    together = both * neither - only_first * only_second
    if together > 0:  # the correction for continuity of the correlation
        together = max(0, together - rows // 2)
    margins = float(right[0]) * (rows - right[0]) * right[1] * (rows - right[1])
    correlation = together / np.sqrt(margins) if margins else 0.0

    def reach(up: float, down: float) -> float:
        return float(np.sqrt(max(0.0, up**2 - 2 * correlation * up * down + down**2)))

    gap = after.value - before.value
    return Estimate(
        gap,
        gap - reach(after.value - after.low, before.high - before.value),
        gap + reach(after.high - after.value, before.value - before.low),
    )


def _table(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> list[int]:
    """Return how many rows both get right, only the first, only the second, and neither."""
    kinds = 2 * (first != labels) + (second != labels)
    return [int(count) for count in np.bincount(kinds, minlength=4)]
