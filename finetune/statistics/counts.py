"""Metrics of a confusion matrix, as functions of its tallies.

Accuracy, precision, recall, F1, Matthews correlation and the scores of ordered classes depend on a
confusion matrix only through sums over its rows, columns and diagonal: five *tallies* of each
class. So the jackknife of thousands of classes fits into memory. The formulas are those of
scikit-learn, and a division by zero gives 0, as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.statistics.estimates import Estimate, Measured, group_of_rows, share

#: The tallies of a class: rows of the class that are right, rows of the class, rows predicted to be
#: of it; then over the rows of the class how far off their predictions are, and that squared.
RIGHT, TRUE, PREDICTED, OFF, OFF_SQUARED = range(5)
Function = Callable[[np.ndarray], np.ndarray]


def tallies(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the tallies of each group of rows, shape ``(groups, 5, classes)``, float64.

    Args:
        labels: The true classes, shape ``(rows,)``.
        predicted: The predicted classes, shape ``(rows,)``.
        classes: How many classes there are.
    """
    groups, off = group_of_rows(len(labels)), np.abs(labels - predicted).astype(np.float64)
    count = int(groups.max(initial=-1)) + 1

    def sums(numbers: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        cells = np.bincount(groups * classes + numbers, weights, minlength=count * classes)
        return cells.reshape(count, classes).astype(np.float64)

    right = sums(labels, (labels == predicted).astype(np.float64))
    return np.stack(
        [right, sums(labels), sums(predicted), sums(labels, off), sums(labels, off**2)], axis=1
    )


def accuracy(tally: np.ndarray) -> np.ndarray:
    """Return the share of rows that are right, from shape ``(..., 5, classes)`` to ``(...)``."""
    return divide(tally[..., RIGHT, :].sum(axis=-1), tally[..., TRUE, :].sum(axis=-1))


def precision_of_classes(tally: np.ndarray) -> np.ndarray:
    """Return, of the rows predicted to be of a class, the share that are; ``(..., classes)``."""
    return divide(tally[..., RIGHT, :], tally[..., PREDICTED, :])


def recall_of_classes(tally: np.ndarray) -> np.ndarray:
    """Return, of the rows of a class, the share predicted to be; shape ``(..., classes)``."""
    return divide(tally[..., RIGHT, :], tally[..., TRUE, :])


def f1_of_classes(tally: np.ndarray) -> np.ndarray:
    """Return the harmonic mean of precision and recall; shape ``(..., classes)``."""
    return divide(2 * tally[..., RIGHT, :], tally[..., TRUE, :] + tally[..., PREDICTED, :])


def matthews_correlation(tally: np.ndarray) -> np.ndarray:
    """Return the correlation of true and predicted class (Gorodkin, Comput. Biol. Chem. 28,
    2004).
    """
    true, predicted = tally[..., TRUE, :], tally[..., PREDICTED, :]
    rows = true.sum(axis=-1)
    covariance = tally[..., RIGHT, :].sum(axis=-1) * rows - (true * predicted).sum(axis=-1)
    variances = (rows**2 - (predicted**2).sum(axis=-1)) * (rows**2 - (true**2).sum(axis=-1))
    return divide(covariance, np.sqrt(variances))


def mean_absolute_error(tally: np.ndarray) -> np.ndarray:
    """Return how many classes a prediction is off, on average, where classes have an order."""
    return divide(tally[..., OFF, :].sum(axis=-1), tally[..., TRUE, :].sum(axis=-1))


def quadratic_kappa(tally: np.ndarray) -> np.ndarray:
    """Return the agreement beyond chance, mistakes weighted by their squared distance (Cohen,
    Psychological Bulletin 70, 1968); NaN where all rows are of one class, and predicted to be.
    """
    true, predicted = tally[..., TRUE, :], tally[..., PREDICTED, :]
    place = np.arange(tally.shape[-1])
    rows = true.sum(axis=-1)
    # the sum of true_i predicted_j (i - j)^2 over all pairs, multiplied out
    squares = (true * place**2).sum(axis=-1) + (predicted * place**2).sum(axis=-1)
    products = (true * place).sum(axis=-1) * (predicted * place).sum(axis=-1)
    by_chance = squares - 2 * divide(products, rows)
    observed = tally[..., OFF_SQUARED, :].sum(axis=-1)
    undefined = by_chance <= 1e-9 * squares  # a rounding above zero, or none
    return np.asarray(np.where(undefined, np.nan, 1 - observed / np.where(undefined, 1, by_chance)))


@dataclass(frozen=True)
class Average:
    """A mean of a score over classes, as scikit-learn has it.

    Attributes:
        of_classes: The score of each class, from shape ``(..., 5, classes)`` to ``(..., classes)``.
        average: ``macro``, over the classes that occur; ``weighted``, by their rows; ``binary``, of
            one class.
        positive: That class.
    """

    of_classes: Function
    average: str
    positive: int = 1

    def __call__(self, tally: np.ndarray, whole: np.ndarray | None = None) -> np.ndarray:
        """Return the mean, shape ``(...)``.

        Args:
            tally: Shape ``(..., 5, classes)``.
            whole: Tallies of all rows, shape ``(5, classes)``, where ``tally`` is of a part of
                them: a class that the part lacks keeps its score. It would otherwise leave the
                mean, and macro F1 of a model that knows one class of two would jump from 0.5 to 1.
        """
        scores, weights = self.of_classes(tally), tally[..., TRUE, :]
        if self.average == "binary":
            return np.asarray(scores[..., self.positive])
        if self.average == "macro":
            weights = (tally[..., TRUE, :] + tally[..., PREDICTED, :] > 0).astype(np.float64)
            if whole is not None:
                scores = np.where(weights > 0, scores, self.of_classes(whole))
                weights = np.maximum(weights, whole[TRUE] + whole[PREDICTED] > 0)
        return divide((scores * weights).sum(axis=-1), weights.sum(axis=-1))

    def rows(self, whole: np.ndarray) -> float:
        """Return the rows that the mean rests on, with these tallies of all rows, shape ``(5,
        classes)``: of several classes as many as independent shares of each give together.
        """
        of_class: np.ndarray = whole[PREDICTED]
        if self.of_classes is not precision_of_classes:
            of_class = whole[TRUE] + (whole[PREDICTED] if self.of_classes is f1_of_classes else 0)
        if self.average == "binary":
            return float(max(1.0, of_class[self.positive]))
        weights = (whole[TRUE] + whole[PREDICTED] > 0).astype(np.float64)
        if self.average == "weighted":
            weights = whole[TRUE]
        return float(weights.sum() ** 2 / (weights**2 / np.maximum(of_class, 1)).sum())


def metric(name: str, arguments: Mapping[str, Any]) -> Function | None:
    """Return one of the local metrics as a function of tallies, shape ``(..., 5, classes)``.

    Args:
        name: Of the folder in ``metrics/``.
        arguments: Of its ``compute``.

    Returns:
        None if the metric is not one of counts, or not a single number with these arguments.
    """
    if name == "accuracy" and arguments.get("normalize", True) and set(arguments) <= {"normalize"}:
        return accuracy
    plain: dict[str, Function] = {
        "matthews_correlation": matthews_correlation,
        "quadratic_kappa": quadratic_kappa,
        "mean_absolute_error": mean_absolute_error,
    }
    if name in plain and not arguments:
        return plain[name]
    of_classes = {
        "precision": precision_of_classes,
        "recall": recall_of_classes,
        "f1": f1_of_classes,
    }.get(name)
    average = arguments.get("average", "binary")
    if of_classes is None or not set(arguments) <= {"average", "pos_label"}:
        return None
    if average == "micro":  # of one label a row, all of the three are the accuracy
        return accuracy
    if average not in ("binary", "weighted", "macro"):
        return None
    return Average(of_classes, average, int(arguments.get("pos_label", 1)))


def measure(function: Function, groups: np.ndarray) -> Measured:
    """Return a metric of the tallies of groups of rows, shape ``(groups, 5, classes)``."""
    whole = groups.sum(axis=0)
    without = whole - groups
    values = function(without, whole) if isinstance(function, Average) else function(without)
    return Measured.of_jackknife(float(function(whole)), np.asarray(values))


def estimate(function: Function, groups: np.ndarray) -> Estimate:
    """Return a metric with its interval; the arguments are those of :func:`measure`."""
    measured, whole = measure(function, groups), groups.sum(axis=0)
    rows = float(whole[TRUE].sum())
    if function is accuracy:
        return share(float(whole[RIGHT].sum()), rows)
    if function is mean_absolute_error:
        return measured.bounded(rows, high=max(1, whole.shape[-1] - 1))
    if isinstance(function, Average):
        return measured.bounded(min(rows, function.rows(whole)))
    macro = Average(f1_of_classes, "macro").rows(whole)
    return measured.bounded(min(rows, macro), low=-1.0)


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    is_zero = denominator == 0
    quotient: np.ndarray = np.where(is_zero, 0.0, numerator / np.where(is_zero, 1, denominator))
    return quotient
