"""Probabilities of many rows and classes, a block at a time: as a whole they would fill the memory.

Logits of 50,000 rows and 2,000 classes are 400 MB as float32; their softmax is 800 MB as float64.
How well they rank the rows are the areas under the ROC and the precision-recall curve.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

from finetune.statistics.estimates import leave_out

#: The places of the areas in what :func:`area_replicates` returns.
ROC, PRECISION = 0, 1
#: Numbers of a block: 16 MB of them as float64.
AT_ONCE = 2**21


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices of ``count`` lines of ``size`` numbers, each of at most about a block."""
    step = max(1, AT_ONCE // max(1, size))
    for start in range(0, max(1, count), step):
        yield slice(start, min(count, start + step))


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Probabilities of the classes of rows, computed from logits where they are needed."""

    values: np.ndarray  # logits, also a mapped file, or the probabilities; (rows, classes)
    function: Literal["softmax", "sigmoid"] | None = None  # None if the values are probabilities
    temperature: float = 1.0  # logits are divided by it before the softmax

    @property
    def shape(self) -> tuple[int, ...]:
        """``(rows, classes)``."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    @property
    def logits(self) -> np.ndarray:
        """Logits with these probabilities; those of a softmax, unless they are known."""
        if self.function is None:
            return np.asarray(np.log(np.maximum(self.values, np.finfo(np.float64).tiny)))
        return self.values if self.temperature == 1 else self.values / self.temperature

    def rows(self, chosen: slice = slice(None)) -> np.ndarray:
        """Return the probabilities of some rows, shape ``(rows, classes)``, float64."""
        block = self._scaled(self.values[chosen])
        if self.function == "softmax":
            block -= block.max(axis=1, keepdims=True)
            np.exp(block, out=block)
            block /= block.sum(axis=1, keepdims=True)
        return block

    def columns(self, chosen: slice) -> np.ndarray:
        """Return the probabilities of some classes, shape ``(classes, rows)``, float64."""
        block = self._scaled(self.values[:, chosen].T)
        if self.function == "softmax":
            highest, total = self.normalizers
            block -= highest
            np.exp(block, out=block)
            block /= total
        return block

    def column(self, number: int) -> np.ndarray:
        """Return the probabilities of one class, shape ``(rows,)``."""
        column: np.ndarray = self.columns(slice(number, number + 1))[0]
        return column

    def row_blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of rows: which they are, and their probabilities."""
        for chosen in slices(*self.shape):
            yield chosen, self.rows(chosen)

    def column_blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of classes: which they are, and their probabilities, transposed."""
        rows, classes = self.shape
        for chosen in slices(classes, rows):
            yield chosen, self.columns(chosen)

    @functools.cached_property
    def normalizers(self) -> tuple[np.ndarray, np.ndarray]:
        """The highest scaled logit of each row, and the sum of the exponentials of all after that
        is subtracted; both of shape ``(rows,)``.
        """
        highest, total = np.empty(len(self)), np.empty(len(self))
        for chosen in slices(*self.shape):
            block = self._scaled(self.values[chosen])
            highest[chosen] = block.max(axis=1)
            block -= highest[chosen, None]
            total[chosen] = np.exp(block, out=block).sum(axis=1)
        return highest, total

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        block = values.astype(np.float64, order="C")
        if self.function == "sigmoid":
            return np.asarray(expit(block, out=block))
        if self.temperature != 1:
            block /= self.temperature
        return block


def area_replicates(
    probabilities: Probabilities, labels: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of the areas of each class against the rest.

    The area under the ROC curve is the probability that a row of the class has a higher probability
    of it than another row; that under the precision-recall curve is the average precision, which of
    a random order is the share of the class.

    Args:
        probabilities: Shape ``(rows, classes)``.
        labels: The true classes, ``(rows,)``, or which labels each row has, ``(rows, classes)``.
        groups: The group of each row.

    Returns:
        ROC areas and average precisions, shape ``(1 + groups, classes)``, NaN where no row, or
        every row, is of the class.
    """
    rows, classes = probabilities.shape
    shape = (2 + int(groups.max(initial=-1)), classes)
    roc, precision = np.full(shape, np.nan), np.full(shape, np.nan)
    for chosen, block in probabilities.column_blocks():
        for number, scores in enumerate(block, start=chosen.start):
            has = labels[:, number] if labels.ndim == 2 else labels == number
            if 0 < np.count_nonzero(has) < rows:
                roc[:, number], precision[:, number] = _areas(scores, has, groups)
    return roc, precision


def _areas(
    scores: np.ndarray, has: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of both areas of one class.

    Only its own rows are sorted, since of many classes each has few; equal scores are one level.
    """
    levels, places = np.unique(scores[has], return_inverse=True)
    width, count = len(levels) + 1, int(groups.max()) + 1

    def reached(side: str) -> np.ndarray:
        """Count the rows of each group above each level, those at it included if right."""
        level = np.searchsorted(levels, scores, side)  # type: ignore[call-overload]
        counts = np.bincount(groups * width + level, minlength=count * width).reshape(count, width)
        return leave_out(np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1])

    at_least, beyond_level = reached("right"), reached("left")
    cells = groups[has] * (width - 1) + places
    at_level = np.bincount(cells, minlength=count * (width - 1)).reshape(count, width - 1)
    positives = leave_out(at_level)
    own_at_least = np.cumsum(positives[:, ::-1], axis=1)[:, ::-1]
    total = own_at_least[:, 0]
    rest = leave_out(np.bincount(groups, minlength=count)) - total
    # rows of the rest at or above a level, and above it: ties count as halves
    beaten = rest[:, None] - (at_least - own_at_least + beyond_level - own_at_least + positives) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (positives * beaten).sum(axis=1) / (total * rest)
        precisions = np.where(at_least > 0, own_at_least / at_least, 0.0)
        precision = (positives * precisions).sum(axis=1) / total
    # a class that is lost with a group keeps its value
    return np.where(total * rest > 0, roc, roc[0]), np.where(total > 0, precision, precision[0])
