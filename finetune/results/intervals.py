"""Confidence intervals by the bootstrap: what other test rows of the same kind would have given.

They say nothing of another training: another seed gives another model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from finetune.results import counts

LEVEL, DRAWS, SEED = 0.95, 1000, 0
_INDICES_AT_ONCE = 5_000_000


@dataclass(frozen=True)
class Interval:
    """A value and where it lies with a confidence of 95%.

    Attributes:
        value: On the rows there are.
        low: The lower end.
        high: The upper end.
    """

    value: float
    low: float
    high: float


def of_counts(
    metric: Callable[[np.ndarray], np.ndarray],
    cells: np.ndarray,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Interval:
    """Of a metric that the rows enter only by how many there are of each kind.

    Args:
        metric: From shape ``(draws, *cells.shape)`` to shape ``(draws,)``.
        cells: How many rows there are of each kind.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    drawn = np.concatenate([metric(some) for some in counts.resampled(cells, draws, seed)])
    return _between(float(metric(cells[None])[0]), drawn)


def of_each(
    metric: Callable[[np.ndarray], np.ndarray],
    cells: np.ndarray,
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[Interval]:
    """The same of several metrics at once, one of each class: ``metric`` gives shape ``(draws,
    classes)``.
    """
    drawn = np.concatenate([metric(some) for some in counts.resampled(cells, draws, seed)])
    return [
        _between(float(value), column)
        for value, column in zip(metric(cells[None])[0], drawn.T, strict=True)
    ]


def of_mean(values: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> Interval:
    """Of the mean of what each row has, shape ``(rows,)``."""
    return of_rows(lambda rows: values[rows].mean(axis=1, keepdims=True), len(values), draws, seed)[
        0
    ]


def of_rows(
    metrics: Callable[[np.ndarray], np.ndarray], rows: int, draws: int = DRAWS, seed: int = SEED
) -> list[Interval]:
    """Of any metrics: the rows themselves are drawn.

    Args:
        metrics: From indices of rows, shape ``(draws, rows)``, to shape ``(draws, metrics)``.
        rows: How many there are.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    at_once = max(1, _INDICES_AT_ONCE // rows)
    drawn = np.concatenate(
        [
            metrics(generator.integers(rows, size=(min(at_once, draws - start), rows)))
            for start in range(0, draws, at_once)
        ]
    )
    values = metrics(np.arange(rows)[None])[0]
    return [_between(float(value), column) for value, column in zip(values, drawn.T, strict=True)]


def _between(value: float, drawn: np.ndarray) -> Interval:
    """The percentile interval (Efron and Tibshirani, chapter 13)."""
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))
