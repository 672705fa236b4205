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
#: Of more classes groups of rows are left out, not rows.
_MOST_CLASSES = 64


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


@dataclass(frozen=True, eq=False)
class Tallies:
    """Those of all rows and of their parts, each of which the jackknife leaves out.

    Attributes:
        whole: Shape ``(5, classes)``.
        parts: Of each kind of row, a pair of true and predicted class, or of each group of rows
            where there are many classes; shape ``(parts, 5, classes)``.
        kinds: The kind of each row, shape ``(rows,)``; None where parts are groups.
    """

    whole: np.ndarray
    parts: np.ndarray
    kinds: np.ndarray | None

    @classmethod
    def of(cls, labels: np.ndarray, predicted: np.ndarray, classes: int) -> Tallies:
        """Return those of rows with these classes, shape ``(rows,)`` each."""
        whole = _tally(labels, predicted, np.zeros(len(labels), np.int64), classes)[0]
        if classes > _MOST_CLASSES:
            groups = group_of_rows(len(labels))
            return cls(whole, _tally(labels, predicted, groups, classes), None)
        pairs, kinds = np.unique(labels * classes + predicted, return_inverse=True)
        true, said = np.divmod(pairs, classes)
        return cls(whole, _tally(true, said, np.arange(len(pairs)), classes), kinds)

    def measure(self, function: Function) -> Measured:
        """Return a metric, with the errors of the jackknife."""
        without = self.whole - self.parts
        if isinstance(function, Average):
            values = function(without, self.whole)
        else:
            values = function(without)
        values = values if self.kinds is None else values[self.kinds]
        return Measured.of_jackknife(float(function(self.whole)), values)

    def estimate(self, function: Function) -> Estimate:
        """Return a metric with its interval."""
        measured, rows = self.measure(function), float(self.whole[TRUE].sum())
        if function is accuracy:
            return share(float(self.whole[RIGHT].sum()), rows)
        if function is mean_absolute_error:
            return measured.bounded(rows, high=max(1, self.whole.shape[-1] - 1))
        if isinstance(function, Average):
            return measured.bounded(min(rows, function.rows(self.whole)))
        macro = Average(f1_of_classes, "macro").rows(self.whole)
        return measured.bounded(min(rows, macro), low=-1.0)


def _tally(
    labels: np.ndarray, predicted: np.ndarray, parts: np.ndarray, classes: int
) -> np.ndarray:
    """Return the tallies of each part of the rows, shape ``(parts, 5, classes)``, float64."""
    count, off = int(parts.max(initial=-1)) + 1, np.abs(labels - predicted).astype(np.float64)

    def sums(numbers: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        cells = np.bincount(parts * classes + numbers, weights, minlength=count * classes)
        return cells.reshape(count, classes).astype(np.float64)

    right = sums(labels, (labels == predicted).astype(np.float64))
    return np.stack(
        [right, sums(labels), sums(predicted), sums(labels, off), sums(labels, off**2)], axis=1
    )


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    is_zero = denominator == 0
    quotient: np.ndarray = np.where(is_zero, 0.0, numerator / np.where(is_zero, 1, denominator))
    return quotient
