"""Probabilities of many rows and classes, a block at a time: as a whole they would fill the memory.

Logits of 50,000 rows and 2,000 classes are 400 MB as float32; their softmax is 800 MB as float64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: Numbers of a block: 16 MB of them as float64.
AT_ONCE = 2**21


@dataclass(frozen=True, eq=False)
class Softmax:
    """The softmax of logits, computed where it is asked for, always with the same result.

    Attributes:
        outputs: Logits, shape ``(rows, classes)``, of any precision; a file that is mapped, too.
        temperature: They are divided by it.
    """

    outputs: np.ndarray
    temperature: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """``(rows, classes)``."""
        return self.outputs.shape

    def __len__(self) -> int:
        return len(self.outputs)

    def rows(self, some: slice) -> np.ndarray:
        """Return the probabilities of some rows, shape ``(rows, classes)``, float64."""
        shifted = self._scaled(self.outputs[some])
        shifted -= shifted.max(axis=1, keepdims=True)
        np.exp(shifted, out=shifted)
        shifted /= shifted.sum(axis=1, keepdims=True)
        return shifted

    def columns(self, some: slice) -> np.ndarray:
        """Return the probabilities of some classes, shape ``(classes, rows)``, float64."""
        highest, total = self.ends
        shifted = self._scaled(self.outputs[:, some].T)
        shifted -= highest
        np.exp(shifted, out=shifted)
        shifted /= total
        return shifted

    def _scaled(self, outputs: np.ndarray) -> np.ndarray:
        scaled = outputs.astype(np.float64, order="C")
        if self.temperature != 1:
            scaled /= self.temperature
        return scaled

    @functools.cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The highest logit of each row, and the sum of the exponentials of what all lack to it,
        both of shape ``(rows,)``.
        """
        highest, total = np.empty(len(self)), np.empty(len(self))
        for some in slices(*self.shape):
            shifted = self._scaled(self.outputs[some])
            highest[some] = shifted.max(axis=1)
            shifted -= highest[some, None]
            total[some] = np.exp(shifted, out=shifted).sum(axis=1)
        return highest, total


#: Of every class, shape ``(rows, classes)``: as an array, or computed where they are asked for.
Probabilities = np.ndarray | Softmax


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices of ``count`` lines of ``size`` numbers, each of at most about a block."""
    step = max(1, AT_ONCE // max(1, size))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def softmax(outputs: np.ndarray, temperature: float = 1.0) -> Probabilities:
    """Return the softmax of logits: as an array, unless it is larger than a block."""
    lazy = Softmax(outputs, temperature)
    return lazy if outputs.size > AT_ONCE else lazy.rows(slice(None))


def rows(probabilities: Probabilities) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of rows: which they are, and their probabilities, ``(rows, classes)``."""
    for some in slices(*probabilities.shape):
        yield some, _block(probabilities, some)


def columns(probabilities: Probabilities, start: int = 0) -> Iterator[np.ndarray]:
    """Yield the probabilities of each class from ``start`` on, shape ``(rows,)``."""
    count, classes = probabilities.shape
    for some in slices(classes - start, count):
        chosen = slice(some.start + start, some.stop + start)
        yield from _transposed(probabilities, chosen)


def column(probabilities: Probabilities, number: int) -> np.ndarray:
    """Return the probabilities of one class, shape ``(rows,)``."""
    found: np.ndarray = _transposed(probabilities, slice(number, number + 1))[0]
    return found


def _block(probabilities: Probabilities, some: slice) -> np.ndarray:
    if isinstance(probabilities, Softmax):
        return probabilities.rows(some)
    return probabilities[some]


def _transposed(probabilities: Probabilities, some: slice) -> np.ndarray:
    if isinstance(probabilities, Softmax):
        return probabilities.columns(some)
    return probabilities[:, some].T


@dataclass(frozen=True)
class Summary:
    """What statistics take of the probabilities of each row; all of shape ``(rows,)``.

    Attributes:
        classes: The most probable class.
        right: Whether that is the true one.
        confidence: Its probability.
        of_label: The probability of the true class.
        squares: The sum of the squares of all probabilities.
        above: How many classes are more probable than the true one.
        alike: How many are as probable, the true one among them.
    """

    classes: np.ndarray
    right: np.ndarray
    confidence: np.ndarray
    of_label: np.ndarray
    squares: np.ndarray
    above: np.ndarray
    alike: np.ndarray

    @classmethod
    def of(cls, probabilities: Probabilities, labels: np.ndarray) -> Summary:
        """Return that of rows with these true classes, shape ``(rows,)``, in one pass."""
        parts = [cls._of_block(some, labels[where]) for where, some in rows(probabilities)]
        if not parts:
            parts = [cls._of_block(np.empty(probabilities.shape), labels)]
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @staticmethod
    def _of_block(some: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
        every = np.arange(len(some))
        classes = some.argmax(axis=1)
        of_label = some[every, labels][:, None]
        return (
            classes,
            classes == labels,
            some[every, classes],
            of_label[:, 0],
            (some**2).sum(axis=1),
            (some > of_label).sum(axis=1),
            (some == of_label).sum(axis=1),
        )
