"""The functions of the table of metrics: from rows to replicates, shape ``(1 + groups,)``.

Values are those of scikit-learn with ``zero_division=0``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import rankdata

from finetune.statistics.estimates import replicate, replicate_mean
from finetune.statistics.scored import ScoredLabels, ScoredNumbers, ScoredRows

#: Of a spread denominator that of rounding there is none.
_ROUNDING = 1e-12
Function = Callable[[Any], np.ndarray]


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    is_zero = denominator == 0
    quotient: np.ndarray = np.where(is_zero, 0.0, numerator / np.where(is_zero, 1, denominator))
    return quotient


def right(rows: ScoredRows | ScoredLabels) -> np.ndarray:
    """Return the share of rows that are right."""
    return replicate_mean(rows.right, rows.groups)


# ---- one class a row -----------------------------------------------------------------------------


def of_classes(name: str, average: str, number: int = 1) -> Function:
    """Return the function of precision, recall or F1.

    Args:
        name: Which of them.
        average: ``binary``, of the class ``number`` alone; ``macro``, the mean over the classes
            that occur, of which one that is lost with a group keeps its score; ``weighted``, the
            mean over all classes by their rows.
        number: Of the class.
    """

    def function(rows: ScoredRows) -> np.ndarray:
        right, true, predicted, *_ = rows.tallies
        denominator = {"precision": predicted, "recall": true, "f1": (true + predicted) / 2}[name]
        scores, occurs = divide(right, denominator), true + predicted > 0
        if average == "binary":
            return np.asarray(scores[:, number])
        if average == "weighted":
            return divide((scores * true).sum(axis=1), true.sum(axis=1))
        return np.asarray(np.where(occurs, scores, scores[0])[:, occurs[0]].mean(axis=1))

    return function


def matthews_correlation(rows: ScoredRows) -> np.ndarray:
    """Return the correlation of true and predicted class (Gorodkin, Comput. Biol. Chem., 2004)."""
    right, true, predicted, *_ = rows.tallies
    count = true.sum(axis=1)
    together = right.sum(axis=1) * count - (true * predicted).sum(axis=1)
    square = (count**2 - (predicted**2).sum(axis=1)) * (count**2 - (true**2).sum(axis=1))
    return divide(together, np.sqrt(square))


def mean_absolute_error(rows: ScoredRows) -> np.ndarray:
    """Return how many classes a prediction is off on average."""
    _, true, _, off, _ = rows.tallies
    return divide(off.sum(axis=1), true.sum(axis=1))


def quadratic_kappa(rows: ScoredRows) -> np.ndarray:
    """Return the agreement beyond chance, mistakes weighted by their squared distance (Cohen,
    Psychological Bulletin 70, 1968); NaN where all rows are of one class and predicted to be.
    """
    _, true, predicted, _, off_squared = rows.tallies
    place, count = np.arange(true.shape[1]), true.sum(axis=1)
    # the sum of true_i predicted_j (i - j)^2 over all pairs, multiplied out
    squares = (true * place**2).sum(axis=1) + (predicted * place**2).sum(axis=1)
    products = (true * place).sum(axis=1) * (predicted * place).sum(axis=1)
    by_chance = squares - 2 * divide(products, count)
    is_undefined = by_chance <= 1e-9 * squares  # a rounding above zero, or none
    kappa = 1 - off_squared.sum(axis=1) / np.where(is_undefined, 1, by_chance)
    return np.asarray(np.where(is_undefined, np.nan, kappa))


def log_loss(rows: ScoredRows) -> np.ndarray:
    """Return minus the mean logarithm of the probability of the true class, in nats."""
    losses = -np.log(np.maximum(rows.summary.of_label, np.finfo(np.float64).tiny))
    return replicate_mean(losses, rows.groups)


def brier_score(rows: ScoredRows) -> np.ndarray:
    """Return the mean squared distance of the probabilities from the truth, summed over the classes
    (Brier, Monthly Weather Review 78, 1950): 0 is best, 2 is worst.
    """
    return replicate_mean(rows.summary.squares - 2 * rows.summary.of_label + 1, rows.groups)


def mean_area(place: int) -> Function:
    """Return the function of the mean of an area, by its place in :attr:`Scored.areas`, over the
    classes that have one; of two classes that of the second.
    """

    def function(rows: ScoredRows | ScoredLabels) -> np.ndarray:
        areas = rows.areas[place]
        first = int(rows.kind == "classes" and areas.shape[1] == 2)
        defined = areas[:, first:][:, ~np.isnan(areas[0, first:])]
        return defined.mean(axis=1) if defined.size else np.full(len(areas), np.nan)

    return function


# ---- any number of labels a row ------------------------------------------------------------------


def f1_of_labels(average: str) -> Function:
    """Return the function of the F1 over all rows and labels, ``micro``, or of the mean F1 of the
    labels, ``macro``.
    """

    def function(rows: ScoredLabels) -> np.ndarray:
        shared, has, predicted = rows.tallies
        if average == "macro":
            return np.asarray(divide(2 * shared, has + predicted).mean(axis=1))
        return divide(2 * shared.sum(axis=1), (has + predicted).sum(axis=1))

    return function


def f1_of_rows(rows: ScoredLabels) -> np.ndarray:
    """Return the mean F1 of the rows; 0 of a row that neither has nor is given a label."""
    shared = (rows.labels & rows.decided).sum(axis=1)
    entries = rows.labels.sum(axis=1) + rows.decided.sum(axis=1)
    return replicate_mean(divide(2 * shared, entries), rows.groups)


def hamming_loss(rows: ScoredLabels) -> np.ndarray:
    """Return the share of wrong entries."""
    return replicate_mean((rows.labels != rows.decided).mean(axis=1), rows.groups)


def log_loss_of_labels(rows: ScoredLabels) -> np.ndarray:
    """Return the mean log loss of a label, in nats."""
    losses = np.empty(len(rows))
    for chosen, block in rows.probabilities.row_blocks():
        of_truth = np.where(rows.labels[chosen], block, 1 - block)
        losses[chosen] = -np.log(np.maximum(of_truth, np.finfo(np.float64).eps)).mean(axis=1)
    return replicate_mean(losses, rows.groups)


# ---- numbers: true and predicted, shape (rows, targets), to one number a target ------------------

NumberFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]


def over_targets(function: NumberFunction) -> Function:
    """Return the function of the mean over the targets."""

    def replicates(rows: ScoredNumbers) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = replicate(function, rows.groups, rows.targets, rows.outputs.astype(np.float64))
        return np.asarray(values.mean(axis=1))

    return replicates


def r2(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the share of the variance that is explained; NaN where the labels are equal."""
    return np.asarray(1 - ((values - labels) ** 2).mean(axis=0) / _spread(labels) ** 2)


def pearson(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the linear correlation; NaN where either is constant."""
    products = (labels - labels.mean(axis=0)) * (values - values.mean(axis=0))
    correlations = products.mean(axis=0) / (_spread(labels) * _spread(values))
    return np.asarray(np.clip(correlations, -1, 1))


def spearman(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the correlation of the ranks, ties as their mean."""
    return pearson(rankdata(labels, axis=0), rankdata(values, axis=0))


def _spread(numbers: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each target, NaN where all are equal but for rounding."""
    spread = numbers.std(axis=0)
    return np.where(spread > _ROUNDING * np.abs(numbers).max(axis=0), spread, np.nan)
