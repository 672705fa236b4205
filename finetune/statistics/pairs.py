"""Two models on the same rows: is one better, or was it luck?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np
from scipy.stats import binomtest

from finetune.statistics import counts, intervals
from finetune.statistics.intervals import Interval, Metric

#: Of fewer rows with different predictions, all may favour one model by chance in 1 of 20 cases.
_FEWEST_APART = 6


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
    apart = only_first + only_second
    p_value = float(binomtest(only_first, apart).pvalue) if apart else 1.0
    return McNemar(only_first, only_second, p_value)


def difference(
    metrics: Mapping[str, Metric],
    labels: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    classes: int,
    draws: int = intervals.DRAWS,
    seed: int = intervals.SEED,
) -> dict[str, Interval]:
    """Return how much higher each metric of counts is for the second model, by the paired
    bootstrap; of accuracy, Newcombe's interval.

    Both are measured on the same drawn rows, so what is hard for both does not widen the interval.

    Args:
        metrics: Each from tallies, shape ``(draws, 5, classes)``, to shape ``(draws,)``: see
            :func:`finetune.statistics.counts.tallies`.
        labels: The true classes, shape ``(rows,)``.
        first: Predictions of the first model, shape ``(rows,)``.
        second: Predictions of the second.
        classes: How many there are.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    kinds, numbers = np.unique(np.stack([labels, first, second]), axis=1, return_counts=True)

    chosen = {name: each for name, each in metrics.items() if each is not counts.accuracy}
    found = {name: accuracy_difference(labels, first, second) for name in metrics}

    places = [counts.placement(kinds[0], said, classes) for said in kinds[1:]]

    def tallies(drawn: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(drawn @ each).reshape(len(drawn), 5, classes) for each in places]

    wholes = [each[0] for each in tallies(numbers[None])]

    def gains(drawn: np.ndarray) -> np.ndarray:
        pair = list(zip(tallies(drawn), wholes, strict=True))
        one, other = (
            np.stack([counts.resampled(metric, whole)(found) for metric in chosen.values()])
            for found, whole in pair
        )
        return np.asarray(other - one)

    if chosen:
        drawn = intervals.of_counts(gains, numbers, 10 * classes, draws, seed)
        found |= zip(chosen, drawn, strict=True)
    if int(numbers[kinds[1] != kinds[2]].sum()) < _FEWEST_APART:
        for name in chosen:
            value, low, high = astuple(found[name])
            found[name] = Interval(value, min(low, 0.0), max(high, 0.0))
    return found


def _table(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> list[int]:
    """How many rows both get right, only the first, only the second, and neither."""
    kinds = 2 * (first != labels) + (second != labels)
    return [int(each) for each in np.bincount(kinds, minlength=4)]


def accuracy_difference(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> Interval:
    """Newcombe's interval for the difference of paired shares (Statistics in Medicine 17, 1998,
    method 10). The bootstrap of a few rows on which only one is right, all of them one way, would
    never draw the other way.
    """
    both, only_first, only_second, neither = _table(labels, first, second)
    right, rows = (both + only_first, both + only_second), len(labels)
    before, after = (intervals.of_share(float(each), rows) for each in right)
    together = both * neither - only_first * only_second
    if together > 0:  # the correction for continuity of the correlation
        together = max(0, together - rows // 2)
    margins = float(right[0]) * (rows - right[0]) * right[1] * (rows - right[1])
    alike = together / np.sqrt(margins) if margins else 0.0

    def reach(up: float, down: float) -> float:
        return float(np.sqrt(max(0.0, up**2 - 2 * alike * up * down + down**2)))

    gap = after.value - before.value
    return Interval(
        gap,
        gap - reach(after.value - after.low, before.high - before.value),
        gap + reach(after.high - after.value, before.value - before.low),
    )
