"""The predictions of a run as arrays, which is what every statistic is computed from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
from scipy.special import logit

from finetune.data.prediction_columns import LABEL, MOST_PROBABLE, probability_of
from finetune.statistics import blocks
from finetune.statistics.blocks import Probabilities, Summary

_LOWEST, _SMALLEST = np.finfo(np.float16).min, np.finfo(np.float16).smallest_subnormal
_Remembered = TypeVar("_Remembered")


class Scored(Protocol):
    """Rows with their labels and what a model put out for them."""

    @property
    def labels(self) -> np.ndarray:
        """Shape ``(rows,)`` or ``(rows, labels)``."""

    @property
    def outputs(self) -> np.ndarray:
        """What metrics take as ``predictions``, shape ``(rows, number of outputs)``."""

    def __len__(self) -> int: ...


class Remembering:
    """Computes what many statistics share once."""

    def once(self, compute: Callable[[Any], _Remembered]) -> _Remembered:
        """Return what a function computes of these rows, the first time only."""
        memory: dict[Any, Any] = self.__dict__.setdefault("_memory", {})
        if compute not in memory:
            memory[compute] = compute(self)
        result: _Remembered = memory[compute]
        return result


@dataclass(frozen=True, eq=False)
class ScoredRows(Remembering):
    """Rows with their true class, shape ``(rows,)``, and the probability of every class, shape
    ``(rows, classes)``, float64; the names of the classes are in the order of their numbers.
    """

    names: list[str]
    labels: np.ndarray
    probabilities: Probabilities
    _logits: np.ndarray | None = None

    @classmethod
    def of_table(cls, table: pd.DataFrame, names: list[str]) -> ScoredRows:
        """Return those in the table of ``predictions.parquet``, which has every class."""
        columns = [probability_of(name) for name in names]
        return cls(names, numbers_in(table, LABEL, names), table[columns].to_numpy(np.float64))

    @classmethod
    def of_outputs(
        cls, names: list[str], labels: np.ndarray, outputs: np.ndarray, temperature: float = 1.0
    ) -> ScoredRows:
        """Return those of logits, shape ``(rows, classes)``, whatever their precision."""
        logits = outputs if temperature == 1 else None
        return cls(names, labels, blocks.softmax(outputs, temperature), logits)

    @functools.cached_property
    def summary(self) -> Summary:
        """What most statistics take of the probabilities of each row."""
        return Summary.of(self.probabilities, self.labels)

    @property
    def classes(self) -> np.ndarray:
        """Return the most probable class of each row, shape ``(rows,)``."""
        return self.summary.classes

    @property
    def right(self) -> np.ndarray:
        """Whether the most probable class of each row is its own, shape ``(rows,)``."""
        return self.summary.right

    @property
    def outputs(self) -> np.ndarray:
        """The logits; where there are none, the logarithms of the probabilities, which are some."""
        if self._logits is not None:
            return self._logits
        assert isinstance(self.probabilities, np.ndarray)
        outputs: np.ndarray = np.log(np.maximum(self.probabilities, np.finfo(np.float64).tiny))
        return outputs

    def column(self, number: int) -> np.ndarray:
        """Return the probability of one class, shape ``(rows,)``."""
        return blocks.column(self.probabilities, number)

    def __len__(self) -> int:
        return len(self.labels)


def numbers_in(table: pd.DataFrame, column: str, names: list[str]) -> np.ndarray:
    """Return the numbers of the classes that a column of a table names, shape ``(rows,)``."""
    number = {name: index for index, name in enumerate(names)}
    return table[column].map(number).to_numpy(dtype=np.int64)


def compress_logits(outputs: np.ndarray) -> np.ndarray:
    """Return logits as a file of them keeps them: float16, the highest of each row 0.

    Differences between logits are what probabilities depend on, and near 0 float16 is fine: no
    other class becomes the most probable one.

    Args:
        outputs: Shape ``(rows, classes)``.
    """
    found = np.empty(outputs.shape, dtype=np.float16)
    for some in blocks.slices(*outputs.shape):
        block = outputs[some].astype(np.float64)
        with np.errstate(invalid="ignore"):  # what is not finite stays so, and is refused later
            block -= block.max(axis=1, keepdims=True)
        inside = (block < 0) & np.isfinite(block)
        # what would round to 0 and is not: two classes would be the most probable ones
        found[some] = np.where(inside, np.clip(block, _LOWEST, -_SMALLEST), block)
    return found


def most_probable(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the most probable classes of each row in their order, and their probabilities, both
    of shape ``(rows, MOST_PROBABLE)``.
    """
    shape = (len(rows), MOST_PROBABLE)
    classes, probabilities = np.empty(shape, dtype=np.int64), np.empty(shape)
    for some, block in blocks.rows(rows.probabilities):
        left, every = block.copy(), np.arange(len(block))
        for place in range(MOST_PROBABLE):
            best = left.argmax(axis=1)  # the first of several, as everywhere
            classes[some, place], probabilities[some, place] = best, block[every, best]
            left[every, best] = -1
    return classes, probabilities


@dataclass(frozen=True)
class ScoredNumbers:
    """Rows with the numbers that are their label and those that were predicted: one each, shape
    ``(rows,)``, or several, shape ``(rows, targets)``.
    """

    labels: np.ndarray
    values: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """The labels, shape ``(rows, targets)``, float64."""
        return self.labels.reshape(len(self), -1).astype(np.float64)

    @property
    def outputs(self) -> np.ndarray:
        """What was predicted, shape ``(rows, targets)``."""
        return self.values.reshape(len(self), -1)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ScoredLabels(Remembering):
    """Rows with the labels that they have, of booleans, and the probability of each label, float64,
    both of shape ``(rows, labels)``; ``names`` are those of the labels in their order.
    """

    names: list[str]
    labels: np.ndarray
    probabilities: np.ndarray

    @property
    def decided(self) -> np.ndarray:
        """Which labels each row is given, shape ``(rows, labels)``: those above one half."""
        decided: np.ndarray = self.probabilities > 0.5
        return decided

    @property
    def right(self) -> np.ndarray:
        """Whether each row is given exactly the labels it has, shape ``(rows,)``."""
        right: np.ndarray = (self.decided == self.labels).all(axis=1)
        return right

    @property
    def outputs(self) -> np.ndarray:
        """The log-odds of the probabilities, which are logits."""
        inside = np.clip(self.probabilities, np.finfo(np.float64).tiny, 1 - np.finfo(float).epsneg)
        outputs: np.ndarray = logit(inside)
        return outputs

    def __len__(self) -> int:
        return len(self.labels)
