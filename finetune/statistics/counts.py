"""Metrics of a confusion matrix: of one, or of a thousand resampled ones at once.

Accuracy, precision, recall, F1, Matthews correlation and the scores of ordered classes depend on a
confusion matrix only through sums over its rows, columns and diagonal. These are its *tallies*,
five numbers for each class instead of one for each pair of classes, so that the bootstrap of
thousands of classes takes no more memory than that of a few. The formulas are those of
scikit-learn, and a division by zero gives 0, as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

#: The tallies of a class: rows of the class that are right, rows of the class, rows predicted to be
#: of it; then over the rows of the class how far off their predictions are, and that squared.
RIGHT, TRUE, PREDICTED, OFF, OFF_SQUARED = range(5)


def placement(labels: np.ndarray, predicted: np.ndarray, classes: int) -> csr_array:
    """Return the linear map from counts of kinds of rows to tallies.

    Args:
        labels: The true class of each kind, shape ``(kinds,)``.
        predicted: The predicted class of each kind, shape ``(kinds,)``.
        classes: How many classes there are.

    Returns:
        Shape ``(kinds, 5 * classes)``, float64.
    """
    kinds, off = np.arange(len(labels)), np.abs(labels - predicted).astype(np.float64)
    entries = [
        (RIGHT, labels, labels == predicted),
        (TRUE, labels, np.ones(len(labels))),
        (PREDICTED, predicted, np.ones(len(labels))),
        (OFF, labels, off),
        (OFF_SQUARED, labels, off**2),
    ]
    values = np.concatenate([np.asarray(value, dtype=np.float64) for _, _, value in entries])
    columns = np.concatenate([tally * classes + of for tally, of, _ in entries])
    return csr_array((values, (np.tile(kinds, 5), columns)), (len(labels), 5 * classes))


def tallies(matrices: np.ndarray) -> np.ndarray:
    """Return the tallies of confusion matrices.

    Args:
        matrices: Shape ``(..., classes, classes)``, true by predicted.

    Returns:
        Shape ``(..., 5, classes)``, float64.
    """
    whole, place = np.asarray(matrices, dtype=np.float64), np.arange(matrices.shape[-1])
    off = np.abs(place[:, None] - place)
    found = [
        np.diagonal(whole, axis1=-2, axis2=-1),
        whole.sum(axis=-1),
        whole.sum(axis=-2),
        (whole * off).sum(axis=-1),
        (whole * off**2).sum(axis=-1),
    ]
    return np.stack(found, axis=-2)


def hidden(matrix: np.ndarray, rows: float, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """Yield tallies in which a few rows of one class are predicted as no row was.

    Args:
        matrix: True by predicted, shape ``(classes, classes)``.
        rows: How many rows of another kind a class may have without any having been seen: of
            ``n`` rows, the share ``rows / (n + rows)``.
        chosen: The classes to take, each of which has rows.

    Yields:
        For each class, tallies with that share of its rows right, and with that share taken for
        the class that is predicted most besides.
    """
    whole = tallies(matrix[None])[0]
    for each in chosen:
        support = whole[TRUE, each]
        moved = rows / (support + rows)
        others = np.where(np.arange(len(matrix)) == each, -1, whole[PREDICTED])
        for taken_for in (each, int(others.argmax())):
            other, off = whole.copy(), abs(int(taken_for) - int(each))
            other[PREDICTED] -= moved * matrix[each]
            other[PREDICTED, taken_for] += moved * support
            for tally, of_moved in ((RIGHT, off == 0), (OFF, off), (OFF_SQUARED, off**2)):
                other[tally, each] *= 1 - moved
                other[tally, each] += moved * support * of_moved
            yield other


def accuracy(found: np.ndarray) -> np.ndarray:
    """Return the share of rows that are right.

    Args:
        found: Tallies, shape ``(..., 5, classes)``.

    Returns:
        Shape ``(...)``.
    """
    return divide(found[..., RIGHT, :].sum(axis=-1), found[..., TRUE, :].sum(axis=-1))


def precision_of_classes(found: np.ndarray) -> np.ndarray:
    """Return, of the rows predicted to be of a class, the share that are; ``(..., classes)``."""
    return divide(found[..., RIGHT, :], found[..., PREDICTED, :])


def recall_of_classes(found: np.ndarray) -> np.ndarray:
    """Return, of the rows of a class, the share predicted to be; shape ``(..., classes)``."""
    return divide(found[..., RIGHT, :], found[..., TRUE, :])


def f1_of_classes(found: np.ndarray) -> np.ndarray:
    """Return the harmonic mean of precision and recall; shape ``(..., classes)``."""
    return divide(2 * found[..., RIGHT, :], found[..., TRUE, :] + found[..., PREDICTED, :])


def matthews_correlation(found: np.ndarray) -> np.ndarray:
    """Return the correlation of true and predicted class (Gorodkin, Comput. Biol. Chem. 28,
    2004).
    """
    true, predicted = found[..., TRUE, :], found[..., PREDICTED, :]
    rows = true.sum(axis=-1)
    together = found[..., RIGHT, :].sum(axis=-1) * rows - (true * predicted).sum(axis=-1)
    apart = (rows**2 - (predicted**2).sum(axis=-1)) * (rows**2 - (true**2).sum(axis=-1))
    return divide(together, np.sqrt(apart))


def mean_absolute_error(found: np.ndarray) -> np.ndarray:
    """Return how many classes a prediction is off, on average.

    Args:
        found: Tallies of classes that have an order, like stars, shape ``(..., 5, classes)``.

    Returns:
        Shape ``(...)``.
    """
    return divide(found[..., OFF, :].sum(axis=-1), found[..., TRUE, :].sum(axis=-1))


def quadratic_kappa(found: np.ndarray) -> np.ndarray:
    """Return the agreement beyond chance, mistakes weighted by their squared distance (Cohen,
    Psychological Bulletin 70, 1968); shape ``(...)``, NaN where it is undefined: where all rows
    are of one class, and predicted to be of it.
    """
    true, predicted = found[..., TRUE, :], found[..., PREDICTED, :]
    place = np.arange(found.shape[-1])
    rows = true.sum(axis=-1)
    # the sum of true_i predicted_j (i - j)^2 over all pairs, multiplied out
    squares = (true * place**2).sum(axis=-1) + (predicted * place**2).sum(axis=-1)
    products = (true * place).sum(axis=-1) * (predicted * place).sum(axis=-1)
    by_chance = squares - 2 * divide(products, rows)
    seen = found[..., OFF_SQUARED, :].sum(axis=-1)
    undefined = by_chance <= 1e-9 * squares  # a rounding above zero, or none
    return np.asarray(np.where(undefined, np.nan, 1 - seen / np.where(undefined, 1, by_chance)))


def metric(name: str, arguments: Mapping[str, Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return one of the local metrics as a function of tallies.

    Args:
        name: Of the folder in ``metrics/``.
        arguments: Of its ``compute``.

    Returns:
        From shape ``(..., 5, classes)`` to shape ``(...)``; None if the metric is not one of
        counts, or has arguments under which it is not one number of them.
    """
    if name == "accuracy" and arguments.get("normalize", True) and set(arguments) <= {"normalize"}:
        return accuracy
    alone = {
        "matthews_correlation": matthews_correlation,
        "quadratic_kappa": quadratic_kappa,
        "mean_absolute_error": mean_absolute_error,
    }
    if name in alone and not arguments:
        return alone[name]
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
        return lambda found: of_classes(found)[..., arguments.get("pos_label", 1)]
    if average == "weighted":
        return lambda found: _mean(of_classes(found), found[..., TRUE, :])
    return Macro(of_classes) if average == "macro" else None


@dataclass(frozen=True)
class Macro:
    """The unweighted mean of a score over the classes that occur, as scikit-learn has it.

    Attributes:
        of_classes: The score of each class, from shape ``(..., 5, classes)`` to ``(..., classes)``.
        sample: Tallies of the rows that were resampled, shape ``(5, classes)``. A class that a
            resample happens to lack keeps its score on these. It would otherwise leave the mean,
            and macro F1 of a model that knows one class of two would jump from 0.5 to 1.
    """

    of_classes: Callable[[np.ndarray], np.ndarray]
    sample: np.ndarray | None = None

    def __call__(self, found: np.ndarray) -> np.ndarray:
        """Return the mean, shape ``(...)``."""
        scores, occurs = self.of_classes(found), _occurs(found)
        if self.sample is not None:
            scores = np.where(occurs, scores, self.of_classes(self.sample))
            occurs = occurs | _occurs(self.sample)
        return _mean(scores, occurs.astype(np.float64))


def resampled(
    metric: Callable[[np.ndarray], np.ndarray], sample: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return ``metric`` as it is to be computed on resamples of the rows with these tallies."""
    return replace(metric, sample=sample) if isinstance(metric, Macro) else metric


def _occurs(found: np.ndarray) -> np.ndarray:
    return np.asarray(found[..., TRUE, :] + found[..., PREDICTED, :] > 0)


def _mean(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return divide((scores * weights).sum(axis=-1), weights.sum(axis=-1))


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the denominator is."""
    zero = denominator == 0
    quotient: np.ndarray = np.where(zero, 0.0, numerator / np.where(zero, 1, denominator))
    return quotient
