"""Whether probabilities are worth anything, and what is fitted on validation rows to mend them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from finetune.statistics.scored import Probabilities, ScoredRows

_BINS, _LOWEST, _HIGHEST = 15, 0.05, 20.0


def describe_calibration(rows: ScoredRows) -> dict[str, Any]:
    """Return the expected calibration error and the bins that it is made of.

    The error is the mean distance of accuracy from confidence over bins of equal width, weighted by
    their rows (Guo et al., On Calibration of Modern Neural Networks, ICML 2017). On few rows it is
    never 0: ``calibrated`` is what a calibrated model with these confidences stays below in 95 of
    100 sets of as many rows.
    """
    confidence, right = rows.summary.confidence, rows.right
    number = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(number, right - confidence, _BINS)
    variances = np.bincount(number, confidence * (1 - confidence), _BINS)
    normal = np.random.default_rng(0).normal(size=(2000, _BINS))
    chance = np.abs(normal * np.sqrt(np.maximum(variances, 0))).sum(axis=1)
    table = pd.DataFrame({"confidence": confidence, "accuracy": right.astype(float), "rows": 1})
    bins = table.groupby(number).agg({"confidence": "mean", "accuracy": "mean", "rows": "sum"})
    return {
        "expected_calibration_error": float(np.abs(gaps).sum()) / len(rows),
        "calibrated": float(np.quantile(chance, 0.95)) / len(rows),
        "bins": bins.to_dict("records"),
    }


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Return what to divide the logits by so that the log loss is least (Guo et al., 2017).

    Above 1 the model was overconfident. The most probable class stays the same. Fit it on
    validation rows: on the test rows it would flatter.

    Args:
        logits: Or logarithms of probabilities, shape ``(rows, classes)``.
        labels: The true classes, shape ``(rows,)``.

    Returns:
        1 if the log loss is not lower by more than chance at any other temperature, by the
        likelihood-ratio test at 5%; None if it is lowest at an end of the range from 0.05 to 20:
        then no temperature mends the probabilities.
    """
    of_label = logits[np.arange(len(labels)), labels].astype(np.float64)

    def loss(logarithm: float) -> float:
        temperature = float(np.exp(logarithm))
        highest, total = Probabilities(logits, "softmax", temperature).normalizers
        return float((highest + np.log(total) - of_label / temperature).mean())

    best = minimize_scalar(loss, bounds=(np.log(_LOWEST), np.log(_HIGHEST)), method="bounded")
    temperature = float(np.exp(best.x))
    if not _LOWEST * 1.01 < temperature < _HIGHEST / 1.01:
        return None
    gain = 2 * len(labels) * (loss(0.0) - float(best.fun))
    return temperature if gain > chi2.ppf(0.95, 1) else 1.0


def fit_threshold(probabilities: Probabilities, has: np.ndarray) -> float:
    """Return the probability above which giving a label is best for F1 over all entries.

    It lies half-way between two probabilities that occur; one half if no entry is positive.

    Args:
        probabilities: Shape ``(rows, labels)``.
        has: Whether the label is there, of the same shape.
    """
    blocks = probabilities.row_blocks()
    positives = np.sort(np.concatenate([block[has[chosen]] for chosen, block in blocks]))
    if not len(positives):
        return 0.5
    levels, first = np.unique(positives, return_index=True)  # the best cut is below one of these
    lower, counts = np.zeros(len(levels)), np.zeros(len(levels), dtype=np.int64)
    for _, block in probabilities.row_blocks():
        entries = np.sort(block, axis=None)
        lower_entries = np.searchsorted(entries, levels)
        counts += len(entries) - lower_entries
        lower = np.maximum(lower, np.where(lower_entries > 0, entries[lower_entries - 1], 0.0))
    f1 = 2 * (len(positives) - first) / (counts + len(positives))
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))  # the highest of several
    return float((levels[best] + lower[best]) / 2)
