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
from sklearn.metrics import average_precision_score

from finetune.statistics import average_precision, intervals
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


def of_classes(probabilities: np.ndarray, labels: np.ndarray) -> list[Areas | None]:
    """Return the areas of each class against the rest; None of a class that no row, or every row,
    has.

    Args:
        probabilities: Shape ``(rows, classes)``.
        labels: The true classes, shape ``(rows,)``.
    """
    return [of_class(scores, labels == each) for each, scores in enumerate(probabilities.T)]


def mean_roc(probabilities: np.ndarray, labels: np.ndarray) -> Interval | None:
    """Return the mean of the areas under the ROC curves of the classes; None if no class has one.

    The classes share their rows, so the variance is that of the mean of their components. Shapes
    are those of :func:`of_classes`.
    """
    found = _mean_influences(probabilities, labels)
    if found is None:
        return None
    influences, area = found
    supports = np.bincount(labels)
    supports = supports[supports > 0]
    if len(supports) > 2 and influences.any():  # together they are enough, if each has few rows
        return _on_the_logit_scale(area, float(np.linalg.norm(influences)))
    return _roc(area, influences, supports[-1], len(labels) - supports[-1])


def mean_roc_difference(
    first: np.ndarray, second: np.ndarray, labels: np.ndarray
) -> Interval | None:
    """Return how much larger the mean area of the second model is on the same rows (DeLong et al.,
    1988); probabilities of both have shape ``(rows, classes)``.
    """
    one, other = (_mean_influences(each, labels) for each in (first, second))
    if one is None or other is None:
        return None
    gap = other[1] - one[1]
    reach = _REACH * float(np.linalg.norm(other[0] - one[0]))
    return Interval(gap, max(-1.0, gap - reach), min(1.0, gap + reach))


def of_class(scores: np.ndarray, positive: np.ndarray) -> Areas | None:
    """Return the areas of one class; None if no row, or every row, has it.

    Args:
        scores: Its probabilities, shape ``(rows,)``.
        positive: Whether a row has it, shape ``(rows,)``.
    """
    rows = int(positive.sum())
    if not 0 < rows < len(positive):
        return None
    influences, area = _influences(scores, positive)
    return Areas(
        _roc(area, influences, rows, len(positive) - rows),
        _binomial(float(average_precision_score(positive, scores)), rows),
    )


def _mean_influences(
    probabilities: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """:func:`_influences` of the mean over the classes that some rows have and some have not."""
    count = probabilities.shape[1]
    total, areas = np.zeros(len(labels)), []
    for each in range(count == 2, count):  # of two classes, both have the same curve
        if 0 < (labels == each).sum() < len(labels):
            influences, area = _influences(probabilities[:, each], labels == each)
            total += influences
            areas.append(area)
    return (total / len(areas), float(np.mean(areas))) if areas else None


def _influences(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, float]:
    """Return what each row adds to the error of the area under the ROC curve, and the area.

    The structural components of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), ties as
    halves, each divided so that the sum of the squares is the variance of the area.
    """
    influences = np.empty(len(scores))
    for chosen in (positive, ~positive):
        own, others = scores[chosen], np.sort(scores[~chosen])
        below = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right")
        beaten = below / 2 / len(others)
        count, mean = len(beaten), float(beaten.mean())
        influences[chosen] = (beaten - mean) / np.sqrt(count * max(1, count - 1))
        if chosen is positive:
            area = mean
    influences[~positive] *= -1  # a row that is not of the class is right below, not above
    return influences, area


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
        lambda rows: mean_roc(rows.probabilities, rows.labels) or UNDEFINED,
        lambda first, second: (
            mean_roc_difference(first.probabilities, second.probabilities, first.labels)
            or UNDEFINED
        ),
    ),
    "average_precision": Ranked(
        lambda rows: average_precision.mean(rows.one_vs_rest),
        lambda first, second: average_precision.difference(first.one_vs_rest, second.one_vs_rest),
    ),
}
