"""Confidence intervals: what other test rows of the same kind would have given.

They are bootstrap intervals where the metric may be anything, and Wilson's where it is a share of
rows. They say nothing of another training: another seed gives another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from finetune.results import counts

LEVEL, DRAWS, SEED = 0.95, 1000, 0
_INDICES_AT_ONCE = 5_000_000
_LEFT_OUT_AT_MOST = 500
#: Standard deviations that the bootstrap may lie beside the value before its quantiles, which can
#: go no further than its draws, are given up.
_MOST_BIAS = 0.8
_ENDS = norm.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
Metric = Callable[[np.ndarray], np.ndarray]


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


def of_matrix(
    metrics: Mapping[str, Metric], matrix: np.ndarray, draws: int = DRAWS, seed: int = SEED
) -> dict[str, Interval]:
    """Of metrics of a confusion matrix.

    Where no resample differs, as when every row is right, the ends are what the metric would be if
    as many rows of one class were of another kind as Wilson's interval allows where none was seen.

    Args:
        metrics: Each from shape ``(draws, classes, classes)`` to shape ``(draws,)``.
        matrix: True by predicted, shape ``(classes, classes)``.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    found = of_counts(metrics, matrix, draws, seed)
    for name, each in found.items():
        if each.low == each.high:
            hidden = counts.hidden(matrix, _ENDS[1] ** 2)
            ends = [each.value, *(float(metrics[name](other[None])[0]) for other in hidden)]
            found[name] = Interval(each.value, min(ends), max(ends))
    return found


def of_counts(
    metrics: Mapping[str, Metric],
    cells: np.ndarray,
    draws: int = DRAWS,
    seed: int = SEED,
    made_of_each: int = 1,
) -> dict[str, Interval]:
    """Of metrics that the rows enter only by how many there are of each kind.

    Args:
        metrics: Each from shape ``(draws, *cells.shape)`` to shape ``(draws,)``.
        cells: How many rows there are of each kind.
        draws: Bootstrap samples.
        seed: Of the draws.
        made_of_each: See :func:`finetune.results.counts.resampled`.
    """
    if not metrics:
        return {}
    filled, rows = np.flatnonzero(cells), int(cells.sum())
    numbers = cells.ravel()[filled]
    if len(filled) > _LEFT_OUT_AT_MOST:  # the skewness of some rows is about that of all
        some = np.random.default_rng(seed).choice(filled, _LEFT_OUT_AT_MOST, p=numbers / rows)
        filled, numbers = np.unique(some, return_counts=True)
    drawn = _of_each(metrics, counts.resampled(cells, draws, seed, made_of_each))
    without = _of_each(metrics, counts.without_a_row(cells, filled, made_of_each))
    return {
        name: _between(
            float(metric(cells[None])[0]),
            drawn[name],
            _acceleration(-without[name], numbers, rows),
        )
        for name, metric in metrics.items()
    }


def of_mean(values: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> Interval:
    """Of the mean of what each row has, shape ``(rows,)``."""
    drawn = _over_rows(
        lambda rows: values[rows].mean(axis=1, keepdims=True), len(values), draws, seed
    )
    acceleration = _acceleration(values, np.ones(len(values)), len(values))
    return _between(float(values.mean()), drawn[:, 0], acceleration)


def of_share(hits: float, rows: int) -> Interval:
    """Of a share of rows (Wilson, Journal of the American Statistical Association 22, 1927).

    It has a width where none or all of few rows are hits, which is where the bootstrap has none.

    Args:
        hits: How many of the rows.
        rows: How many there are; of none, nothing is known.
    """
    if not rows:
        return Interval(0.0, 0.0, 1.0)
    share, square = hits / rows, _ENDS[1] ** 2
    middle = (hits + square / 2) / (rows + square)
    reach = np.sqrt(rows * square * share * (1 - share) + square**2 / 4) / (rows + square)
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    # of none and of all, the end is the share itself but for a rounding
    return Interval(share, float(min(share, low)), float(max(share, high)))


def of_rows(metrics: Metric, rows: int, draws: int = DRAWS, seed: int = SEED) -> list[Interval]:
    """Of any metrics: the rows themselves are drawn.

    Args:
        metrics: From indices of rows, shape ``(draws, rows)``, to shape ``(draws, metrics)``.
        rows: How many there are.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    drawn = _over_rows(metrics, rows, draws, seed)
    values = metrics(np.arange(rows)[None])[0]
    return [_between(float(value), column) for value, column in zip(values, drawn.T, strict=True)]


def _of_each(metrics: Mapping[str, Metric], parts: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """The metrics of counts that come some at a time."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
    for some in parts:
        for name, metric in metrics.items():
            found[name].append(metric(some))
    return {name: np.concatenate(each) for name, each in found.items()}


def _over_rows(metrics: Metric, rows: int, draws: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    at_once = max(1, _INDICES_AT_ONCE // rows)
    return np.concatenate(
        [
            metrics(generator.integers(rows, size=(min(at_once, draws - start), rows)))
            for start in range(0, draws, at_once)
        ]
    )


def _between(value: float, drawn: np.ndarray, acceleration: float = 0.0) -> Interval:
    """The bias-corrected and accelerated interval, BCa (Efron, Journal of the American Statistical
    Association 82, 1987).

    The bootstrap repeats the bias of a metric of few rows, like macro F1 of many classes. Where
    that moves it too far for its quantiles to be corrected, the interval is the normal one around
    the corrected value (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 5.2).
    Draws for which the metric is not defined are left out.
    """
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, float("nan"), float("nan"))
    if drawn.min() == drawn.max():
        return Interval(value, value, value)
    bias, deviation = float(drawn.mean()) - value, float(drawn.std())
    if abs(bias) > _MOST_BIAS * deviation:
        low, high = value - bias + _ENDS * deviation
        if drawn.min() >= 0:
            low = max(low, 0.0)
        if drawn.max() <= 1:
            high = min(high, 1.0)
        return Interval(value, float(min(value, low)), float(max(value, high)))
    below = float((drawn < value).mean() + (drawn == value).mean() / 2)
    middle = norm.ppf(np.clip(below, 0.5 / len(drawn), 1 - 0.5 / len(drawn)))
    ends = norm.cdf(middle + (middle + _ENDS) / (1 - acceleration * (middle + _ENDS)))
    low, high = np.quantile(drawn, ends)
    return Interval(value, float(low), float(high))


def _acceleration(influences: np.ndarray, weights: np.ndarray, rows: int) -> float:
    """How the deviation of a metric changes with its value: a sixth of the skewness of what each
    row adds to it, over the root of their number.

    Args:
        influences: Of some rows, up to a factor and a constant, shape ``(kinds,)``.
        weights: How many rows each stands for.
        rows: How many there are in all.
    """
    apart = influences - np.average(influences, weights=weights)
    variance = np.average(apart**2, weights=weights)
    if variance < np.finfo(np.float64).tiny:
        return 0.0
    skewness = np.average(apart**3, weights=weights) / variance**1.5
    return float(skewness / (6 * np.sqrt(rows)))
