"""Values with 95% confidence intervals: what other test rows of the same kind might have given.

The standard error of any metric comes from a jackknife that leaves out one of 64 or more random
groups of rows at a time (Wolter, Introduction to Variance Estimation, 2007, chapter 4). The groups
depend on the number of rows alone, so the difference of two models on the same rows is paired. A
metric is an array of *replicates*, ``(1 + groups,)``: its value on all rows, then without each
group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm, t

LEVEL, GROUPS = 0.95, 64
#: Of few rows there are more groups, up to one a row, within this many rows times groups: the
#: standard error of 64 groups is 9% off itself.
MOST_GROUPS, _MOST_CELLS = 1000, 1_280_000
#: Rows below which an interval that is not one of a share would be too narrow.
FEWEST_ROWS = 10
#: Rows that two models predict differently, below which all may favour one of them by chance.
FEWEST_DIFFERENT = 6
_UPPER = (1 + LEVEL) / 2
Function = Callable[..., Any]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% confidence interval; the ends are NaN where there are too few rows."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Scale:
    """The range of a metric; if it has no two ends, how its error gets symmetric, and back."""

    lowest: float
    highest: float
    forward: Function | None = None
    back: Function = np.positive


def group_rows(rows: int) -> np.ndarray:
    """Return the number of the group of each row, shape ``(rows,)``."""
    count = min(rows, MOST_GROUPS, max(GROUPS, _MOST_CELLS // max(1, rows)))
    return np.random.default_rng(0).permutation(rows) % max(1, count)


def leave_out(sums: np.ndarray) -> np.ndarray:
    """Return the total of the groups, the first axis, then the total without each of them.

    The groups before and after are added: subtracted from the total, a group that is far larger
    than the others would leave nothing of them.
    """
    none = np.zeros_like(sums[:1])
    before = np.concatenate([none, np.cumsum(sums, axis=0)])
    after = np.concatenate([np.cumsum(sums[::-1], axis=0)[::-1], none])
    return np.concatenate([before[-1:], before[:-1] + after[1:]])


def replicate_mean(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the replicates of the mean of one value a row, shape ``(rows,)``."""
    with np.errstate(invalid="ignore"):  # without the only row
        means = leave_out(np.bincount(groups, values)) / leave_out(np.bincount(groups))
    return np.asarray(means)


def replicate(function: Function, groups: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Return the replicates of a function of arrays over the rows, ``(1 + groups,)``, or ``(1 +
    groups, numbers)`` where it returns several, by calling it on them.
    """
    values = [np.asarray(function(*arrays), dtype=np.float64)]
    for number in range(int(groups.max(initial=-1)) + 1):
        is_left = groups != number
        some = [array[is_left] for array in arrays]
        values.append(function(*some) if is_left.any() else np.full_like(values[0], np.nan))
    return np.array(values)


def estimate(replicates: np.ndarray, scale: Scale, rows: float) -> Estimate:
    """Return the value with its interval.

    Of a value between two ends, like a share, that is Wilson's interval at the effective sample
    size, the number of independent rows for which the standard error is that of the jackknife: it
    has a width where every row is right. Its middle is free of the bias that the macro F1 of many
    classes has. Of other values it is symmetric on their scale, by Student's t.

    Args:
        replicates: Shape ``(1 + groups,)``; NaN where the metric is not defined.
        scale: Of the metric.
        rows: The most that the effective sample size may be.
    """
    value = float(replicates[0])
    quantile = _quantile(replicates, rows)
    if rows < 1 or not np.isfinite(replicates).all():
        return Estimate(value)
    if scale.forward is None:
        width = scale.highest - scale.lowest
        share, error = (value - scale.lowest) / width, _error(replicates) / width
        size = min(rows, share * (1 - share) / error**2) if error > 0 else rows
        middle = np.clip(share - _bias(replicates) / width, 0, 1)
        low, high = wilson(middle, size if size > 0 else rows, quantile)
        ends = np.array([low, high]) * width + scale.lowest
        return Estimate(value, min(value, float(ends[0])), max(value, float(ends[1])))
    if rows < FEWEST_ROWS:
        return Estimate(value)
    reach = np.array([-quantile, quantile])
    with np.errstate(all="ignore"):
        scaled = scale.forward(replicates)
    if np.isfinite(scaled).all():
        ends = np.sort(scale.back(scaled[0] + _error(scaled) * reach))
    else:  # as of an error of 0
        ends = np.clip(value + _error(replicates) * reach, scale.lowest, scale.highest)
    return Estimate(value, float(ends[0]), float(ends[1]))


def difference(
    first: np.ndarray, second: np.ndarray, scale: Scale, rows: int, different: int | None = None
) -> Estimate:
    """Return how much higher the second of two models is on the same rows, by replicates of both.

    If ``different``, the rows with different predictions, are few, 0 is in the interval.
    """
    replicates = second - first
    if not np.isfinite(replicates).all():
        return Estimate(float(replicates[0]))
    value, middle = float(replicates[0]), float(replicates[0]) - _bias(replicates)
    # as if two more rows favoured one model each (Agresti and Min, Biometrics 61, 2005)
    unseen = math.sqrt(0.5) / rows if math.isfinite(scale.highest - scale.lowest) else 0.0
    error = math.hypot(_error(replicates), unseen)
    reach = error * _quantile(replicates, rows)
    ends = np.array([min(value, middle - reach), max(value, middle + reach)])
    if different is not None and different < FEWEST_DIFFERENT:
        ends = np.array([min(ends[0], 0.0), max(ends[1], 0.0)])
    width = scale.highest - scale.lowest
    low, high = np.clip(ends, min(value, -width), max(value, width))
    return Estimate(value, float(low), float(high))


def _error(replicates: np.ndarray) -> float:
    count = len(replicates) - 1
    return float(np.sqrt((count - 1) * replicates[1:].var())) if count else 0.0


def _bias(replicates: np.ndarray) -> float:
    return float((len(replicates) - 2) * (replicates[1:].mean() - replicates[0]))


def _quantile(replicates: np.ndarray, rows: float) -> float:
    return float(t.ppf(_UPPER, max(1, min(len(replicates) - 1, rows) - 1)))


def wilson(share: Any, rows: Any, quantile: float = float(norm.ppf(_UPPER))) -> tuple[Any, Any]:
    """Return the ends of the interval of a share (Wilson, Journal of the American Statistical
    Association 22, 1927); arrays for arrays.
    """
    square = quantile**2
    middle = (share + square / (2 * rows)) / (1 + square / rows)
    spread = np.maximum(share * (1 - share), 0) / rows + square / (4 * rows**2)
    reach = quantile * np.sqrt(spread) / (1 + square / rows)
    # exactly 0 of no hits, and 1 where all are
    low = np.where(share <= 0, 0.0, np.minimum(share, middle - reach))
    return low, np.where(share >= 1, 1.0, np.maximum(share, middle + reach))


def shares(hits: Any, rows: Any) -> list[Estimate]:
    """Return the estimates of shares of rows, by the numbers of hits and rows; of no rows, nothing
    is known. A fraction of a hit, of ties, counts as the nearest whole number in the ends.
    """
    hits, rows = np.asarray(hits, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    low, high = wilson(np.rint(hits) / np.maximum(rows, 1), np.maximum(rows, 1))
    values = hits / np.maximum(rows, 1)
    low, high = np.minimum(values, low), np.maximum(values, high)
    columns = zip(values.tolist(), low.tolist(), high.tolist(), rows.tolist(), strict=True)
    return [Estimate(*ends) if count else Estimate(0.0, 0.0, 1.0) for *ends, count in columns]


def share(hits: float, rows: float) -> Estimate:
    """Return one estimate of :func:`shares`."""
    return shares([hits], [rows])[0]


def newcombe(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Return how much more often the second of two models is right, with Newcombe's interval for
    paired shares (Statistics in Medicine 17, 1998, method 10); booleans of the same rows.
    """
    rows = len(first)
    both = int((first & second).sum())
    right, other = int(first.sum()), int(second.sum())
    before, after = shares([right, other], [rows, rows])
    together = both * (rows - right - other + both) - (right - both) * (other - both)
    if together > 0:  # the correction for continuity of the correlation
        together = max(0, together - rows // 2)
    margins = float(right) * (rows - right) * other * (rows - other)
    correlation = together / math.sqrt(margins) if margins else 0.0

    def reach(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up**2 - 2 * correlation * up * down + down**2))

    value = after.value - before.value
    return Estimate(
        value,
        value - reach(after.value - after.low, before.high - before.value),
        value + reach(after.high - after.value, before.value - before.low),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for how many there are (Holm, Scandinavian Journal of Statistics 6,
    1979).
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    highest = np.maximum.accumulate(np.minimum(np.array(p_values)[order] * factors, 1))
    return list(highest[np.argsort(order)].tolist())
