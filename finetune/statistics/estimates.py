"""Metrics with 95% confidence intervals for other test rows from the same distribution.

Standard errors come from a jackknife that leaves out one of 64 or more random groups of rows at a
time (Wolter, Introduction to Variance Estimation, 2007, chapter 4). The groups depend only on the
number of rows, so differences of two models on the same rows are paired. A metric is an array of
*replicates*, shape ``(1 + groups,)``: its value on all rows, then its value without each group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit  # importing scipy.stats takes 0.3 s

LEVEL, GROUPS = 0.95, 64
#: With few rows there are more groups, up to one for each row, while rows times groups stays below
#: this number: from 64 groups, the standard error itself is only accurate to 9%.
MAX_GROUPS, _MAX_CELLS = 1000, 1_280_000
#: With fewer rows, intervals of metrics that are not shares would be too narrow.
MIN_ROWS = 10
#: If two models differ on fewer rows, all of these may favor one model by chance.
MIN_DIFFERENT_ROWS = 6
_UPPER = (1 + LEVEL) / 2
Function = Callable[..., Any]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% confidence interval, which is NaN if there are too few rows."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Scale:
    """The range of a metric, and optionally a transformation to symmetric errors and back."""

    lowest: float
    highest: float
    forward: Function | None = None
    back: Function = np.positive


def group_rows(rows: int) -> np.ndarray:
    """Return the index of the jackknife group of each row, int64, shape ``(rows,)``."""
    count = min(rows, MAX_GROUPS, max(GROUPS, _MAX_CELLS // max(1, rows)))
    return np.random.default_rng(0).permutation(rows) % max(1, count)


def leave_out(sums: np.ndarray) -> np.ndarray:
    """Return the sum over groups, the first axis, and then the sum without each group.

    Adds the groups before and after the one left out: subtracting it from the total would lose all
    digits of the others if it is far larger.
    """
    zeros = np.zeros_like(sums[:1])
    before = np.concatenate([zeros, np.cumsum(sums, axis=0)])
    after = np.concatenate([np.cumsum(sums[::-1], axis=0)[::-1], zeros])
    return np.concatenate([before[-1:], before[:-1] + after[1:]])


def replicate_mean(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the replicates, shape ``(1 + groups,)``, of the mean of ``values``, ``(rows,)``."""
    with np.errstate(invalid="ignore"):  # 0 / 0 without the only row
        means = leave_out(np.bincount(groups, values)) / leave_out(np.bincount(groups))
    return np.asarray(means)


def replicate(function: Function, groups: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Return the replicates of a function by calling it on all rows, then without each group:
    float64, ``(1 + groups,)``, or ``(1 + groups, numbers)`` if it returns several numbers.
    """
    values = [np.asarray(function(*arrays), dtype=np.float64)]
    for number in range(int(groups.max(initial=-1)) + 1):
        is_used = groups != number
        parts = [array[is_used] for array in arrays]
        values.append(function(*parts) if is_used.any() else np.full_like(values[0], np.nan))
    return np.array(values)


def estimate(replicates: np.ndarray, scale: Scale, rows: float) -> Estimate:
    """Return the value of a metric with its confidence interval, or its mean over trainings with
    other seeds, with an interval for other seeds and other test rows.

    A metric between two limits has Wilson's interval at the effective sample size: the number of
    independent rows whose standard error equals that of the jackknife. It has a width even if every
    row is correct, and is corrected for bias, which the macro F1 of many classes has. The interval
    of other metrics is symmetric on their scale, by Student's t.

    Over seeds, the variances of seeds and of rows add, without the part that is in both; the
    degrees of freedom are Satterthwaite's. Readers and cases in radiology have the same design
    (Obuchowski and Rockette, Communications in Statistics 24, 1995; Hillis, Statistics in Medicine
    26, 2007). With fewer than three there is no interval: with two it would cover 88% where seeds
    differ much.

    Args:
        replicates: Shape ``(1 + groups,)``, or of several models on the same rows ``(seeds, 1 +
            groups)``; NaN where the metric is not defined.
        scale: The scale of the metric.
        rows: The upper limit of the effective sample size.
    """
    is_over_seeds = replicates.ndim == 2
    replicates = np.atleast_2d(replicates)
    value = float(replicates[:, 0].mean())
    fewest = MIN_ROWS
    if scale.forward is None and not is_over_seeds:
        fewest = 1
    has_few_seeds = is_over_seeds and len(replicates) < 3
    if has_few_seeds or rows < fewest or not np.isfinite(replicates).all():
        return Estimate(value)
    scaled, back = replicates, scale.back
    if scale.forward is not None:
        with np.errstate(all="ignore"):
            scaled = scale.forward(replicates)
    if not np.isfinite(scaled).all():  # e.g. the logarithm of an error of 0
        scaled, back = replicates, np.positive
    mean = scaled.mean(axis=0)
    if is_over_seeds:
        error, quantile = _error_over_seeds(scaled)
    else:
        error, quantile = _error(mean), _quantile(replicates[0], rows)
    if scale.forward is None:  # Wilson's interval at the effective sample size
        width = scale.highest - scale.lowest
        share, error = (value - scale.lowest) / width, error / width
        size = min(rows, share * (1 - share) / error**2) if error > 0 else rows
        center = np.clip((value - _bias(mean) - scale.lowest) / width, 0, 1)
        ends = np.array(wilson(center, size if size > 0 else rows, quantile))
        ends = ends * width + scale.lowest
    else:
        ends = np.sort(back(mean[0] + error * quantile * np.array([-1.0, 1.0])))
        ends = np.clip(ends, scale.lowest, scale.highest)
    return Estimate(value, min(value, float(ends[0])), max(value, float(ends[1])))


def difference_over_seeds(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Return the mean of the second models minus that of the first, with a confidence interval as
    in :func:`estimate`. Both have shape ``(seeds, 1 + groups)``, on the same rows.
    """
    value = float(second[:, 0].mean() - first[:, 0].mean())
    if min(len(first), len(second)) < 2 or not np.isfinite([first.sum(), second.sum()]).all():
        return Estimate(value)
    error, quantile = _error_over_seeds(second, first)
    return Estimate(value, value - error * quantile, value + error * quantile)


def _error_over_seeds(*models: np.ndarray) -> tuple[float, float]:
    """Return the standard error and Student's quantile of the mean over seeds, shape ``(seeds, 1 +
    groups)``, or of the difference of two such means.
    """
    means = [replicates.mean(axis=0) for replicates in models]
    of_rows = _error(means[0] - sum(means[1:])) ** 2
    of_seeds, in_both = [], 0.0
    for replicates, mean in zip(models, means, strict=True):
        count = len(replicates)
        of_seeds.append(float(replicates[:, 0].var(ddof=1)) / count)
        of_each = np.mean([_error(row) ** 2 for row in replicates])
        in_both += max(0.0, float(of_each) - _error(mean) ** 2) / (count - 1)
    variance = max(of_rows + sum(of_seeds) - in_both, of_rows, *of_seeds)
    spread = of_rows**2 / (len(means[0]) - 2)
    spread += sum(v**2 / (len(r) - 1) for v, r in zip(of_seeds, models, strict=True))
    freedom = variance**2 / spread if spread else len(means[0]) - 2
    return math.sqrt(variance), float(stdtrit(max(1.0, freedom), _UPPER))


def difference(
    first: np.ndarray, second: np.ndarray, scale: Scale, rows: int, different: int | None = None
) -> Estimate:
    """Return the value of the second model minus that of the first, with its confidence interval.

    Args:
        first: The replicates of the first model, shape ``(1 + groups,)``.
        second: The replicates of the second model on the same rows.
        scale: The scale of the metric.
        rows: The number of rows.
        different: The number of rows that the models predict differently; below
            :data:`MIN_DIFFERENT_ROWS` the interval contains 0. None if that is not known.
    """
    replicates = second - first
    if not np.isfinite(replicates).all():
        return Estimate(float(replicates[0]))
    value = float(replicates[0])
    middle = value - _bias(replicates)
    # add one row in favor of each model (Agresti and Min, Biometrics 61, 2005)
    width = scale.highest - scale.lowest
    unseen = 0.0
    if math.isfinite(width):
        unseen = math.sqrt(0.5) / rows
    error = math.hypot(_error(replicates), unseen)
    reach = error * _quantile(replicates, rows)
    low, high = min(value, middle - reach), max(value, middle + reach)
    if different is not None and different < MIN_DIFFERENT_ROWS:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = np.clip([low, high], min(value, -width), max(value, width))
    return Estimate(value, float(low), float(high))


def _error(replicates: np.ndarray) -> float:
    groups = len(replicates) - 1
    return float(np.sqrt((groups - 1) * replicates[1:].var()))


def _bias(replicates: np.ndarray) -> float:
    return float((len(replicates) - 2) * (replicates[1:].mean() - replicates[0]))


def _quantile(replicates: np.ndarray, rows: float) -> float:
    return float(stdtrit(max(1, min(len(replicates) - 1, rows) - 1), _UPPER))


def wilson(share: Any, rows: Any, quantile: float = float(ndtri(_UPPER))) -> tuple[Any, Any]:
    """Return the ends of Wilson's confidence interval for a share of ``rows``; arrays give arrays
    (Journal of the American Statistical Association 22, 1927).
    """
    square = quantile**2
    middle = (share + square / (2 * rows)) / (1 + square / rows)
    spread = np.maximum(share * (1 - share), 0) / rows + square / (4 * rows**2)
    reach = quantile * np.sqrt(spread) / (1 + square / rows)
    # exactly 0 for a share of 0, and 1 for a share of 1
    low = np.where(share <= 0, 0.0, np.minimum(share, middle - reach))
    return low, np.where(share >= 1, 1.0, np.maximum(share, middle + reach))


def shares(hits: Any, rows: Any) -> list[Estimate]:
    """Return the estimates of the shares ``hits / rows`` with Wilson's intervals, 0 to 1 if a share
    has no rows.
    """
    hits, rows = np.asarray(hits, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    divisors = np.maximum(rows, 1)
    values = hits / divisors
    low, high = wilson(values, divisors)
    columns = zip(values.tolist(), low.tolist(), high.tolist(), rows.tolist(), strict=True)
    return [Estimate(*ends) if count else Estimate(0.0, 0.0, 1.0) for *ends, count in columns]


def share(hits: float, rows: float) -> Estimate:
    """Return the estimate of a single share; see :func:`shares`."""
    return shares([hits], [rows])[0]


def newcombe(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Return the accuracy of the second model minus the first's, with Newcombe's paired interval
    (Statistics in Medicine 17, 1998, method 10). Both are bool: whether each row is right.
    """
    rows = len(first)
    common_hits = int((first & second).sum())
    first_hits, second_hits = int(first.sum()), int(second.sum())
    before, after = shares([first_hits, second_hits], [rows, rows])
    association = common_hits * rows - first_hits * second_hits
    if association > 0:  # the continuity correction
        association = max(0, association - rows // 2)
    margins = float(first_hits) * (rows - first_hits) * second_hits * (rows - second_hits)
    correlation = 0.0
    if margins:
        correlation = association / math.sqrt(margins)

    def reach(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up**2 - 2 * correlation * up * down + down**2))

    value = after.value - before.value
    return Estimate(
        value,
        value - reach(after.value - after.low, before.high - before.value),
        value + reach(after.high - after.value, before.value - before.low),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for multiple comparisons, in the same order (Holm, Scandinavian
    Journal of Statistics 6, 1979).
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    highest = np.maximum.accumulate(np.minimum(np.array(p_values)[order] * factors, 1))
    return list(highest[np.argsort(order)].tolist())
