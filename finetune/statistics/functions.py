"""The table of metrics: name, kind of labels, direction, scale and function.

A function goes from rows to replicates, shape ``(1 + groups,)``. Values are those of
scikit-learn with ``zero_division=0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from finetune.statistics.estimates import (
    AGREEMENT,
    CORRELATION,
    ERROR,
    EXPLAINED,
    PROPORTION,
    SHARE,
    Scale,
    replicate,
    replicate_mean,
)
from finetune.statistics.probabilities import PRECISION, ROC
from finetune.statistics.scored import Kind, ScoredLabels, ScoredNumbers, ScoredRows

_ROUNDING = 1e-12  # of a spread: below it there is none
Function = Callable[[Any], np.ndarray]


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    return np.where(denominator == 0, 0.0, numerator / np.where(denominator == 0, 1, denominator))


def right(rows: ScoredRows | ScoredLabels) -> np.ndarray:
    """Return the share of rows that are right."""
    return replicate_mean(rows.right, rows.groups)


def averaged(name: str, average: str, number: int = 1) -> Function:
    """Return the function of precision, recall or F1.

    Args:
        name: Which of them.
        average: ``binary``, of the class ``number`` alone; ``macro``, the mean over all labels, or
            over the classes that occur, of which one that is lost with a group keeps its score;
            ``weighted``, the mean over all classes by their rows; ``micro``, over all entries.
        number: Of the class.
    """

    def function(rows: ScoredRows | ScoredLabels) -> np.ndarray:
        right, true, predicted, *_ = rows.tallies
        denominator = {"precision": predicted, "recall": true, "f1": (true + predicted) / 2}[name]
        scores, occurs = divide(right, denominator), true + predicted > 0
        if average == "micro":
            scores = divide(right.sum(axis=1), denominator.sum(axis=1))
        elif average == "binary":
            scores = scores[:, number]
        elif average == "weighted":
            scores = divide((scores * true).sum(axis=1), true.sum(axis=1))
        elif rows.kind == "labels":
            scores = scores.mean(axis=1)
        else:
            scores = np.where(occurs, scores, scores[0])[:, occurs[0]].mean(axis=1)
        return np.asarray(scores)

    return function


# ---- one class a row -----------------------------------------------------------------------------


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
    """Return the function of the mean of an area, by its place in :attr:`ScoredRows.areas`, over
    the classes that have one; of two classes that of the second.
    """

    def function(rows: ScoredRows | ScoredLabels) -> np.ndarray:
        areas = rows.areas[place]
        first = int(rows.kind == "classes" and areas.shape[1] == 2)
        defined = areas[:, first:][:, ~np.isnan(areas[0, first:])]
        return defined.mean(axis=1) if defined.size else np.full(len(areas), np.nan)

    return function


# ---- any number of labels a row ------------------------------------------------------------------


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


def over_targets(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
    """Return the function of the mean over the targets."""

    def replicates(rows: ScoredNumbers) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = replicate(function, rows.groups, rows.targets, rows.outputs.astype(np.float64))
        return np.asarray(values.mean(axis=1))

    return replicates


def _errors(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    return over_targets(lambda labels, values: function(values - labels))


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


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A row of the table."""

    name: str  # of the score; of those with averages, f1_macro; empty of one that is in no table
    kind: Kind  # of the labels
    direction: int  # 1 where more is better, -1 where less is
    scale: Scale  # on which it is estimated
    function: Function
    of_class: int | None = None  # the number of the class that it is of, if of one alone


AVERAGED = ("precision", "recall", "f1")


def binary(name: str, number: int = 1) -> Metric:
    """Return precision, recall or F1 of one class."""
    function = averaged(name, "binary", number)
    return Metric(f"{name}_binary", "classes", 1, SHARE, function, number)


ROWS = (
    Metric("accuracy", "classes", 1, PROPORTION, right),
    *map(binary, AVERAGED),
    *(
        Metric(f"{name}_{average}", "classes", 1, SHARE, averaged(name, average))
        for name in AVERAGED
        for average in ("macro", "weighted")
    ),
    # of one class a row, all of the three are the accuracy
    *(Metric(f"{name}_micro", "classes", 1, PROPORTION, right) for name in AVERAGED),
    Metric("matthews_correlation", "classes", 1, AGREEMENT, matthews_correlation),
    Metric("quadratic_kappa", "classes", 1, AGREEMENT, quadratic_kappa),
    Metric("mean_absolute_error", "classes", -1, ERROR, mean_absolute_error),
    Metric("roc_auc", "classes", 1, SHARE, mean_area(ROC)),
    Metric("average_precision", "classes", 1, SHARE, mean_area(PRECISION)),
    Metric("log_loss", "classes", -1, ERROR, log_loss),
    Metric("brier_score", "classes", -1, ERROR, brier_score),
    Metric("roc_area", "classes", 1, SHARE, mean_area(ROC)),
    Metric("f1_micro", "labels", 1, SHARE, averaged("f1", "micro")),
    Metric("f1_macro", "labels", 1, SHARE, averaged("f1", "macro")),
    Metric("f1_samples", "labels", 1, SHARE, f1_of_rows),
    Metric("subset_accuracy", "labels", 1, PROPORTION, right),
    Metric("average_precision", "labels", 1, SHARE, mean_area(PRECISION)),
    Metric("hamming_loss", "labels", -1, SHARE, hamming_loss),
    Metric("log_loss", "labels", -1, ERROR, log_loss_of_labels),
    Metric("r2", "numbers", 1, EXPLAINED, over_targets(r2)),
    Metric("mae", "numbers", -1, ERROR, _errors(lambda error: abs(error).mean(axis=0))),
    Metric("rmse", "numbers", -1, ERROR, _errors(lambda error: np.sqrt((error**2).mean(axis=0)))),
    Metric("mse", "numbers", -1, ERROR, _errors(lambda error: (error**2).mean(axis=0))),
    Metric("pearson", "numbers", 1, CORRELATION, over_targets(pearson)),
    Metric("spearman", "numbers", 1, CORRELATION, over_targets(spearman)),
)
