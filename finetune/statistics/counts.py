"""Metrics of a confusion matrix: of one, or of a thousand resampled ones at once.

Accuracy, precision, recall, F1 and Matthews correlation depend on the rows only through how often
each class was taken for each. The formulas are those of scikit-learn, and a division by zero
gives 0, as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


def hidden(matrix: np.ndarray, rows: float) -> Iterator[np.ndarray]:
    """Confusion matrices in which a few rows of one class are taken as no row was.

    Args:
        matrix: True by predicted, shape ``(classes, classes)``.
        rows: How many rows of another kind a class may have without any having been seen: of
            ``n`` rows, the share ``rows / (n + rows)``.

    Yields:
        For each class that has rows, one matrix with that share of them right, and one with that
        share taken for the class that is predicted most besides.
    """
    supports, said = matrix.sum(axis=1), matrix.sum(axis=0)
    for each in np.flatnonzero(supports):
        moved = rows / (supports[each] + rows)
        others = np.where(np.arange(len(matrix)) == each, -1, said)
        for taken_for in (each, int(others.argmax())):
            other = matrix.astype(np.float64)
            other[each] *= 1 - moved
            other[each, taken_for] += moved * supports[each]
            yield other


def accuracy(matrices: np.ndarray) -> np.ndarray:
    """The share of rows that are right.

    Args:
        matrices: Shape ``(..., classes, classes)``, true by predicted.

    Returns:
        Shape ``(...)``.
    """
    right = np.trace(matrices, axis1=-2, axis2=-1)
    return divide(right, matrices.sum(axis=(-2, -1)))


def precision_of_classes(matrices: np.ndarray) -> np.ndarray:
    """Of the rows taken for a class, the share that are of it; shape ``(..., classes)``."""
    return divide(_right(matrices), matrices.sum(axis=-2))


def recall_of_classes(matrices: np.ndarray) -> np.ndarray:
    """Of the rows of a class, the share taken for it; shape ``(..., classes)``."""
    return divide(_right(matrices), matrices.sum(axis=-1))


def f1_of_classes(matrices: np.ndarray) -> np.ndarray:
    """The harmonic mean of precision and recall; shape ``(..., classes)``."""
    return divide(2 * _right(matrices), matrices.sum(axis=-1) + matrices.sum(axis=-2))


def matthews_correlation(matrices: np.ndarray) -> np.ndarray:
    """The correlation of true and predicted class (Gorodkin, Comput. Biol. Chem. 28, 2004)."""
    matrices = matrices.astype(np.float64)
    true, predicted = matrices.sum(axis=-1), matrices.sum(axis=-2)
    rows = true.sum(axis=-1)
    together = np.trace(matrices, axis1=-2, axis2=-1) * rows - (true * predicted).sum(axis=-1)
    apart = (rows**2 - (predicted**2).sum(axis=-1)) * (rows**2 - (true**2).sum(axis=-1))
    return divide(together, np.sqrt(apart))


def metric(name: str, arguments: Mapping[str, Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """One of the local metrics as a function of confusion matrices.

    Args:
        name: Of the folder in ``metrics/``.
        arguments: Of its ``compute``.

    Returns:
        From shape ``(..., classes, classes)`` to shape ``(...)``; None if the metric is not one of
        counts, or has arguments under which it is not one number of them.
    """
    if name == "accuracy" and arguments.get("normalize", True) and set(arguments) <= {"normalize"}:
        return accuracy
    if name == "matthews_correlation" and not arguments:
        return matthews_correlation
    of_classes = {
        "precision": precision_of_classes,
        "recall": recall_of_classes,
        "f1": f1_of_classes,
    }.get(name)
    if of_classes is None or not set(arguments) <= {"average", "pos_label"}:
        return None
    average = arguments.get("average", "binary")
    if average == "micro":  # of one label each, all of the three are the accuracy
        return accuracy
    if average == "binary":
        return lambda matrices: of_classes(matrices)[..., arguments.get("pos_label", 1)]
    if average == "weighted":
        return lambda matrices: _mean(of_classes(matrices), matrices.sum(axis=-1))
    if average == "macro":  # over the classes that occur, as scikit-learn does
        return lambda matrices: _mean(
            of_classes(matrices),
            (matrices.sum(axis=-1) + matrices.sum(axis=-2) > 0).astype(np.float64),
        )
    return None


def _right(matrices: np.ndarray) -> np.ndarray:
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def _mean(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return divide((scores * weights).sum(axis=-1), weights.sum(axis=-1))


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """0 where the denominator is."""
    zero = denominator == 0
    quotient: np.ndarray = np.where(zero, 0.0, numerator / np.where(zero, 1, denominator))
    return quotient
