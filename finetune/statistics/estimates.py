"""A metric with its 95% confidence interval: what other test rows like these would have given.

The standard error is that of the jackknife (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 11), which leaves out each row, or each of 64 random groups of rows where that would
take too long. A metric with a lowest and a highest value has
Wilson's interval of as many rows as would give that error; an error without a highest value and a
correlation have one that is symmetric on the scale on which they are nearest to normal. Nothing is
said of another training: another seed gives another model. ``benchmarks/coverage.py`` simulates how
often the intervals hold the truth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

LEVEL = 0.95
GROUPS = 64
_DEVIATIONS = float(norm.ppf((1 + LEVEL) / 2))
_NAN = float("nan")


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% confidence interval; the ends are NaN where none is known."""

    value: float
    low: float = _NAN
    high: float = _NAN


#: Of a metric that is not defined on the rows.
UNDEFINED = Estimate(_NAN)


@functools.lru_cache(maxsize=8)
def group_of_rows(rows: int) -> np.ndarray:
    """Return the group of each row, shape ``(rows,)``: random, the same for every model."""
    return np.random.default_rng(0).permutation(rows) % min(GROUPS, max(1, rows))


@dataclass(frozen=True, eq=False)
class Measured:
    """A metric of some rows, and what each row, or group of rows, adds to its error.

    Attributes:
        value: NaN where the metric is not defined.
        errors: The sum of their squares is the variance of the value.
    """

    value: float
    errors: np.ndarray

    @classmethod
    def of_mean(cls, values: np.ndarray) -> Measured:
        """Return the mean of what each row has, shape ``(rows,)``."""
        mean, rows = float(values.mean()), len(values)
        return cls(mean, (values - mean) / np.sqrt(rows * max(1, rows - 1)))

    @classmethod
    def of_jackknife(cls, value: float, without: np.ndarray) -> Measured:
        """Return a metric of which ``without`` are the values without each row, or group."""
        count = len(without)
        return cls(value, (without.mean() - without) * np.sqrt((count - 1) / count))

    @classmethod
    def mean(cls, parts: Sequence[Measured]) -> Measured:
        """Return the mean of metrics of the same rows."""
        value = float(np.mean([part.value for part in parts]))
        return cls(value, np.mean([part.errors for part in parts], axis=0))

    @property
    def deviation(self) -> float:
        """The standard error of the value."""
        return float(np.linalg.norm(self.errors))

    def __sub__(self, other: Measured) -> Measured:
        return Measured(self.value - other.value, self.errors - other.errors)

    def bounded(self, rows: float, low: float = 0.0, high: float = 1.0) -> Estimate:
        """Return Wilson's interval at the effective number of rows.

        Args:
            rows: The most rows that the metric can rest on, as those of one class; of a metric
                whose error is zero, as many.
            low: The lowest value of the metric.
            high: The highest.
        """
        if not np.isfinite([self.value, self.deviation]).all():
            return Estimate(self.value)
        share = min(1.0, max(0.0, (self.value - low) / (high - low)))
        variance = (self.deviation / (high - low)) ** 2
        deviations = _DEVIATIONS
        if variance > 0 and 0 < share < 1:
            rows = min(rows, share * (1 - share) / variance)
            deviations = float(t.ppf((1 + LEVEL) / 2, len(self.errors) - 1))
        ends = wilson(np.array([share * rows]), np.array([rows]), deviations)
        lower, upper = (low + (high - low) * float(end[0]) for end in ends)
        return Estimate(self.value, min(self.value, lower), max(self.value, upper))

    def scaled(
        self,
        scale: Callable[[np.ndarray], np.ndarray],
        inverse: Callable[[np.ndarray], np.ndarray],
    ) -> Estimate:
        """Return an interval that is symmetric on a scale, by Student's distribution.

        Args:
            scale: From values to the scale.
            inverse: Back from it.
        """
        count = len(self.errors)
        without = self.value - self.errors * np.sqrt(count / max(1, count - 1))
        with np.errstate(all="ignore"):
            values = scale(np.append(without, self.value))
            if count < 2 or not np.isfinite(values).all():
                return Estimate(self.value)
            error = np.sqrt((count - 1) / count * np.sum((values[:-1] - values[:-1].mean()) ** 2))
            reach = t.ppf((1 + LEVEL) / 2, count - 1) * error
            ends = inverse(values[-1] + np.array([-reach, reach]))
        return Estimate(self.value, float(min(self.value, *ends)), float(max(self.value, *ends)))

    def difference(self, widest: float = np.inf) -> Estimate:
        """Return the interval of a difference of two metrics, at most ``widest`` from zero."""
        reach = t.ppf((1 + LEVEL) / 2, max(1, len(self.errors) - 1)) * self.deviation
        if not np.isfinite(reach):
            return Estimate(self.value)
        low, high = max(-widest, self.value - reach), min(widest, self.value + reach)
        return Estimate(self.value, float(low), float(high))


def wilson(
    hits: np.ndarray, rows: np.ndarray, deviations: float = _DEVIATIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of Wilson's intervals of shares (Journal of the American Statistical
    Association 22, 1927), each of shape ``(shares,)``.

    Args:
        hits: How many of the rows; fractions are possible.
        rows: How many there are; of none, nothing is known.
        deviations: Standard deviations that the interval reaches.
    """
    square = deviations**2
    with np.errstate(all="ignore"):
        shares = np.where(rows > 0, hits / rows, 0.0)
        middle = (2 * hits + square) / (2 * (rows + square))
        reach = deviations * np.sqrt(4 * hits * (1 - shares) + square) / (2 * (rows + square))
    low, high = np.minimum(shares, middle - reach), np.maximum(shares, middle + reach)
    low, high = np.where(hits > 0, low, 0.0), np.where(hits < rows, high, 1.0)
    return np.where(rows > 0, low, 0.0), np.where(rows > 0, high, 1.0)


def shares(hits: np.ndarray, rows: np.ndarray) -> list[Estimate]:
    """Return shares of rows with Wilson's intervals; both of shape ``(shares,)``."""
    low, high = wilson(hits, rows)
    values = np.where(rows > 0, hits / np.maximum(rows, 1), 0.0)
    return [Estimate(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def share(hits: float, rows: float) -> Estimate:
    """Return a share of rows with Wilson's interval."""
    return shares(np.array([hits]), np.array([rows]))[0]
