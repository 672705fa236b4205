"""How well the probabilities of a label rank the rows: average precision, of one label or of all.

The intervals are those of the jackknife (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 11), which leaves each row out once: after one sort of the rows that takes a few sums.
Labels share their rows, and so do two models, so that what a row changes is added up over labels
and subtracted between models. The average precision of few rows is too high by itself, and the
intervals lie around the value without that bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm, t

from finetune.data.label_columns import list_names
from finetune.statistics import intervals
from finetune.statistics.counts import divide
from finetune.statistics.intervals import LEVEL, UNDEFINED, Interval
from finetune.statistics.scored import OneVsRest, ScoredLabels

#: Rows that have a label, and that have not, below which the mean over the labels has no interval:
#: of fewer it covers less than 93% (see tests/test_multi_label_statistics.py).
FEWEST_ROWS = 20
_UPPER = (1 + LEVEL) / 2
_TINY = 1e-9
Labels = ScoredLabels | OneVsRest


@dataclass(frozen=True)
class Jackknife:
    """An average precision, or a mean of several.

    Attributes:
        value: On all rows.
        without: Without each row, shape ``(rows,)``.
    """

    value: float
    without: np.ndarray

    @property
    def bias(self) -> float:
        """How much too high the value is."""
        return float((len(self.without) - 1) * (self.without.mean() - self.value))

    @property
    def deviation(self) -> float:
        """The standard error of the value."""
        return float(np.sqrt((len(self.without) - 1) * self.without.var()))


def of_label(scores: np.ndarray, has: np.ndarray) -> Interval:
    """Return the average precision of one label, with an interval that is symmetric in the
    log-odds, by Student's distribution for the rows that have the label; where no row without it is
    above one with it, Wilson's of as many rows.

    Args:
        scores: Probabilities, or others that rank the rows, shape ``(rows,)``.
        has: Whether a row has the label, shape ``(rows,)``; some rows have it.
    """
    return _on_the_logit_scale(jackknife(scores, has), int(has.sum()))


def mean(rows: Labels) -> Interval:
    """Return the mean over the labels that some rows have and others have not; NaN without one.

    The interval is that of :func:`of_label` with the rows of the rarest label. Its ends are NaN if
    fewer than :data:`FEWEST_ROWS` have, or have not, one of these labels.
    """
    found, rarest = _mean(rows), _rarest(rows)
    if found is None:
        return UNDEFINED
    if rarest < FEWEST_ROWS:
        return Interval(found.value, float("nan"), float("nan"))
    return _on_the_logit_scale(found, rarest)


def difference(first: Labels, second: Labels) -> Interval:
    """Return how much higher that mean is for the second model on the same rows."""
    one, other = _mean(first), _mean(second)
    if one is None or other is None:
        return UNDEFINED
    gap = Jackknife(other.value - one.value, other.without - one.without)
    if _rarest(first) < FEWEST_ROWS:
        return Interval(gap.value, float("nan"), float("nan"))
    reach, middle = norm.ppf(_UPPER) * gap.deviation, gap.value - gap.bias
    low, high = min(gap.value, middle - reach), max(gap.value, middle + reach)
    return Interval(gap.value, float(max(-1.0, low)), float(min(1.0, high)))


def remarks(name: str, rows: Labels) -> list[str]:
    """Return what to know of :func:`mean`: the labels that it leaves out, or lack rows for an
    interval.

    Args:
        name: Of the metric.
        rows: What it is computed of.
    """
    counts, left = rows.supports, _defined(rows)
    if not left.any():
        return [f"{name} is not defined: no label is that of some test rows and not of others"]
    found = []
    if not left.all():
        found.append(
            f"{name} is the mean over {int(left.sum()):,} of {len(left):,} labels: every test row, "
            f"or none, has {list_names([*np.array(rows.names)[~left]])}"
        )
    few = left & (np.minimum(counts, len(rows) - counts) < FEWEST_ROWS)
    if few.any():
        found.append(
            f"{name} has no confidence interval: fewer than {FEWEST_ROWS} test rows have, or have "
            f"not, {list_names([*np.array(rows.names)[few]])}"
        )
    return found


def jackknife(scores: np.ndarray, has: np.ndarray) -> Jackknife:
    """Return the average precision as scikit-learn has it, and that without each row; the only row
    of a label is never left out. Arguments are those of :func:`of_label`.
    """
    ranked = np.sort(scores[has])
    levels, gained = np.unique(ranked, return_counts=True)  # equal scores are one threshold
    total = len(ranked)
    positive = (total - np.searchsorted(ranked, levels)).astype(np.float64)
    # the levels at or below each row: without the row, so many thresholds have one row fewer
    reached = np.searchsorted(levels, scores, "right")
    above = len(scores) - np.cumsum(np.bincount(reached, minlength=len(levels)))[: len(levels)]
    parts = gained * positive / above
    value = float(parts.sum() / total)
    higher = np.append(np.cumsum(parts[::-1])[::-1], 0.0)

    def below(numerators: np.ndarray) -> np.ndarray:
        """Sum over the levels before each one; the last has them all."""
        return np.append(0.0, np.cumsum(divide(gained * numerators, above - 1.0)))

    of_negative = below(positive) + higher
    place = np.arange(len(levels))
    own = divide((gained - 1) * (positive - 1), above - 1.0)
    of_positive = below(positive - 1)[place] + own + higher[place + 1]
    without = of_negative[reached] / total
    chosen = reached[has] - 1
    without[has] = of_positive[chosen] / (total - 1) if total > 1 else value
    return Jackknife(value, without)


def _defined(rows: Labels) -> np.ndarray:
    """Return which labels some rows have and others have not, shape ``(labels,)``."""
    return np.asarray((rows.supports > 0) & (rows.supports < len(rows)))


def _rarest(rows: Labels) -> int:
    """Return how many rows have the rarest of these labels, or have not the most frequent one."""
    counts = rows.supports[_defined(rows)]
    return int(np.minimum(counts, len(rows) - counts).min(initial=len(rows)))


def _mean(rows: Labels) -> Jackknife | None:
    values, without = [], np.zeros(len(rows))
    for (scores, has), is_defined in zip(rows.columns(), _defined(rows), strict=True):
        if is_defined:
            found = jackknife(scores, has)
            values.append(found.value)
            without += found.without
    return Jackknife(float(np.mean(values)), without / len(values)) if values else None


def _on_the_logit_scale(found: Jackknife, positives: int) -> Interval:
    value, deviation = found.value, found.deviation
    if value > 1 - _TINY or deviation < _TINY:
        return intervals.of_share(value * positives, positives)
    middle = float(np.clip(value - found.bias, _TINY, 1 - _TINY))
    reach = t.ppf(_UPPER, max(1, positives - 1)) * deviation / (middle * (1 - middle))
    low, high = expit(logit(middle) - reach), expit(logit(middle) + reach)
    return Interval(value, float(min(value, low)), float(max(value, high)))
