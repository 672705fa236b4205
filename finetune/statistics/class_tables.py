"""The scores of each class or label, and those of the ranks of classes, as in ``metrics.json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.statistics import metrics
from finetune.statistics.estimates import SHARE, Estimate, estimate, share, shares
from finetune.statistics.metrics import METRICS
from finetune.statistics.scored import PREDICTED, RIGHT, TRUE, ScoredLabels, ScoredRows

#: Co-occurrences and confusions of more classes are not written: they would be most of the file.
MOST_CONFUSED, MOST_TOGETHER = 200, 100


def describe_classes(rows: ScoredRows | ScoredLabels) -> dict[str, Any]:
    """Return by class precision, recall, F1, areas under the curves, and support.

    F1 is a function of the share of the rows with the class, true or predicted, that have it as
    both (the Jaccard index J): 2 J / (1 + J). Areas are left out where no row, or every row, has
    the class.
    """
    right, true, predicted = rows.tallies[0, [RIGHT, TRUE, PREDICTED]]
    scores = {
        "precision": shares(right, predicted),
        "recall": shares(right, true),
        "f1": [_f1(jaccard) for jaccard in shares(right, true + predicted - right)],
    }
    table: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(rows.names):
        table[name] = {score: asdict(column[number]) for score, column in scores.items()}
        fewer = min(true[number], len(rows) - true[number])
        areas = ("roc_area", "pr_area") if fewer and rows.kind == "classes" else ("pr_area",)
        for area in areas if fewer else ():
            replicates = rows.areas[int(area == "pr_area")][:, number]
            area_estimate = estimate(replicates, SHARE, 2 * fewer)
            if fewer < metrics.FEWEST_OF_CLASS:
                area_estimate = Estimate(area_estimate.value)
            table[name][area] = asdict(area_estimate)
        table[name]["support"] = int(true[number])
    return table


def _f1(jaccard: Estimate) -> Estimate:
    return Estimate(*(2 * end / (1 + end) for end in (jaccard.value, jaccard.low, jaccard.high)))


def describe_top_k(rows: ScoredRows) -> dict[str, Any]:
    """Return how often the true class is among the k most probable ones, for k below the classes.

    Classes that are as probable as the true one come before it or after it by chance.
    """
    above, ties = rows.summary.above, rows.summary.ties
    return {
        str(k): asdict(share(float(np.clip((k - above) / ties, 0, 1).sum()), len(rows)))
        for k in (2, 3, 5)
        if k < len(rows.names)
    }


def describe_order(rows: ScoredRows) -> dict[str, Any]:
    """Return how far off predictions are of classes that have an order, like stars."""
    names = ("mean_absolute_error", "quadratic_kappa")
    near = int((np.abs(rows.classes - rows.labels) <= 1).sum())
    return {
        **metrics.estimate(rows, {name: METRICS["classes", name] for name in names}),
        "within_one": asdict(share(near, len(rows))),
    }
