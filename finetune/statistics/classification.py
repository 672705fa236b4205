"""What is computed from the predictions of a classifier, as it stands in ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.data.label_columns import list_names
from finetune.statistics import calibration, counts, estimates, pairs, ranking
from finetune.statistics.estimates import Estimate, Measured
from finetune.statistics.metrics import Metrics
from finetune.statistics.multi_label import f1_of_classes
from finetune.statistics.scored import ScoredRows

#: Shares of the rows on which a model that abstains on the others is judged.
COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
#: A confusion matrix of more classes is not written down: it would be most of ``metrics.json``.
MOST_CONFUSED = 200
#: Test rows of each class, below which a mean over the classes has no interval.
FEWEST_OF_EACH = 5


def describe(predicted: ScoredRows, metrics: Metrics, *, ordered: bool) -> dict[str, Any]:
    """Return the fields of :class:`~finetune.training.manifest.Statistics`.

    Args:
        predicted: The rows.
        metrics: By name: functions of tallies, or names in :data:`ranking.METRICS`.
        ordered: Whether the classes have an order, like stars.
    """
    matrix = confusion(predicted) if len(predicted.names) <= MOST_CONFUSED else None
    fields: dict[str, Any] = {
        "rows": len(predicted),
        "metrics": scores(predicted, metrics),
        "classes": _describe_classes(predicted),
        "confusion": None if matrix is None else matrix.tolist(),
        "top_k": _top_k(predicted),
        "calibration": calibrated(predicted),
        "coverage": _coverage(predicted),
        "notes": remarks(predicted, metrics),
    }
    if ordered and len(predicted.names) > 2:
        tally = predicted.once(tallies)
        near = int((np.abs(predicted.classes - predicted.labels) <= 1).sum())
        fields["ordered"] = _plain(
            {
                "mean_absolute_error": tally.estimate(counts.mean_absolute_error),
                "quadratic_kappa": tally.estimate(counts.quadratic_kappa),
                "within_one": estimates.share(near, len(predicted)),
            }
        )
    return fields


def tallies(predicted: ScoredRows) -> counts.Tallies:
    """Return those of the rows; see :meth:`ScoredRows.once`."""
    return counts.Tallies.of(predicted.labels, predicted.classes, len(predicted.names))


def scores(predicted: ScoredRows, metrics: Metrics) -> dict[str, Any]:
    """Return the metrics, then those that every classifier has, each with its interval."""
    areas, losses = predicted.once(ranking.of_classes), _losses(predicted)
    found = {
        name: areas.means[metric].estimate()
        if metric in ranking.METRICS
        else predicted.once(tallies).estimate(metric)
        for name, metric in metrics.items()
    }
    for name in _without_interval(predicted, metrics):
        found[name] = Estimate(found[name].value)
    found["log_loss"] = losses["log_loss"].scaled(np.log, np.exp)
    found["brier_score"] = losses["brier_score"].scaled(np.log, np.exp)
    if areas.means["roc_auc"].measured is not None:
        found["roc_area"] = areas.means["roc_auc"].estimate()
    return _plain(found)


def _losses(predicted: ScoredRows) -> dict[str, Measured]:
    return {
        "log_loss": Measured.of_mean(calibration.log_losses(predicted.summary)),
        "brier_score": Measured.of_mean(calibration.brier_scores(predicted.summary)),
    }


def _without_interval(predicted: ScoredRows, metrics: Metrics) -> list[str]:
    """Return the means over classes of which one has too few rows."""
    if (predicted.once(tallies).whole[counts.TRUE] >= FEWEST_OF_EACH).all():
        return []
    return [
        name
        for name, metric in metrics.items()
        if isinstance(metric, counts.Average) and metric.average == "macro"
    ]


def remarks(predicted: ScoredRows, metrics: Metrics) -> list[str]:
    """Return what to know of the metrics: those that are not defined, or have no interval."""
    classes = np.unique(predicted.labels)
    ranked = {name: metric for name, metric in metrics.items() if metric in ranking.METRICS}
    if len(classes) == 1:
        names = [*ranked]
        if np.array_equal(classes, np.unique(predicted.classes)):
            names += [n for n, metric in metrics.items() if metric is counts.quadratic_kappa]
        one = f"all test rows are of the class '{predicted.names[classes[0]]}'"
        return [f"{name} is not defined: {one}" for name in names]
    areas, names = predicted.once(ranking.of_classes), predicted.names
    sentences = [text for name in ranked for text in ranking.remarks(name, areas, names)]
    if few := _without_interval(predicted, metrics):
        support = np.bincount(predicted.labels, minlength=len(names))
        rare = [names[number] for number in np.flatnonzero(support < FEWEST_OF_EACH)]
        sentences.append(
            f"{', '.join(few)}: no confidence interval, fewer than {FEWEST_OF_EACH} test rows are "
            f"of {list_names(rare)}"
        )
    return sentences


def calibrated(predicted: ScoredRows) -> dict[str, Any]:
    """Return the calibration error, that of a calibrated model of so many rows, and the bins."""
    bins = calibration.reliability(predicted.summary)
    return {
        "expected_calibration_error": calibration.expected_calibration_error(predicted.summary),
        "calibrated_model": calibration.error_of_calibrated_model(predicted.summary),
        "bins": bins.to_dict("records"),
    }


def differences_of_metrics(
    first: ScoredRows, second: ScoredRows, metrics: Metrics
) -> dict[str, Any]:
    """Return how much more of each metric the second model has than the first on the same rows."""
    classes, areas = len(first.names), [rows.once(ranking.of_classes) for rows in (first, second)]
    found = {
        name: areas[1].means[metric].minus(areas[0].means[metric])
        if metric in ranking.METRICS
        else pairs.difference(metric, first.labels, first.classes, second.classes, classes)
        for name, metric in metrics.items()
    }
    for name in _without_interval(first, metrics):
        found[name] = Estimate(found[name].value)
    return _plain(found)


def differences(first: ScoredRows, second: ScoredRows, metrics: Metrics) -> dict[str, Any]:
    """Return those of the metrics, of the losses, and of the mean area under the ROC curves."""
    before, after = _losses(first), _losses(second)
    found = {name: (after[name] - before[name]).difference() for name in before}
    areas = [rows.once(ranking.of_classes).means["roc_auc"] for rows in (first, second)]
    if areas[0].measured is not None:
        found["roc_area"] = areas[1].minus(areas[0])
    return differences_of_metrics(first, second, metrics) | _plain(found)


def confusion(predicted: ScoredRows) -> np.ndarray:
    """Return counts of true by predicted class, shape ``(classes, classes)``."""
    classes = len(predicted.names)
    cells = np.bincount(predicted.labels * classes + predicted.classes, minlength=classes**2)
    return cells.reshape(classes, classes)


def _plain(found: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: asdict(estimate) for name, estimate in found.items()}


def _describe_classes(predicted: ScoredRows) -> dict[str, Any]:
    """Return precision, recall, F1, areas and rows of each class, by name."""
    whole = predicted.once(tallies).whole
    right, true, said = whole[counts.RIGHT], whole[counts.TRUE], whole[counts.PREDICTED]
    precision, recall = estimates.shares(right, said), estimates.shares(right, true)
    f1, areas = f1_of_classes(right, true, said), predicted.once(ranking.of_classes).labels
    table: dict[str, Any] = {}
    for number, name in enumerate(predicted.names):
        of_class = {"precision": precision[number], "recall": recall[number], "f1": f1[number]}
        if area := areas[number]:
            of_class |= {"roc_area": area["roc_auc"], "pr_area": area["average_precision"]}
        table[name] = {**_plain(of_class), "support": int(true[number])}
    return table


def _top_k(predicted: ScoredRows) -> dict[str, Any]:
    """Return how often the true class is among the k most probable ones, for k below the classes.

    Classes that are as probable as the true one come before it or after it by chance.
    """
    above, equal = predicted.summary.above, predicted.summary.alike
    return {
        str(k): asdict(
            estimates.share(float(np.clip((k - above) / equal, 0, 1).sum()), len(predicted))
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
            "accuracy": asdict(estimates.share(float(accuracy[count - 1]) * count, count)),
        }
        for share, count in zip(COVERAGES, rows, strict=True)
    ]
