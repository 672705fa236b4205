"""Classes with an order, like stars: how far off a prediction is counts."""

from __future__ import annotations

import numpy as np

from finetune.statistics.counts import divide


def mean_absolute_error(matrices: np.ndarray) -> np.ndarray:
    """How many classes a prediction is off, on average.

    Args:
        matrices: Shape ``(..., classes, classes)``, true by predicted, both in their order.

    Returns:
        Shape ``(...)``.
    """
    off = _distances(matrices.shape[-1])
    return divide((matrices * off).sum(axis=(-2, -1)), matrices.sum(axis=(-2, -1)))


def quadratic_kappa(matrices: np.ndarray) -> np.ndarray:
    """Agreement beyond chance, mistakes weighted by their squared distance (Cohen, Psychological
    Bulletin 70, 1968); shape ``(...)``, 0 where it is undefined.
    """
    matrices = matrices.astype(np.float64)
    weights = _distances(matrices.shape[-1]) ** 2
    true, predicted = matrices.sum(axis=-1), matrices.sum(axis=-2)
    rows = true.sum(axis=-1)
    by_chance = divide(np.einsum("...i,...j,ij->...", true, predicted, weights), rows)
    seen = (matrices * weights).sum(axis=(-2, -1))
    undefined = by_chance == 0
    return np.asarray(np.where(undefined, 0.0, 1 - seen / np.where(undefined, 1, by_chance)))


def _distances(classes: int) -> np.ndarray:
    number = np.arange(classes)
    distances: np.ndarray = np.abs(number[:, None] - number[None, :])
    return distances
