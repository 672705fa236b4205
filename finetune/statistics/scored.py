"""The predictions of a run as arrays, from which every statistic is computed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.special import logit

from finetune.data.prediction_columns import MOST_PROBABLE
from finetune.statistics.estimates import group_rows, leave_out
from finetune.statistics.probabilities import Probabilities, area_replicates, slices

Kind = Literal["classes", "labels", "numbers"]
_LOWEST, _SMALLEST = np.finfo(np.float16).min, np.finfo(np.float16).smallest_subnormal


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with their labels and the outputs of a model for them.

    Attributes:
        labels: Shape ``(rows,)`` or ``(rows, labels)``.
        kind: Of the labels.
    """

    labels: np.ndarray
    kind: ClassVar[Kind]

    @property
    def outputs(self) -> np.ndarray:
        """What metrics take as ``predictions``, shape ``(rows, outputs)``."""
        raise NotImplementedError

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """The group of each row in the jackknife, shape ``(rows,)``."""
        return group_rows(len(self))

    def __len__(self) -> int:
        return len(self.labels)


class Summary(NamedTuple):
    """What statistics need of the probabilities of each row; all of shape ``(rows,)``."""

    classes: np.ndarray  # the most probable one
    confidence: np.ndarray  # its probability
    of_label: np.ndarray  # the probability of the true class
    squares: np.ndarray  # the sum of the squares of all probabilities
    above: np.ndarray  # how many classes are more probable than the true one
    ties: np.ndarray  # how many are as probable, the true one among them


@dataclass(frozen=True, eq=False)
class NamedRows(Scored):
    """Rows of classes or labels that have names."""

    names: list[str]  # of the classes or labels, in the order of their numbers
    probabilities: Probabilities  # of each, shape (rows, classes)

    @property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """Sums by class over all rows, then without each group, each ``(1 + groups, classes)``:
        rows of the class that are predicted to be of it, rows of the class, rows predicted to be.
        """
        raise NotImplementedError

    @property
    def supports(self) -> np.ndarray:
        """The rows of each class, shape ``(classes,)``."""
        return np.asarray(self.tallies[1][0].astype(np.int64))

    @functools.cached_property
    def areas(self) -> tuple[np.ndarray, np.ndarray]:
        """The replicates of each class against the rest: of the area under the ROC curve, and of
        the average precision; both ``(1 + groups, classes)``, NaN where a class has no row or all.
        """
        return area_replicates(self.probabilities, self.labels, self.groups)


@dataclass(frozen=True, eq=False)
class ScoredRows(NamedRows):
    """Rows of one class each, the ``labels``, shape ``(rows,)``."""

    kind: ClassVar[Kind] = "classes"

    @property
    def outputs(self) -> np.ndarray:
        """The logits; of a table the logarithms of the probabilities."""
        return self.probabilities.logits

    @functools.cached_property
    def summary(self) -> Summary:
        """What most statistics need, computed in one pass over the probabilities."""
        parts = []
        for chosen, block in self.probabilities.row_blocks():
            places, classes = np.arange(len(block)), block.argmax(axis=1)
            of_label = block[places, self.labels[chosen]]
            is_above, is_tied = block > of_label[:, None], block == of_label[:, None]
            squares, above, ties = (values.sum(axis=1) for values in (block**2, is_above, is_tied))
            parts.append((classes, block[places, classes], of_label, squares, above, ties))
        return Summary(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def classes(self) -> np.ndarray:
        """The most probable class of each row, shape ``(rows,)``."""
        return self.summary.classes

    @property
    def right(self) -> np.ndarray:
        """Whether that is the true class, shape ``(rows,)``."""
        right: np.ndarray = self.classes == self.labels
        return right

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Counts of true by predicted class, shape ``(classes, classes)``."""
        count = len(self.names)
        cells = np.bincount(self.labels * count + self.classes, minlength=count**2)
        return cells.reshape(count, count)

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """Of all classes, then over the rows of each how far off the predictions are, and that
        squared: most metrics depend on a confusion matrix through these alone.
        """
        classes, off = len(self.names), np.abs(self.labels - self.classes)
        count = int(self.groups.max(initial=-1)) + 1

        def sums(by: np.ndarray, weights: np.ndarray | float = 1.0) -> np.ndarray:
            cells, shape = self.groups * classes + by, (count, classes)
            weights = np.broadcast_to(weights, cells.shape)
            return leave_out(np.bincount(cells, weights, count * classes).reshape(shape))

        weights = self.right, 1.0, off, off.astype(np.float64) ** 2
        right, true, *errors = (sums(self.labels, weight) for weight in weights)
        return right, true, sums(self.classes), *errors


@dataclass(frozen=True, eq=False)
class ScoredLabels(NamedRows):
    """Rows of any number of labels, of booleans, shape ``(rows, labels)``."""

    kind: ClassVar[Kind] = "labels"

    @property
    def outputs(self) -> np.ndarray:
        """The logits; of a table the log-odds of the probabilities."""
        values = self.probabilities.values
        if self.probabilities.function is None:
            limits = np.finfo(np.float64)
            return np.asarray(logit(np.clip(values, limits.tiny, 1 - limits.epsneg)))
        return values

    @functools.cached_property
    def decided(self) -> np.ndarray:
        """Which labels each row is given, shape ``(rows, labels)``: those above one half."""
        decided = np.empty(self.labels.shape, dtype=bool)
        for chosen, block in self.probabilities.row_blocks():
            decided[chosen] = block > 0.5
        return decided

    @property
    def right(self) -> np.ndarray:
        """Whether each row is given exactly the labels it has, shape ``(rows,)``."""
        right: np.ndarray = (self.decided == self.labels).all(axis=1)
        return right

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """Of all labels, see :attr:`NamedRows.tallies`."""
        rows, labels = self.labels.shape
        members = csr_array((np.ones(rows), (self.groups, np.arange(rows))))
        sums = np.empty((3, members.shape[0], labels))
        for chosen in slices(labels, rows):
            has, predicted = self.labels[:, chosen], self.decided[:, chosen]
            for place, entries in enumerate((has & predicted, has, predicted)):
                sums[place, :, chosen] = members @ entries.astype(np.float64)
        return tuple(map(leave_out, sums))


@dataclass(frozen=True, eq=False)
class ScoredNumbers(Scored):
    """Rows with the numbers that are their label and those predicted, ``(rows,)`` or ``(rows,
    targets)``.
    """

    values: np.ndarray
    kind: ClassVar[Kind] = "numbers"

    @property
    def targets(self) -> np.ndarray:
        """The labels, shape ``(rows, targets)``, float64."""
        return self.labels.reshape(len(self), -1).astype(np.float64)

    @property
    def outputs(self) -> np.ndarray:
        """The predictions, shape ``(rows, targets)``."""
        return self.values.reshape(len(self), -1)


def distances(first: Any, second: Any) -> np.ndarray:
    """Return how far the predictions of two models for the same rows are apart, ``(rows,)``, and 0
    where they are the same: of classes the sum of their probabilities, of labels the largest
    difference of these, of numbers that in standard deviations of the labels.
    """
    if first.kind == "classes":
        confidence = first.summary.confidence + second.summary.confidence
        return np.where(first.classes != second.classes, confidence, 0.0)
    if first.kind == "labels":
        gaps = np.abs(first.probabilities.rows() - second.probabilities.rows()).max(axis=1)
        return np.where((first.decided != second.decided).any(axis=1), gaps, 0.0)
    spread = first.targets.std(axis=0)
    gaps = np.abs(first.outputs - second.outputs) / np.where(spread > 0, spread, 1)
    return np.asarray(gaps.max(axis=1))


def class_numbers(table: pd.DataFrame, column: str, names: list[str]) -> np.ndarray:
    """Return the numbers of the classes that a column of a table names, shape ``(rows,)``."""
    number = {name: index for index, name in enumerate(names)}
    return table[column].map(number).to_numpy(dtype=np.int64)


def to_float16(outputs: np.ndarray) -> np.ndarray:
    """Return logits, ``(rows, classes)``, as float16, shifted so that the highest of a row is 0.

    Probabilities depend on differences of logits alone, and near 0 float16 is fine: no other class
    becomes the most probable one.
    """
    stored = np.empty(outputs.shape, dtype=np.float16)
    for chosen in slices(*outputs.shape):
        block = outputs[chosen].astype(np.float64)
        with np.errstate(invalid="ignore"):  # what is not finite stays so, and is refused later
            block -= block.max(axis=1, keepdims=True)
        is_inside = (block < 0) & np.isfinite(block)
        # what would round to 0 and is not: two classes would be the most probable ones
        stored[chosen] = np.where(is_inside, np.clip(block, _LOWEST, -_SMALLEST), block)
    return stored


def most_probable(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the most probable classes of each row in their order, and their probabilities, both
    of shape ``(rows, MOST_PROBABLE)``.
    """
    shape = (len(rows), MOST_PROBABLE)
    classes, probabilities = np.empty(shape, dtype=np.int64), np.empty(shape)
    for chosen, block in rows.probabilities.row_blocks():
        # stable: the first of several that are as probable, as everywhere
        order = np.argsort(-block, axis=1, kind="stable")[:, :MOST_PROBABLE]
        classes[chosen] = order
        probabilities[chosen] = np.take_along_axis(block, order, axis=1)
    return classes, probabilities
