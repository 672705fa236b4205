"""The table of metrics: name, kind of labels, direction, scale and function.

A function goes from rows to replicates, shape ``(1 + groups,)``. Values are those of
scikit-learn with ``zero_division=0``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from finetune.statistics.estimates import Scale, replicate, replicate_mean
from finetune.statistics.scored import PRECISION, ROC, Kind, NamedRows, ScoredLabels, ScoredRows

PROPORTION = Scale(0.0, 1.0)  # a share of the rows, whose interval needs no jackknife
SHARE = Scale(0.0, 1.0)
AGREEMENT = Scale(-1.0, 1.0)
CORRELATION = Scale(-1.0, 1.0, np.arctanh, np.tanh)
ERROR = Scale(0.0, math.inf, np.log, np.exp)
EXPLAINED = Scale(-math.inf, 1.0, lambda value: np.log(1 - value), lambda log: 1 - np.exp(log))
NUMBER = Scale(-math.inf, math.inf, np.positive)
Function = Callable[[Any], np.ndarray]


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    return np.where(denominator == 0, 0.0, numerator / np.where(denominator == 0, 1, denominator))


def _mean(function: Function) -> Function:
    """Return the function of the mean of what ``function`` returns of each row."""
    return lambda rows: replicate_mean(function(rows), rows.groups)


def _averaged(name: str, average: str, number: int = 1) -> Function:
    """Return the function of precision, recall or F1: ``binary``, of the class ``number`` alone;
    ``macro``, the mean over all labels, or over the classes that occur, of which one that is lost
    with a group keeps its score; ``weighted`` by the rows of a class; ``micro``, over all entries.
    """

    def function(rows: NamedRows) -> np.ndarray:
        right, true, predicted, *_ = rows.tallies
        denominator = {"precision": predicted, "recall": true, "f1": (true + predicted) / 2}[name]
        scores = _divide(right, denominator)
        occurs = true + predicted > 0
        if average == "micro":
            scores = _divide(right.sum(axis=1), denominator.sum(axis=1))
        elif average == "binary":
            scores = scores[:, number]
        elif average == "weighted":
            scores = _divide((scores * true).sum(axis=1), true.sum(axis=1))
        elif rows.kind == "labels":
            scores = scores.mean(axis=1)
        else:
            scores = np.where(occurs, scores, scores[0])[:, occurs[0]].mean(axis=1)
        return np.asarray(scores)

    return function


def _matthews_correlation(rows: ScoredRows) -> np.ndarray:
    """Return the correlation of true and predicted class (Gorodkin, Comput. Biol. Chem., 2004)."""
    right, true, predicted, *_ = rows.tallies
    count = true.sum(axis=1)
    together = right.sum(axis=1) * count - (true * predicted).sum(axis=1)
    square = (count**2 - (predicted**2).sum(axis=1)) * (count**2 - (true**2).sum(axis=1))
    return _divide(together, np.sqrt(square))


def _quadratic_kappa(rows: ScoredRows) -> np.ndarray:
    """Return the agreement beyond chance, mistakes weighted by their squared distance (Cohen,
    Psychological Bulletin 70, 1968); NaN where all rows are of one class and predicted to be.
    """
    _, true, predicted, off_squared = rows.tallies
    place = np.arange(true.shape[1])
    count = true.sum(axis=1)
    # the sum of true_i predicted_j (i - j)^2 over all pairs, multiplied out
    squares = (true * place**2).sum(axis=1) + (predicted * place**2).sum(axis=1)
    products = (true * place).sum(axis=1) * (predicted * place).sum(axis=1)
    by_chance = squares - 2 * _divide(products, count)
    is_undefined = by_chance <= 1e-9 * squares  # a rounding above zero, or none
    kappa = 1 - off_squared.sum(axis=1) / np.where(is_undefined, 1, by_chance)
    return np.asarray(np.where(is_undefined, np.nan, kappa))


def _mean_area(place: int) -> Function:
    """Return the function of the mean of an area, by its place in :attr:`ScoredRows.areas`, over
    the classes that have one; of two classes that of the second.
    """

    def function(rows: NamedRows) -> np.ndarray:
        areas = rows.areas[place]
        first = int(rows.kind == "classes" and areas.shape[1] == 2)
        defined = areas[:, first:][:, ~np.isnan(areas[0, first:])]
        return defined.mean(axis=1) if defined.size else np.full(len(areas), np.nan)

    return function


def _f1_of_rows(rows: ScoredLabels) -> np.ndarray:
    """Return the F1 of each row; 0 of one that neither has nor is given a label."""
    entries = rows.labels.sum(axis=1) + rows.decided.sum(axis=1)
    return _divide(2 * (rows.labels & rows.decided).sum(axis=1), entries)


def _log_losses(rows: ScoredLabels) -> np.ndarray:
    """Return the mean log loss of the labels of each row, in nats."""
    losses = []
    for chosen, block in rows.probabilities.row_blocks():
        of_truth = np.where(rows.labels[chosen], block, 1 - block)
        losses.append(-np.log(np.maximum(of_truth, np.finfo(np.float64).eps)).mean(axis=1))
    return np.concatenate(losses)


def _losses(rows: ScoredRows) -> np.ndarray:
    """Return minus the logarithm of the probability of the true class, in nats."""
    return np.asarray(-np.log(np.maximum(rows.summary.of_label, np.finfo(np.float64).tiny)))


def _brier_scores(rows: ScoredRows) -> np.ndarray:
    """Return the squared distance of the probabilities from the truth, summed over the classes
    (Brier, Monthly Weather Review 78, 1950): 0 is best, 2 is worst.
    """
    return np.asarray(rows.summary.squares - 2 * rows.summary.of_label + 1)


def _over_targets(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
    """Return the function of the mean over the targets of a function of true and predicted numbers,
    both ``(rows, targets)``, that returns one number a target.
    """

    def replicates(rows: Any) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = replicate(function, rows.groups, rows.targets, rows.outputs.astype(np.float64))
        return np.asarray(values.mean(axis=1))

    return replicates


def _errors(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    return _over_targets(lambda labels, values: function(values - labels))


def _r2(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the share of the variance that is explained; NaN where the labels are equal."""
    return np.asarray(1 - ((values - labels) ** 2).mean(axis=0) / _spread(labels) ** 2)


def _pearson(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the linear correlation; NaN where either is constant."""
    products = (labels - labels.mean(axis=0)) * (values - values.mean(axis=0))
    correlations = products.mean(axis=0) / (_spread(labels) * _spread(values))
    return np.asarray(np.clip(correlations, -1, 1))


def _spearman(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the correlation of the ranks, ties as their mean."""
    return _pearson(rankdata(labels, axis=0), rankdata(values, axis=0))


def _spread(numbers: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each target, NaN where all are equal but for rounding."""
    spread = numbers.std(axis=0)
    return np.where(spread > 1e-12 * np.abs(numbers).max(axis=0), spread, np.nan)


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
    scores = _averaged(name, "binary", number)
    return Metric(f"{name}_binary", "classes", 1, SHARE, scores, of_class=number)


_right = _mean(lambda rows: rows.right)
_wrong_entries = _mean(lambda rows: (rows.labels != rows.decided).mean(axis=1))
ROWS = (
    Metric("accuracy", "classes", 1, PROPORTION, _right),
    *map(binary, AVERAGED),
    *(
        Metric(f"{name}_{average}", "classes", 1, SHARE, _averaged(name, average))
        for name in AVERAGED
        for average in ("macro", "weighted")
    ),
    # of one class a row, all of the three are the accuracy
    *(Metric(f"{name}_micro", "classes", 1, PROPORTION, _right) for name in AVERAGED),
    Metric("matthews_correlation", "classes", 1, AGREEMENT, _matthews_correlation),
    Metric("quadratic_kappa", "classes", 1, AGREEMENT, _quadratic_kappa),
    Metric("mean_absolute_error", "classes", -1, ERROR, _mean(lambda rows: rows.off)),
    Metric("roc_auc", "classes", 1, SHARE, _mean_area(ROC)),
    Metric("average_precision", "classes", 1, SHARE, _mean_area(PRECISION)),
    Metric("log_loss", "classes", -1, ERROR, _mean(_losses)),
    Metric("brier_score", "classes", -1, ERROR, _mean(_brier_scores)),
    Metric("roc_area", "classes", 1, SHARE, _mean_area(ROC)),
    Metric("f1_micro", "labels", 1, SHARE, _averaged("f1", "micro")),
    Metric("f1_macro", "labels", 1, SHARE, _averaged("f1", "macro")),
    Metric("f1_samples", "labels", 1, SHARE, _mean(_f1_of_rows)),
    Metric("subset_accuracy", "labels", 1, PROPORTION, _right),
    Metric("average_precision", "labels", 1, SHARE, _mean_area(PRECISION)),
    Metric("hamming_loss", "labels", -1, SHARE, _wrong_entries),
    Metric("log_loss", "labels", -1, ERROR, _mean(_log_losses)),
    Metric("r2", "numbers", 1, EXPLAINED, _over_targets(_r2)),
    Metric("mae", "numbers", -1, ERROR, _errors(lambda error: abs(error).mean(axis=0))),
    Metric("rmse", "numbers", -1, ERROR, _errors(lambda error: np.sqrt((error**2).mean(axis=0)))),
    Metric("mse", "numbers", -1, ERROR, _errors(lambda error: (error**2).mean(axis=0))),
    Metric("pearson", "numbers", 1, CORRELATION, _over_targets(_pearson)),
    Metric("spearman", "numbers", 1, CORRELATION, _over_targets(_spearman)),
)
