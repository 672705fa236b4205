"""How near predicted numbers are to true ones, for one target or the mean over several.

Errors have an interval that is symmetric in their logarithm, R2 in that of 1 - R2, correlations on
Fisher's scale. Where single rows make up most of a squared error no interval of few rows covers
it 95% of the time, which is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from finetune.statistics.estimates import Estimate, Measured, group_of_rows

#: Rows below which there is no interval.
FEWEST_ROWS = 10
#: The share of a squared error from which on a single row is noted.
_DOMINANT = 0.5
#: A variance below that of rounding is none.
_ROUNDING = 1e-12
Function = Callable[[np.ndarray, np.ndarray], Measured]


@dataclass(frozen=True)
class Metric:
    """A metric of true and predicted numbers.

    Attributes:
        measure: From true and predicted numbers, shape ``(rows,)``, float64.
        scale: On which it is nearest to normal.
        inverse: From that scale.
    """

    measure: Function
    scale: Callable[[np.ndarray], np.ndarray]
    inverse: Callable[[np.ndarray], np.ndarray]


def mean_absolute_error(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the mean distance from the true number."""
    return Measured.of_mean(np.abs(values - labels))


def mean_squared_error(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the mean of the squared errors."""
    return Measured.of_mean((values - labels) ** 2)


def root_mean_squared_error(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the root of the mean of the squared errors."""
    return _jackknife(lambda error, *_: np.sqrt(error), (values - labels) ** 2)


def r2(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the share of the variance that is explained; not defined of equal labels."""
    if _is_constant(labels):
        return Measured(float("nan"), np.zeros(1))
    centred = labels - labels.mean()

    def function(error: np.ndarray, square: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return np.asarray(1 - error / (square - mean**2))

    return _jackknife(function, (values - labels) ** 2, centred**2, centred)


def pearson(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the linear correlation; not defined if either is constant."""
    if _is_constant(labels) or _is_constant(values):
        return Measured(float("nan"), np.zeros(1))
    x, y = labels - labels.mean(), values - values.mean()

    def function(*means: np.ndarray) -> np.ndarray:
        xy, xx, yy, mean_x, mean_y = means
        variances = (xx - mean_x**2) * (yy - mean_y**2)
        return np.asarray(((xy - mean_x * mean_y) / np.sqrt(variances)).clip(-1, 1))

    return _jackknife(function, x * y, x**2, y**2, x, y)


def spearman(labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the correlation of the ranks, ties as their mean."""
    groups = group_of_rows(len(labels))

    def correlation(rows: np.ndarray) -> float:
        return pearson(rankdata(labels[rows]), rankdata(values[rows])).value

    without = [correlation(groups != group) for group in range(int(groups.max()) + 1)]
    return Measured.of_jackknife(correlation(groups >= 0), np.array(without))


def _jackknife(function: Callable[..., np.ndarray], *values: np.ndarray) -> Measured:
    """Return a function of the means of what each row has, shape ``(rows,)`` each."""
    rows, sums = len(values[0]), [each.sum() for each in values]
    with np.errstate(all="ignore"):
        means = [(total - each) / (rows - 1) for total, each in zip(sums, values, strict=True)]
        value = float(function(*(total / rows for total in sums)))
        return Measured.of_jackknife(value, function(*means))


def _is_constant(numbers: np.ndarray) -> bool:
    return bool(np.ptp(numbers) <= _ROUNDING * np.abs(numbers).max(initial=0.0))


#: By the names of the folders in ``metrics/``; in the order that a table has them.
METRICS: Mapping[str, Metric] = {
    "r2": Metric(r2, lambda value: np.log(1 - value), lambda ends: 1 - np.exp(ends)),
    "mae": Metric(mean_absolute_error, np.log, np.exp),
    "rmse": Metric(root_mean_squared_error, np.log, np.exp),
    "mse": Metric(mean_squared_error, np.log, np.exp),
    "pearson": Metric(pearson, np.arctanh, np.tanh),
    "spearman": Metric(spearman, np.arctanh, np.tanh),
}


def measure(metric: Metric, labels: np.ndarray, values: np.ndarray) -> Measured:
    """Return the mean of a metric over targets; both of shape ``(rows, targets)``."""
    pairs = zip(labels.T.astype(np.float64), values.T.astype(np.float64), strict=True)
    parts = [metric.measure(*pair) for pair in pairs]
    return parts[0] if len(parts) == 1 else Measured.mean(parts)


def scores(
    metrics: Mapping[str, Metric], labels: np.ndarray, values: np.ndarray
) -> dict[str, Estimate]:
    """Return the mean over targets of each metric.

    Args:
        metrics: By what they are called.
        labels: Shape ``(rows, targets)``.
        values: What was predicted, of the same shape.
    """
    measured = {name: measure(metric, labels, values) for name, metric in metrics.items()}
    if len(labels) < FEWEST_ROWS:
        return {name: Estimate(found.value) for name, found in measured.items()}
    return {
        name: measured[name].scaled(metric.scale, metric.inverse)
        for name, metric in metrics.items()
    }


def differences(
    metrics: Mapping[str, Metric], labels: np.ndarray, first: np.ndarray, second: np.ndarray
) -> dict[str, Estimate]:
    """Return how much more of each metric the second model has than the first on the same rows;
    those that are not defined of both are left out.

    Args:
        metrics: By what they are called.
        labels: Shape ``(rows, targets)``.
        first: Predictions of the first model, of the same shape.
        second: Predictions of the second.
    """
    gaps = {
        name: measure(metric, labels, second) - measure(metric, labels, first)
        for name, metric in metrics.items()
        if np.isfinite(measure(metric, labels, first).value)
    }
    has_interval = len(labels) >= FEWEST_ROWS
    return {
        name: gap.difference() if has_interval else Estimate(gap.value)
        for name, gap in gaps.items()
        if np.isfinite(gap.value)
    }


def remarks(
    metrics: Mapping[str, Metric], labels: np.ndarray, values: np.ndarray, names: Sequence[str]
) -> list[str]:
    """Return what to know of :func:`scores`: too few rows, metrics that are not defined, and
    squared errors that one row decides.

    Args:
        metrics: By what they are called.
        labels: Shape ``(rows, targets)``.
        values: What was predicted, of the same shape.
        names: Of the targets; none of a single one.
    """
    if metrics and len(labels) < FEWEST_ROWS:
        return [f"no confidence intervals: there are none of fewer than {FEWEST_ROWS} test rows"]
    sentences = []
    for target, (label, value) in enumerate(zip(labels.T, values.T, strict=True)):
        of_target = f" of '{names[target]}'" if names else ""
        undefined = [
            n for n, metric in metrics.items() if np.isnan(metric.measure(label, value).value)
        ]
        if undefined:
            what = "label" if _is_constant(label) else "prediction"
            sentences.append(
                f"{', '.join(undefined)}{of_target} not defined: every {what} of the test rows is "
                f"{(label if what == 'label' else value)[0]:.6g}"
            )
        errors = (value - label) ** 2
        row = int(errors.argmax())
        if metrics and errors[row] > _DOMINANT * errors.sum():
            sentences.append(
                f"one test row (label{of_target} {label[row]:.6g}, prediction {value[row]:.6g}) "
                f"makes up {errors[row] / errors.sum():.0%} of the squared error: the confidence "
                "intervals of metrics of squared errors say little"
            )
    return sentences
