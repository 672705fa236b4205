"""Classes with an order, like stars: how far off a prediction is counts."""

from __future__ import annotations

import numpy as np

from finetune.statistics.counts import OFF, OFF_SQUARED, PREDICTED, TRUE, divide


def mean_absolute_error(found: np.ndarray) -> np.ndarray:
    """Return how many classes a prediction is off, on average.

    Args:
        found: Tallies of the classes in their order, shape ``(..., 5, classes)``: see
            :func:`finetune.statistics.counts.tallies`.

    Returns:
        Shape ``(...)``.
    """
    return divide(found[..., OFF, :].sum(axis=-1), found[..., TRUE, :].sum(axis=-1))


def quadratic_kappa(found: np.ndarray) -> np.ndarray:
    """Return the agreement beyond chance, mistakes weighted by their squared distance (Cohen,
    Psychological Bulletin 70, 1968); shape ``(...)``, 0 where it is undefined.
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
    return np.asarray(np.where(undefined, 0.0, 1 - seen / np.where(undefined, 1, by_chance)))
