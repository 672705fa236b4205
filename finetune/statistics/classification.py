"""Everything that can be said of the predictions of a classifier, as it stands in
``metrics.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.statistics import (
    average_precision,
    calibration,
    counts,
    intervals,
    kappa,
    pairs,
    ranking,
)
from finetune.statistics.intervals import Interval
from finetune.statistics.ranking import Ranked
from finetune.statistics.resampling import Metrics
from finetune.statistics.scored import ScoredRows

#: Shares of the rows on which a model that abstains on the others is judged.
COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
#: A confusion matrix of more classes is not written down: it would be most of ``metrics.json``.
MOST_CONFUSED = 200


def of(predicted: ScoredRows, metrics: Metrics, *, ordered: bool) -> dict[str, Any]:
    """Return all of them.

    Args:
        predicted: The rows.
        metrics: By name, those of counts (see :func:`finetune.statistics.counts.metric`) and those
            that are :class:`~finetune.statistics.ranking.Ranked`.
        ordered: Whether the classes have an order, like stars.

    Returns:
        Facts by name. An interval is ``{"value": ..., "low": ..., "high": ...}`` with a confidence
        of 95%.
    """
    matrix = predicted.once(confusion)
    found: dict[str, Any] = {
        "rows": len(predicted),
        "metrics": scores(predicted, metrics),
        "classes": _classes(predicted, matrix),
        "confusion": matrix.tolist() if len(matrix) <= MOST_CONFUSED else None,
        "top_k": _top_k(predicted),
        "calibration": calibrated(predicted),
        "coverage": _coverage(predicted),
        "notes": remarks(predicted, metrics),
    }
    if ordered and len(predicted.names) > 2:
        graded = {
            "mean_absolute_error": counts.mean_absolute_error,
            "quadratic_kappa": counts.quadratic_kappa,
        }
        near = int((np.abs(predicted.classes - predicted.labels) <= 1).sum())
        found["ordered"] = _plain(
            {
                **_of_matrix(graded, matrix),
                "within_one": intervals.of_share(near, len(predicted)),
            }
        )
    return found


def scores(predicted: ScoredRows, metrics: Metrics) -> dict[str, Any]:
    """Return the metrics, then those that every classifier has, each with its interval."""
    ranked, of_counts = _parted(metrics)
    found = {
        **_of_matrix(of_counts, predicted.once(confusion)),
        **{name: each.of(predicted) for name, each in ranked.items()},
        "log_loss": intervals.of_mean(calibration.log_losses(predicted.summary)),
        "brier_score": intervals.of_mean(calibration.brier_scores(predicted.summary)),
    }
    if area := ranking.mean_roc(predicted.once(ranking.sweep), predicted.labels):
        found["roc_area"] = area
    return _plain(found)


def remarks(predicted: ScoredRows, metrics: Metrics) -> list[str]:
    """Return what to know of the metrics: those that are not defined, or have no interval."""
    classes, said = np.unique(predicted.labels), np.unique(predicted.classes)
    ranked, others = _parted(metrics)
    if len(classes) == 1:
        names = [*ranked]
        if np.array_equal(classes, said):
            names += [name for name, each in others.items() if each is counts.quadratic_kappa]
        one = f"all test rows are of the class '{predicted.names[classes[0]]}'"
        return [f"{name} is not defined: {one}" for name in names]
    precision = ranking.METRICS["average_precision"]
    names = [name for name, each in ranked.items() if each is precision]
    found = [
        remark
        for name in names
        for remark in average_precision.remarks(name, predicted.one_vs_rest)
    ]
    graded = [name for name, each in others.items() if each is counts.quadratic_kappa]
    told = (kappa.remark(name, predicted.once(confusion)) for name in graded)
    return [*found, *(remark for remark in told if remark)]


def calibrated(predicted: ScoredRows) -> dict[str, Any]:
    """Return the calibration error, and the bins that it is made of."""
    bins = calibration.reliability(predicted.summary)
    return {
        "expected_calibration_error": calibration.expected_calibration_error(predicted.summary),
        "interval": asdict(_calibration_error(predicted)),
        "bins": bins.to_dict("records"),
    }


def _calibration_error(predicted: ScoredRows) -> Interval:
    """With what other rows might have given; the error of few rows is too large by itself."""
    sure, right = predicted.summary.confidence, predicted.right
    number, apart = calibration.bins_of(sure), right - sure
    return intervals.of_sums(
        lambda sums: np.abs(sums).sum(axis=-1) / len(predicted), number, apart, calibration.BINS
    )


def beyond(first: ScoredRows, second: ScoredRows, metrics: Metrics) -> dict[str, Any]:
    """Return how much more of each metric the second model has than the first on the same rows."""
    ranked, of_counts = _parted(metrics)
    labels, classes = first.labels, len(first.names)
    found = pairs.difference(of_counts, labels, first.classes, second.classes, classes)
    return _plain(found | {name: each.difference(first, second) for name, each in ranked.items()})


def differences(first: ScoredRows, second: ScoredRows, metrics: Metrics) -> dict[str, Any]:
    """Return :func:`beyond`, and the same of the losses and the mean area under the ROC curves."""
    losses = {"log_loss": calibration.log_losses, "brier_score": calibration.brier_scores}
    found = {
        name: intervals.of_mean(of_rows(second.summary) - of_rows(first.summary))
        for name, of_rows in losses.items()
    }
    one, other = first.once(ranking.sweep), second.once(ranking.sweep)
    if area := ranking.mean_roc_difference(one, other):
        found["roc_area"] = area
    return beyond(first, second, metrics) | _plain(found)


def _of_matrix(metrics: Mapping[str, Any], matrix: np.ndarray) -> dict[str, Interval]:
    found = intervals.of_matrix(
        {name: each for name, each in metrics.items() if each is not counts.quadratic_kappa}, matrix
    )
    graded = metrics.keys() - found.keys()
    return {name: kappa.interval(matrix) if name in graded else found[name] for name in metrics}


def _parted(metrics: Metrics) -> tuple[dict[str, Ranked], dict[str, Any]]:
    """Return the metrics that are rankings, and the others."""
    ranked = {name: each for name, each in metrics.items() if isinstance(each, Ranked)}
    return ranked, {name: each for name, each in metrics.items() if name not in ranked}


def confusion(predicted: ScoredRows) -> np.ndarray:
    """Return counts of true by predicted class, shape ``(classes, classes)``."""
    classes = len(predicted.names)
    cells = np.bincount(predicted.labels * classes + predicted.classes, minlength=classes**2)
    return cells.reshape(classes, classes)


def _plain(found: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: asdict(each) for name, each in found.items()}


def _classes(predicted: ScoredRows, matrix: np.ndarray) -> dict[str, Any]:
    """Of each class: precision, recall, F1, areas, and how many rows have it."""
    areas = predicted.once(ranking.sweep).classes
    right, true, said = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    precision, recall, shares = (
        intervals.of_shares(right, rows) for rows in (said, true, true + said - right)
    )
    return {
        name: {
            "precision": asdict(precision[index]),
            "recall": asdict(recall[index]),
            "f1": asdict(_f1_of_share(shares[index])),
            **(
                {"roc_area": asdict(area.roc), "pr_area": asdict(area.precision_recall)}
                if (area := areas[index])
                else {}
            ),
            "support": int(true[index]),
        }
        for index, name in enumerate(predicted.names)
    }


def f1_of_class(right: int, true: int, said: int) -> Interval:
    """Return F1 of one class, by way of the share of the rows that have or are given the class
    that are right (the Jaccard index), of which it is a function: 2 J / (1 + J).
    """
    return _f1_of_share(intervals.of_share(right, true + said - right))


def _f1_of_share(share: Interval) -> Interval:
    return Interval(*(2 * each / (1 + each) for each in (share.value, share.low, share.high)))


def _top_k(predicted: ScoredRows) -> dict[str, Any]:
    """How often the true class is among the k most probable ones, for k below the classes.

    Classes that are as probable as the true one come before it or after it by chance.
    """
    above, alike = predicted.summary.above, predicted.summary.alike
    return {
        str(k): asdict(
            intervals.of_share(float(np.clip((k - above) / alike, 0, 1).sum()), len(predicted))
        )
        for k in (2, 3, 5)
        if k < len(predicted.names)
    }


def _coverage(predicted: ScoredRows) -> list[dict[str, Any]]:
    """Return the accuracy on the most confident share of the rows."""
    accuracy = calibration.coverage(predicted.summary)
    rows = [max(1, round(share * len(predicted))) for share in COVERAGES]
    return [
        {
            "coverage": share,
            "accuracy": asdict(intervals.of_share(float(accuracy[count - 1]) * count, count)),
        }
        for share, count in zip(COVERAGES, rows, strict=True)
    ]
