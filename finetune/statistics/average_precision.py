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

from finetune.statistics import intervals
from finetune.statistics.counts import divide
from finetune.statistics.intervals import LEVEL, Interval
from finetune.statistics.scored import ScoredLabels

_UPPER = (1 + LEVEL) / 2
_TINY = 1e-9


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


def mean(rows: ScoredLabels) -> Interval | None:
    """Return the mean over the labels that some rows have, but not all; None if there are none."""
    found = _mean(rows)
    return None if found is None else _on_the_logit_scale(found, int(rows.labels.sum()))


def difference(first: ScoredLabels, second: ScoredLabels) -> Interval | None:
    """Return how much higher that mean is for the second model on the same rows."""
    one, other = _mean(first), _mean(second)
    if one is None or other is None:
        return None
    gap = Jackknife(other.value - one.value, other.without - one.without)
    reach, middle = norm.ppf(_UPPER) * gap.deviation, gap.value - gap.bias
    low, high = min(gap.value, middle - reach), max(gap.value, middle + reach)
    return Interval(gap.value, float(max(-1.0, low)), float(min(1.0, high)))


def jackknife(scores: np.ndarray, has: np.ndarray) -> Jackknife:
    """Return the average precision as scikit-learn has it, and that without each row; the only row
    of a label is never left out. Arguments are those of :func:`of_label`.
    """
    order = np.argsort(-scores, kind="stable")
    sure, right = scores[order], has[order]
    last = np.append(np.flatnonzero(np.diff(sure)), len(sure) - 1)  # equal ones: one threshold
    place = np.searchsorted(last, np.arange(len(sure)))
    above, positive = last + 1.0, np.cumsum(right)[last].astype(np.float64)
    gained, total = np.diff(positive, prepend=0), positive[-1]
    parts = gained * positive / above
    before = np.cumsum(parts) - parts

    def after(numerators: np.ndarray) -> np.ndarray:
        shares = divide(gained * numerators, above - 1)
        return np.asarray(np.cumsum(shares[::-1])[::-1] - shares)

    a_negative = before + divide(gained * positive, above - 1) + after(positive)
    a_positive = before + divide((gained - 1) * (positive - 1), above - 1) + after(positive - 1)
    value = float(parts.sum() / total)
    of_positive = a_positive[place] / (total - 1) if total > 1 else value
    without = np.empty(len(sure))
    without[order] = np.where(right, of_positive, a_negative[place] / total)
    return Jackknife(value, without)


def _mean(rows: ScoredLabels) -> Jackknife | None:
    values, without = [], np.zeros(len(rows))
    for label in np.flatnonzero(rows.labels.any(axis=0) & ~rows.labels.all(axis=0)):
        found = jackknife(rows.probabilities[:, label], rows.labels[:, label])
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
