"""How well the probabilities rank the rows: areas under the ROC and the precision-recall curve.

Of several classes each is taken against the rest, and the mean over the classes is unweighted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import norm

from finetune.statistics import average_precision, blocks, intervals
from finetune.statistics.blocks import Probabilities
from finetune.statistics.intervals import LEVEL, UNDEFINED, Interval
from finetune.statistics.resampling import Scoring, module_of
from finetune.statistics.scored import ScoredRows

_FEWEST_ROWS = 100
_TINY = 1e-9
_REACH = norm.ppf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Areas:
    """Areas under the ROC curve (how probable it is that a row of the class has a higher
    probability of it than another row) and under the precision-recall curve (average precision;
    of a random order it is the share of the class).
    """

    roc: Interval
    precision_recall: Interval


@dataclass(frozen=True)
class Ranked:
    """A metric of how probabilities rank rows, as the mean over the classes that it is defined of.

    Attributes:
        of: Of one model; :data:`~finetune.statistics.intervals.UNDEFINED` if it is of no class.
        difference: How much more the second of two models has on the same rows, likewise.
    """

    of: Callable[[ScoredRows], Interval]
    difference: Callable[[ScoredRows, ScoredRows], Interval]


def of_scoring(scoring: Scoring) -> dict[str, Ranked]:
    """Return those of the local metrics that are rankings, averaged over the classes."""
    found = {name: module_of(name, each) for name, each in scoring.items()}
    return {
        name: METRICS[module]
        for name, (module, arguments) in found.items()
        if module in METRICS and arguments in ({}, {"average": "macro"})
    }


@dataclass(frozen=True)
class Sweep:
    """What one pass over the classes gives.

    Attributes:
        classes: The areas of each class; None of one that no row, or every row, has.
        influences: What each row adds to the error of the mean area under the ROC curves, shape
            ``(rows,)``.
        area: That mean over the classes that have one, of two classes that of the second; None
            without any.
    """

    classes: list[Areas | None]
    influences: np.ndarray
    area: float | None


def sweep(rows: ScoredRows) -> Sweep:
    """Go through the classes of rows; see :meth:`~finetune.statistics.scored.ScoredRows.once`."""
    return swept(rows.probabilities, rows.labels)


def swept(probabilities: Probabilities, labels: np.ndarray) -> Sweep:
    """Return the areas of each class against the rest, and of their mean.

    Args:
        probabilities: Shape ``(rows, classes)``.
        labels: The true classes, shape ``(rows,)``.
    """
    found, total, areas = list[Areas | None](), np.zeros(len(labels)), []
    for number, scores in enumerate(blocks.columns(probabilities)):
        own = np.flatnonzero(labels == number)
        if not 0 < len(own) < len(labels):
            found.append(None)
            continue
        influences, area, precision = _ranked(scores, own)
        roc = _roc(area, influences, len(own), len(labels) - len(own))
        found.append(Areas(roc, _binomial(precision, len(own))))
        if number or probabilities.shape[1] != 2:  # of two classes, both have the same curve
            total += influences
            areas.append(area)
    if not areas:
        return Sweep(found, total, None)
    return Sweep(found, total / len(areas), float(np.mean(areas)))


def mean_roc(found: Sweep, labels: np.ndarray) -> Interval | None:
    """Return the mean of the areas under the ROC curves of the classes; None if no class has one.

    The classes share their rows, so the variance is that of the mean of their components.

    Args:
        found: Of all classes.
        labels: The true classes, shape ``(rows,)``.
    """
    if found.area is None:
        return None
    influences, area = found.influences, found.area
    supports = np.bincount(labels)
    supports = supports[supports > 0]
    if len(supports) > 2 and influences.any():  # together they are enough, if each has few rows
        return _on_the_logit_scale(area, float(np.linalg.norm(influences)))
    return _roc(area, influences, supports[-1], len(labels) - supports[-1])


def mean_roc_difference(first: Sweep, second: Sweep) -> Interval | None:
    """Return how much larger the mean area of the second model is on the same rows (DeLong et al.,
    1988).
    """
    if first.area is None or second.area is None:
        return None
    gap = second.area - first.area
    reach = _REACH * float(np.linalg.norm(second.influences - first.influences))
    return Interval(gap, max(-1.0, gap - reach), min(1.0, gap + reach))


def _ranked(scores: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return what each row adds to the error of the area under the ROC curve, that area, and the
    average precision.

    The structural components of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), ties as
    halves, each divided so that the sum of the squares is the variance of the area. Only the rows
    of the class are sorted: of many classes each has few.

    Args:
        scores: Probabilities of the class, shape ``(rows,)``.
        own: The indices of its rows.
    """
    of_own = scores[own]
    order = np.argsort(of_own, kind="stable")
    ranked, count, rest = of_own[order], len(own), len(scores) - len(own)
    # rows of the class below each row, and those at most as high; then the other way round
    less, upto = (np.searchsorted(ranked, scores, side) for side in ("left", "right"))
    until, under = (np.cumsum(np.bincount(each, minlength=count + 1)) for each in (less, upto))
    own_less, own_upto = less[own][order], upto[own][order]
    under, until = under[:count] - own_less, until[:count] - own_upto
    beaten = np.empty(count)
    beaten[order] = (under + until) / 2 / rest
    area = float(beaten.mean())
    by_own = (less + upto) / 2 / count
    mean = float(by_own.sum() - by_own[own].sum()) / rest
    # a row that is not of the class is right below, not above
    influences = (mean - by_own) / np.sqrt(rest * max(1, rest - 1))
    influences[own] = (beaten - area) / np.sqrt(count * max(1, count - 1))
    hits = count - own_less
    return influences, area, float(np.mean(hits / (hits + rest - under)))


def _roc(area: float, influences: np.ndarray, ones: float, zeros: float) -> Interval:
    """DeLong's interval on the scale of the log-odds; of few rows of the class or few others, or
    without any error, that of Newcombe (Statistics in Medicine 25, 2006, method 5), which then
    holds the truth and this not.
    """
    deviation = float(np.linalg.norm(influences))
    if min(ones, zeros) >= _FEWEST_ROWS and deviation > 0:
        return _on_the_logit_scale(area, deviation)
    pairs, others = ones * zeros, (ones + zeros) / 2 - 1

    def apart(truth: float) -> float:
        """Negative where the area is nearer to the truth than the interval reaches."""
        spread = 1 + others * ((1 - truth) / (2 - truth) + truth / (1 + truth))
        return float((area - truth) ** 2 - _REACH**2 * truth * (1 - truth) * spread / pairs)

    low = brentq(apart, 0.0, area - _TINY) if area - _TINY > 0 and apart(0.0) > 0 else 0.0
    high = brentq(apart, area + _TINY, 1.0) if area + _TINY < 1 and apart(1.0) > 0 else 1.0
    return Interval(area, low, high)


def _on_the_logit_scale(value: float, deviation: float) -> Interval:
    """Symmetric in the log-odds, so that it stays between 0 and 1."""
    if not 0 < value < 1 or deviation == 0:
        return Interval(value, value, value)
    reach = _REACH * deviation / (value * (1 - value))
    return Interval(value, float(expit(logit(value) - reach)), float(expit(logit(value) + reach)))


def _binomial(precision: float, positives: int) -> Interval:
    """Return the logit interval of Boyd, Eng and Page (ECML PKDD 2013) for an average precision;
    of 1, where it has no width, Wilson's.
    """
    if precision > 1 - _TINY:  # the sum of its parts may be a rounding above
        return intervals.of_share(positives, positives)
    return _on_the_logit_scale(precision, float(np.sqrt(precision * (1 - precision) / positives)))


#: By the names of the folders in ``metrics/``.
METRICS: Mapping[str, Ranked] = {
    "roc_auc": Ranked(
        lambda rows: mean_roc(rows.once(sweep), rows.labels) or UNDEFINED,
        lambda first, second: (
            mean_roc_difference(first.once(sweep), second.once(sweep)) or UNDEFINED
        ),
    ),
    "average_precision": Ranked(
        lambda rows: average_precision.mean(rows.one_vs_rest),
        lambda first, second: average_precision.difference(first.one_vs_rest, second.one_vs_rest),
    ),
}
