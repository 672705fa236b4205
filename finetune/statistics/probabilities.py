"""Probabilities of many rows and classes, a block at a time: as a whole they would fill the memory.

Logits of 50,000 rows and 2,000 classes are 400 MB as float32; their softmax is 800 MB as float64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

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
