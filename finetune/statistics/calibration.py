"""Whether the probabilities are worth anything: calibration, temperature, and abstaining."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from finetune.statistics.blocks import Softmax, Summary

BINS = 15
#: Where a temperature is looked for.
COLDEST, HOTTEST = 0.05, 20.0
_NEAR_AN_END = 1.01


def reliability(rows: Summary, bins: int = BINS) -> pd.DataFrame:
    """Return accuracy against confidence, in bins of equal width.

    Args:
        rows: Of predictions.
        bins: Between 0 and 1; those without rows are left out.

    Returns:
        For each bin ``confidence``, the mean probability of the predicted class; ``accuracy``, the
        share that is right; and ``rows``, how many.
    """
    sure, right = rows.confidence, rows.right.astype(float)
    table = pd.DataFrame({"confidence": sure, "accuracy": right, "rows": 1})
    by_bin = table.groupby(bins_of(sure, bins))
    return by_bin.agg({"confidence": "mean", "accuracy": "mean", "rows": "sum"})


def bins_of(sure: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Return the number of the bin of each probability, shape ``(rows,)``."""
    return np.asarray(np.minimum((sure * bins).astype(int), bins - 1))


def expected_calibration_error(rows: Summary, bins: int = BINS) -> float:
    """Return the mean distance of accuracy from confidence over the bins, weighted by their rows
    (Guo et al., On Calibration of Modern Neural Networks, ICML 2017).
    """
    found = reliability(rows, bins)
    return float(np.average(np.abs(found.accuracy - found.confidence), weights=found.rows))


def error_of_calibrated_model(rows: Summary, bins: int = BINS) -> float:
    """Return the expected calibration error that chance alone gives a calibrated model of so many
    rows with these confidences: the mean distance of a normal approximation.
    """
    numbers, variances = bins_of(rows.confidence, bins), rows.confidence * (1 - rows.confidence)
    sums = np.bincount(numbers, variances, minlength=bins)
    return float(np.sqrt(2 * sums / np.pi).sum() / max(1, len(rows.confidence)))


def brier_scores(rows: Summary) -> np.ndarray:
    """Return the squared distance of the probabilities from the truth, summed over the classes
    (Brier, Monthly Weather Review 78, 1950): 0 is best, 2 is worst.

    Returns:
        Of each row, shape ``(rows,)``.
    """
    return np.asarray(rows.squares - 2 * rows.of_label + 1)


def log_losses(rows: Summary) -> np.ndarray:
    """Minus the logarithm of the probability of the true class, in nats, shape ``(rows,)``."""
    return np.asarray(-np.log(np.maximum(rows.of_label, np.finfo(np.float64).tiny)))


def temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Return what to divide the logits by so that the log loss is least (Guo et al., 2017).

    Above 1 the model was overconfident. It never changes which class is the most probable. Fit it
    on validation rows: on the test rows it would flatter.

    Args:
        logits: Or logarithms of probabilities, shape ``(rows, classes)``.
        labels: The true classes, shape ``(rows,)``.

    Returns:
        1 if the log loss is not lower by more than chance at any other temperature, by the
        likelihood-ratio test at 5%; None if it is lowest at an end of the range from 0.05 to 20, as
        for a model that knows nothing of these rows: then no temperature mends the probabilities.
    """
    rows = np.arange(len(labels))
    of_label = logits[rows, labels].astype(np.float64)

    def loss(logarithm: float) -> float:
        hot = float(np.exp(logarithm))
        highest, total = Softmax(logits, hot).ends
        return float((highest + np.log(total) - of_label / hot).mean())

    found = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    best = float(np.exp(found.x))
    if not COLDEST * _NEAR_AN_END < best < HOTTEST / _NEAR_AN_END:
        return None
    gain = 2 * len(rows) * (loss(0.0) - float(found.fun))
    return best if gain > chi2.ppf(0.95, 1) else 1.0


def coverage(rows: Summary) -> np.ndarray:
    """Return the accuracy on the most confident rows (Geifman and El-Yaniv, Selective
    Classification for Deep Neural Networks, 2017).

    Returns:
        Shape ``(rows,)``: the accuracy on the most confident row, on two, ... on all.
    """
    order = np.argsort(-rows.confidence, kind="stable")
    right = rows.right[order]
    return np.cumsum(right) / np.arange(1, len(right) + 1)
