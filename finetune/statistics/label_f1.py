"""Confidence intervals of micro and macro F1 of several labels a row, of one model, or of how much
more a second one has.

F1 is ``2 J / (1 + J)`` of the Jaccard index J: of the rows that have a label or are given it, the
share that both is true of. An interval of a mean of shares is that of Price and Bonett
(Computational Statistics & Data Analysis 45, 2004): two rows that are right and two that are not,
divided among the labels and models, are added before its variance is estimated, so that it has a
width where all or none are right. That labels and models share their rows is in the variance.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from finetune.statistics.counts import divide
from finetune.statistics.intervals import LEVEL, Interval

_REACH = norm.ppf((1 + LEVEL) / 2)
_ADDED = 2.0


def micro(has: np.ndarray, *given: np.ndarray) -> Interval:
    """Return F1 over all rows and labels.

    Args:
        has: Which labels each row has, shape ``(rows, labels)``, of booleans.
        *given: Which it is given, by one model, or by two that are compared.
    """
    pairs = [((has & one).sum(axis=1), (has | one).sum(axis=1)) for one in given]
    return _mean([(both[:, None], either[:, None]) for both, either in pairs])


def macro(has: np.ndarray, *given: np.ndarray) -> Interval:
    """Return the mean F1 of the labels; arguments are those of :func:`micro`."""
    return _mean([(has & one, has | one) for one in given])


def _mean(models: list[tuple[np.ndarray, np.ndarray]]) -> Interval:
    """Return the mean F1 of groups of entries, of the last model less that of the first.

    Args:
        models: Of each, how many entries of a group are right in each row, and how many there are,
            shape ``(rows, groups)``.
    """
    value = middle = variance = 0.0
    changes, groups = np.zeros(len(models[0][0])), models[0][0].shape[1]
    added = _ADDED / (len(models) * groups)
    for sign, (both, either) in zip((-1, 1)[-len(models) :], models, strict=True):
        right, entries = both.sum(axis=0), either.sum(axis=0)
        share, smooth = divide(right, entries), (right + added) / (entries + 2 * added)
        value += sign * _f1(share).mean()
        middle += sign * _f1(smooth).mean()
        variance += (_variance(smooth, entries + 2 * added) - _variance(share, entries)).sum()
        changes += sign * (divide(both - share * either, entries) * _slope(share)).sum(axis=1)
    together = (changes**2).sum()
    reach = _REACH * np.sqrt(max(together + variance, together)) / groups
    least = 1.0 - len(models)
    low, high = max(least, middle - reach), min(1.0, middle + reach)
    return Interval(float(value), float(min(value, low)), float(max(value, high)))


def _f1(share: np.ndarray) -> np.ndarray:
    return np.asarray(2 * share / (1 + share))


def _slope(share: np.ndarray) -> np.ndarray:
    return np.asarray(2 / (1 + share) ** 2)


def _variance(share: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return the variance of F1 where entries are drawn one by one."""
    return np.asarray(_slope(share) ** 2 * divide(share * (1 - share), entries))
