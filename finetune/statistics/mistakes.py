"""Which rows a model gets wrong: confident mistakes, labels that may be wrong, slices; whether its
probabilities are worth anything, and what is fitted on validation rows to mend them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import chi2

from finetune.statistics.estimates import Estimate, share
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredRows

_BINS, _LOWEST, _HIGHEST = 15, 0.05, 20.0


class Suspicion(NamedTuple):
    """Labels that may be wrong."""

    rows: np.ndarray  # indices, the most confident prediction first
    confident: int  # how many predictions were looked at, the most confident ones
    wrong: Estimate  # the share whose label is contradicted: of all labels, at most about as many


def most_confident(rows: ScoredRows) -> np.ndarray:
    """Return the indices of the mistakes, the one with the highest probability first."""
    wrong = np.flatnonzero(~rows.right)
    return wrong[np.argsort(-rows.summary.confidence[wrong], kind="stable")]


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows that are wrong in a label, the most confident mistakes first."""
    wrong = np.flatnonzero(~rows.right)
    is_wrong = rows.decided[wrong] != rows.labels[wrong]
    gaps = np.abs(rows.probabilities.rows(wrong) - 0.5) * is_wrong
    return wrong[np.argsort(-gaps.max(axis=1, initial=0), kind="stable")]


def suspicion(rows: ScoredRows) -> Suspicion | None:
    """Return which labels may be wrong: those that the most confident predictions contradict.

    Mistakes of the model get rarer as its confidence grows, wrong labels do not: among the tenth of
    the rows with the most confident predictions most contradicted labels are wrong themselves
    (docs/decisions/suspected-labels.md). None of few rows, or if too many labels are contradicted:
    then too many of the most confident predictions are wrong themselves.
    """
    wrong = ~rows.right
    if len(rows) < 100 or wrong.mean() > 1 / 3:
        return None
    confident = len(rows) // 10
    order = np.argsort(-rows.summary.confidence, kind="stable")[:confident]
    suspected = order[wrong[order]]
    return Suspicion(suspected, confident, share(len(suspected), confident))


def worst_slices(
    rows: ScoredRows, tokens: pd.Series[int] | None, table: pd.DataFrame, most: int
) -> list[dict[str, Any]]:
    """Return the slices with the lowest accuracy: by length, by columns of the data, a ``table``,
    that have 2 to 30 values, by class; of each, of 20 rows or more, the name, rows, accuracy, and
    whether that is surely lower than that of all rows.
    """
    names = [] if tokens is None else [_by_length(tokens)]  # the slice of each row
    for column in table.columns:
        if 1 < table[column].nunique() <= 30:
            names.append(f"{column} = " + table[column].astype("string"))
    names.append(pd.Series([f"true class '{rows.names[label]}'" for label in rows.labels]))
    slices: list[dict[str, Any]] = []
    overall = float(rows.right.mean())
    for slice_of_row in names:
        by_slice = pd.Series(rows.right).groupby(slice_of_row.to_numpy(), sort=False)
        for name, right in by_slice:
            if 20 <= len(right) < len(rows):
                accuracy = share(int(right.sum()), len(right))
                facts = {"name": name, "rows": len(right), "accuracy": asdict(accuracy)}
                slices.append({**facts, "lower": accuracy.high < overall})
    return sorted(slices, key=lambda part: float(part["accuracy"]["value"]))[:most]


def _by_length(tokens: pd.Series[int]) -> pd.Series[str]:
    """Return the group of each row by its tokens: quarters of all rows."""
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, 5)).astype(int))
    ends = [*(edges[1:-1] - 1), edges[-1]]
    names = [f"{low:,} to {high:,} tokens" for low, high in zip(edges, ends, strict=False)]
    return pd.Series(np.searchsorted(edges[1:-1], tokens, side="right")).map(dict(enumerate(names)))


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
    """Return what to divide logits, ``(rows, classes)``, by so that the log loss of validation rows
    is least (Guo et al., 2017); above 1 the model was overconfident.

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


def fit_threshold(logits: np.ndarray, has: np.ndarray) -> float:
    """Return the probability above which giving a label is best for F1 over all entries, half-way
    between two that occur; one half if no entry is positive. ``has``, of the shape of ``logits``,
    is which labels are there.
    """
    positives = np.sort(logits[has])
    if not len(positives):
        return 0.5
    entries = np.sort(logits, axis=None)
    levels, first = np.unique(positives, return_index=True)  # the best cut is below one of these
    lower = np.searchsorted(entries, levels)
    f1 = 2 * (len(positives) - first) / (len(entries) - lower + len(positives))
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))  # the highest of several
    below = entries[lower[best] - 1] if lower[best] else -np.inf
    return float(expit(np.array([levels[best], below], dtype=np.float64)).mean())
