"""Confidence intervals: what other test rows of the same kind would have given.

They are bootstrap intervals where the metric may be anything, and Wilson's where it is a share of
rows. They say nothing of another training: another seed gives another model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.stats import DegenerateDataWarning, bootstrap, norm, skew

from finetune.statistics import counts

LEVEL, DRAWS, SEED = 0.95, 1000, 0
#: Numbers that a jackknife goes through at most: each of 5,000 rows as often as there are rows.
_JACKKNIFE = 5_000**2
_NUMBERS_AT_ONCE = 1_000_000
#: Rows of which more are not drawn, where what is drawn is a sum: it is normal by then.
_MOST_DRAWN = 20_000
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


#: Of a metric that is not defined on the rows.
UNDEFINED = Interval(float("nan"), float("nan"), float("nan"))


def of_matrix(
    metrics: Mapping[str, Metric], matrix: np.ndarray, draws: int = DRAWS, seed: int = SEED
) -> dict[str, Interval]:
    """Return the intervals of metrics of a confusion matrix.

    The bootstrap cannot tell what it has never seen. Where no resample differs, as when every row
    is right, the ends are what the metric would be if as many rows of one class were of another
    kind as Wilson's interval allows where none was seen. The interval of a model that gets no row
    of some class right goes at least as far.

    Args:
        metrics: Each from tallies, shape ``(draws, 5, classes)``, to shape ``(draws,)``: see
            :func:`finetune.statistics.counts.tallies`.
        matrix: True by predicted, shape ``(classes, classes)``.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    if not metrics:
        return {}
    classes, whole = len(matrix), counts.tallies(matrix)
    filled = np.flatnonzero(matrix)  # most cells of many classes are empty, and stay so
    place = counts.placement(*np.divmod(filled, classes), classes)
    resampled = [counts.resampled(metric, whole) for metric in metrics.values()]

    def scores(drawn: np.ndarray) -> np.ndarray:
        found = np.asarray(drawn @ place).reshape(len(drawn), 5, classes)
        return np.stack([metric(found) for metric in resampled])

    intervals = of_counts(scores, matrix.ravel()[filled], 5 * classes, draws, seed)
    every, never_right = np.flatnonzero(whole[counts.TRUE]), _never_right(whole)
    found = {}
    for name, each in zip(metrics, intervals, strict=True):
        if np.isnan(each.value):
            found[name] = UNDEFINED
            continue
        chosen = every if each.low == each.high else never_right
        hidden = counts.hidden(matrix, _ENDS[1] ** 2, chosen)
        ends = [each.low, each.high, *(float(metrics[name](other)) for other in hidden)]
        found[name] = Interval(each.value, float(np.nanmin(ends)), float(np.nanmax(ends)))
    return found


def _never_right(whole: np.ndarray) -> np.ndarray:
    """Return classes of which rows, but no right ones, were seen: of many, those with the fewest
    rows and the most, between which the others lie.
    """
    chosen = np.flatnonzero((whole[counts.TRUE] > 0) & (whole[counts.RIGHT] == 0))
    order = chosen[np.argsort(whole[counts.TRUE, chosen], kind="stable")]
    return np.unique(order[[0, -1]]) if len(order) else order


def of_counts(
    metrics: Metric, numbers: np.ndarray, size: int, draws: int = DRAWS, seed: int = SEED
) -> list[Interval]:
    """Return intervals of metrics that the rows enter only by how many there are of each kind.

    A bootstrap over rows is then a multinomial draw of the kinds, however many rows there are
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 6). Up to 5,000 rows the
    ends are accelerated (BCa); of more rows, or of thousands of cells, that hardly moves them.

    Args:
        metrics: From counts, shape ``(draws, kinds)``, to shape ``(metrics, draws)``.
        numbers: How many rows there are of each kind, shape ``(kinds,)``.
        size: Numbers that one draw is turned into, which bounds how many are made at once.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    rows, kinds = int(numbers.sum()), len(numbers)
    generator, at_once = np.random.default_rng(seed), max(1, _NUMBERS_AT_ONCE // max(size, kinds))
    drawn = [
        metrics(generator.multinomial(rows, numbers / rows, size=min(at_once, draws - start)))
        for start in range(0, draws, at_once)
    ]

    def of_rows(some: np.ndarray) -> np.ndarray:
        own = some + kinds * np.arange(len(some))[:, None]
        counted = np.bincount(own.ravel(), minlength=len(some) * kinds)
        return metrics(counted.reshape(len(some), kinds))

    return _bootstrap(
        of_rows,
        np.repeat(np.arange(kinds), numbers),
        metrics(numbers[None])[:, 0],
        max(rows, size),
        accelerated=rows * max(rows, size) <= _JACKKNIFE,
        drawn=np.concatenate(drawn, axis=-1),
    )


def of_mean(values: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> Interval:
    """Return the interval of the mean of what each row has, shape ``(rows,)``.

    Of more than 20,000 rows nothing is drawn: the ends of the accelerated bootstrap of a mean are
    those of a normal distribution but for the skewness of the rows (Efron, Journal of the American
    Statistical Association 82, 1987), and a thousand draws are farther from them than that.

    Args:
        values: One a row.
        draws: Of the bootstrap.
        seed: Of the draws.
    """
    if len(values) > _MOST_DRAWN:
        mean, error = float(values.mean()), float(values.std()) / len(values) ** 0.5
        lean = float(skew(values)) / len(values) ** 0.5 if error > 0 else 0.0
        low, high = mean + error * (_ENDS + lean * (2 * _ENDS**2 + 1) / 6)
        return Interval(mean, min(mean, float(low)), max(mean, float(high)))
    return _bootstrap(
        lambda drawn: drawn.mean(axis=-1)[None],
        values,
        values.mean(keepdims=True),
        len(values),
        accelerated=len(values) ** 2 <= _JACKKNIFE,
        n_resamples=draws,
        rng=seed,
    )[0]


def of_share(hits: float, rows: int) -> Interval:
    """Return the interval of a share of rows (Wilson, Journal of the American Statistical
    Association 22, 1927).

    It has a width where none or all of few rows are hits, which is where the bootstrap has none.

    Args:
        hits: How many of the rows. Of ties it may be a fraction; the ends are then those of the
            nearest whole number, half a row away at most.
        rows: How many there are; of none, nothing is known.
    """
    return of_shares(np.array([hits]), np.array([rows]))[0]


def of_shares(hits: np.ndarray, rows: np.ndarray) -> list[Interval]:
    """Return :func:`of_share` of many; both of shape ``(shares,)``."""
    low, high = ends_of_shares(hits, rows)
    shares = hits / np.maximum(rows, 1)
    found = zip(shares.tolist(), low.tolist(), high.tolist(), rows.tolist(), strict=True)
    return [Interval(*ends) if count else Interval(0.0, 0.0, 1.0) for *ends, count in found]


def ends_of_shares(
    hits: np.ndarray, rows: np.ndarray, deviations: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the intervals of :func:`of_shares`, each of shape ``(shares,)``.

    Args:
        hits: Likewise.
        rows: Likewise.
        deviations: Standard deviations that they reach; None for 95%.
    """
    deviations, some = _ENDS[1] if deviations is None else deviations, np.maximum(rows, 1)
    whole, square = np.rint(hits), deviations**2
    middle = (2 * whole + square) / (2 * (some + square))
    reach = deviations * np.sqrt(4 * whole * (1 - whole / some) + square) / (2 * (some + square))
    shares = hits / some
    low = np.where(whole > 0, np.minimum(shares, middle - reach), 0.0)
    return low, np.where(whole < some, np.maximum(shares, middle + reach), 1.0)


def of_draws(values: np.ndarray, drawn: np.ndarray) -> list[Interval]:
    """Return intervals of metrics that were computed on resamples already, corrected for bias.

    Args:
        values: The metrics on all rows, shape ``(metrics,)``.
        drawn: On each resample, shape ``(draws, metrics)``; NaN where a metric is not defined.
    """
    return [_between(float(value), each) for value, each in zip(values, drawn.T, strict=True)]


def of_rows(metrics: Metric, rows: int, draws: int = DRAWS, seed: int = SEED) -> list[Interval]:
    """Return intervals of any metrics, corrected for bias only: a jackknife of slow metrics would
    take longer than all draws.

    Args:
        metrics: From indices of rows, shape ``(draws, rows)``, to shape ``(metrics, draws)``.
        rows: How many there are.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    every = np.arange(rows)
    values = metrics(every[None])[:, 0]
    return _bootstrap(metrics, every, values, rows, accelerated=False, n_resamples=draws, rng=seed)


def of_sums(
    metric: Callable[[np.ndarray], np.ndarray],
    groups: np.ndarray,
    values: np.ndarray,
    count: int,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Interval:
    """Return the interval of a metric of the sums over groups of rows, corrected for bias only.

    Of more than 20,000 rows the sums are drawn, which are normal by then, and not the rows.

    Args:
        metric: From sums, shape ``(draws, groups)``, to shape ``(draws,)``.
        groups: The number of the group of each row, shape ``(rows,)``.
        values: What each row adds to the sum of its group, shape ``(rows,)``.
        count: How many groups there are.
        draws: Bootstrap samples.
        seed: Of the draws.
    """
    rows = len(values)
    if rows > _MOST_DRAWN:
        sums, squares = (np.bincount(groups, each, count) for each in (values, values**2))
        spread = np.diag(squares) - np.outer(sums, sums) / rows
        generator = np.random.default_rng(seed)
        drawn = generator.multivariate_normal(sums, spread, size=draws, method="eigh")
        return _between(float(metric(sums[None])[0]), metric(drawn))

    def of_drawn(drawn: np.ndarray) -> np.ndarray:
        return metric(np.stack([np.bincount(groups[i], values[i], count) for i in drawn]))[None]

    return of_rows(of_drawn, rows, draws, seed)[0]


def _bootstrap(
    statistics: Metric,
    rows: np.ndarray,
    values: np.ndarray,
    numbers: int,
    *,
    accelerated: bool,
    drawn: np.ndarray | None = None,
    **options: Any,
) -> list[Interval]:
    """Return intervals by :func:`scipy.stats.bootstrap`.

    Args:
        statistics: From shape ``(draws, rows)`` to shape ``(statistics, draws)``.
        rows: What there is of each, shape ``(rows,)``.
        values: The statistics on all rows, shape ``(statistics,)``.
        numbers: That one draw is turned into.
        accelerated: Whether each row is left out once, for the acceleration (BCa).
        drawn: Draws of the statistics, shape ``(statistics, draws)``, if there are any already.
        **options: How to draw them, if there are none.
    """
    if len(rows) < 2:
        return [Interval(*[float(value)] * 3) for value in values]
    if drawn is not None:
        options = {
            "n_resamples": 0,
            "bootstrap_result": SimpleNamespace(bootstrap_distribution=drawn),
        }

    def over(some: np.ndarray, axis: int) -> np.ndarray:
        found = statistics(some.reshape(-1, some.shape[-1]))
        return found.reshape(len(values), *some.shape[:-1])

    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", DegenerateDataWarning)  # its ends are NaN: see _between
        found = bootstrap(
            (rows,),
            over,
            batch=max(1, _NUMBERS_AT_ONCE // numbers),
            vectorized=True,
            confidence_level=LEVEL,
            method="BCa" if accelerated else "percentile",
            **options,
        )
    ends = np.stack(found.confidence_interval, axis=-1)
    return [
        _between(float(value), each, own if accelerated else None)
        for value, each, own in zip(values, found.bootstrap_distribution, ends, strict=True)
    ]


def _between(value: float, drawn: np.ndarray, ends: np.ndarray | None = None) -> Interval:
    """Return the interval of bootstrap draws, corrected for bias (Efron, Journal of the American
    Statistical Association 82, 1987).

    The bootstrap repeats the bias of a metric of few rows, like macro F1 of many classes. Where
    that moves it too far for its quantiles to be corrected, the interval is the normal one around
    the corrected value (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 5.2).
    Draws for which the metric is not defined are left out.

    Args:
        value: On all rows.
        drawn: Of each draw, shape ``(draws,)``.
        ends: Accelerated as well, if they are known and finite.
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
    if ends is None or not np.isfinite(ends).all():
        below = float((drawn < value).mean() + (drawn == value).mean() / 2)
        middle = norm.ppf(np.clip(below, 0.5 / len(drawn), 1 - 0.5 / len(drawn)))
        ends = np.quantile(drawn, norm.cdf(2 * middle + _ENDS))
    return Interval(value, float(ends[0]), float(ends[1]))
