"""Metrics of a model that gives each row any number of labels.

The values are those of scikit-learn with ``zero_division=0``: F1 is 0 of a label that no row has or
is given, and of a row that neither has nor is given a label, though it is right.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.data.label_columns import list_names
from finetune.statistics import blocks, estimates, pairs, ranking
from finetune.statistics.counts import divide
from finetune.statistics.estimates import Estimate, Measured
from finetune.statistics.pairs import McNemar
from finetune.statistics.scored import ScoredLabels

#: Rows of each label, below which macro F1 has no interval.
FEWEST_OF_EACH = 5
#: Co-occurrences of more labels are not written down: they would be most of ``metrics.json``.
MOST_TOGETHER = 100


def describe(rows: ScoredLabels) -> dict[str, Any]:
    """Return the fields of :class:`~finetune.training.manifest.Statistics` but the metrics."""
    together = rows.labels.T.astype(np.int64) @ rows.labels
    return {
        "rows": len(rows),
        "classes": describe_labels(rows),
        "together": together.tolist() if len(together) <= MOST_TOGETHER else None,
    }


def describe_labels(rows: ScoredLabels) -> dict[str, Any]:
    """Return precision, recall, F1, average precision and support of each label, by name."""
    has, given = rows.labels, rows.decided
    right, true, predicted = ((has & given).sum(axis=0), has.sum(axis=0), given.sum(axis=0))
    precision, recall = estimates.shares(right, predicted), estimates.shares(right, true)
    f1 = f1_of_classes(right, true, predicted)
    areas = rows.once(ranking.of_labels).labels
    table: dict[str, Any] = {}
    for number, name in enumerate(rows.names):
        scores = {"precision": precision[number], "recall": recall[number], "f1": f1[number]}
        table[name] = {score: asdict(estimate) for score, estimate in scores.items()}
        table[name]["support"] = int(true[number])
        if area := areas[number]:
            table[name]["average_precision"] = area["average_precision"].value
            table[name]["pr_area"] = asdict(area["average_precision"])
    return table


def f1_of_classes(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> list[Estimate]:
    """Return F1 of classes from counts of rows, shape ``(classes,)`` each: ``2 J / (1 + J)`` of the
    share J of the rows that have or are given the class that are right.
    """
    return [
        Estimate(*(2 * end / (1 + end) for end in (jaccard.value, jaccard.low, jaccard.high)))
        for jaccard in estimates.shares(right, true + predicted - right)
    ]


def scores(rows: ScoredLabels) -> dict[str, Estimate]:
    """Return each metric: F1 in three averages, the share of rows that are right in every label,
    the mean average precision, the share of wrong labels, and the log loss of a label in nats.
    """
    measured, count = _measure(rows), len(rows)
    entries = (rows.labels.sum(axis=0) + rows.decided.sum(axis=0)).astype(np.float64)
    occurring = entries[entries > 0]
    macro = len(entries) ** 2 / (1 / np.maximum(entries, 1)).sum()
    found = {
        "f1_micro": measured["f1_micro"].bounded(max(1.0, float(occurring.sum()))),
        "f1_macro": measured["f1_macro"].bounded(float(macro)),
        "f1_samples": _bound_mean(measured["f1_samples"], count),
        "subset_accuracy": estimates.share(int(rows.right.sum()), count),
        "average_precision": rows.once(ranking.of_labels).means["average_precision"].estimate(),
        "hamming_loss": _bound_mean(measured["hamming_loss"], count),
        "log_loss": measured["log_loss"].scaled(np.log, np.exp),
    }
    if _rare(rows):
        found["f1_macro"] = Estimate(found["f1_macro"].value)
    return found


def _bound_mean(mean: Measured, rows: int) -> Estimate:
    """Return the interval of a mean over rows of shares, whose variance may be small."""
    return mean.bounded(rows if mean.deviation == 0 else np.inf)


def differences(first: ScoredLabels, second: ScoredLabels) -> dict[str, Estimate]:
    """Return how much more of each metric the second model has than the first on the same rows."""
    before, after = _measure(first), _measure(second)
    found = {name: (after[name] - before[name]).difference() for name in before}
    ones = np.ones(len(first), dtype=np.int64)
    right = [rows.right.astype(np.int64) for rows in (first, second)]
    found["subset_accuracy"] = pairs.accuracy_difference(ones, *right)
    areas = [rows.once(ranking.of_labels).means["average_precision"] for rows in (first, second)]
    found["average_precision"] = areas[1].minus(areas[0])
    if _rare(first):
        found["f1_macro"] = Estimate(found["f1_macro"].value)
    return found


def _measure(rows: ScoredLabels) -> dict[str, Measured]:
    has, given = rows.labels, rows.decided
    both, sizes = has & given, has.sum(axis=1) + given.sum(axis=1)
    right, entries = both.sum(axis=0), has.sum(axis=0) + given.sum(axis=0)
    losses, macro = np.empty(len(rows)), np.empty(len(rows))
    for some in blocks.slices(*has.shape):
        true = np.where(has[some], rows.probabilities[some], 1 - rows.probabilities[some])
        losses[some] = -np.log(np.maximum(true, np.finfo(np.float64).eps)).mean(axis=1)
        others = entries - has[some] - given[some]
        macro[some] = divide(2 * (right - both[some]), others).mean(axis=1)
    micro = divide(2 * (right.sum() - both.sum(axis=1)), entries.sum() - sizes)
    f1_micro = float(divide(2 * right.sum(), entries.sum()))
    f1_macro = float(divide(2 * right, entries).mean())
    return {
        "f1_micro": Measured.of_jackknife(f1_micro, micro),
        "f1_macro": Measured.of_jackknife(f1_macro, macro),
        "f1_samples": Measured.of_mean(divide(2 * both.sum(axis=1), sizes)),
        "hamming_loss": Measured.of_mean((has != given).mean(axis=1)),
        "log_loss": Measured.of_mean(losses),
    }


def test(first: ScoredLabels, second: ScoredLabels) -> McNemar:
    """Return the test for a difference in the share of rows that are right in every label."""
    ones = np.ones(len(first), dtype=int)
    return pairs.mcnemar(ones, first.right.astype(int), second.right.astype(int))


def threshold(probabilities: np.ndarray, has: np.ndarray) -> float:
    """Return the probability above which giving a label is best for F1 over all entries.

    It lies half-way between two probabilities that occur; one half if no entry is positive.

    Args:
        probabilities: Any shape.
        has: Whether the label is there, of the same shape.
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    scores, right = probabilities.ravel()[order], has.ravel()[order]
    if not right.any():
        return 0.5
    given = np.arange(1, len(scores) + 1)
    f1 = 2 * np.cumsum(right) / (given + right.sum())
    f1[:-1][scores[:-1] == scores[1:]] = -1  # no threshold lies between equal ones
    best = int(np.argmax(f1))
    below = scores[best + 1] if best + 1 < len(scores) else 0.0
    return float((scores[best] + below) / 2)


def _rare(rows: ScoredLabels) -> list[str]:
    """Return the labels that too few rows have for an interval of macro F1."""
    return [rows.names[n] for n in np.flatnonzero(rows.labels.sum(axis=0) < FEWEST_OF_EACH)]


def remarks(name: str, statistic: str, rows: ScoredLabels) -> list[str]:
    """Return what to know of a metric that has no interval.

    Args:
        name: What it is called.
        statistic: Which of :func:`scores` it is.
        rows: What it is computed of.
    """
    if statistic == "average_precision":
        return ranking.remarks(name, rows.once(ranking.of_labels), rows.names)
    if statistic == "f1_macro" and (rare := _rare(rows)):
        return [
            f"{name} has no confidence interval: fewer than {FEWEST_OF_EACH} test rows have "
            f"{list_names(rare)}"
        ]
    return []


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows that are wrong in a label, the most confident mistakes first."""
    wrong = rows.decided != rows.labels
    gap = np.where(wrong, np.abs(rows.probabilities - 0.5), 0).max(axis=1)
    order = np.argsort(-gap, kind="stable")
    return np.asarray(order[wrong[order].any(axis=1)])
