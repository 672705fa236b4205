"""The predictions of a run as arrays, from which every statistic is computed.

Probabilities of many rows and classes are computed a block at a time: logits of 50,000 rows and
2,000 classes are 400 MB as float32, and their softmax as float64 would be 800 MB.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.special import expit, logit, softmax

from finetune.data.prediction_columns import MOST_PROBABLE
from finetune.statistics.estimates import group_rows, leave_out

Kind = Literal["classes", "labels", "numbers"]
#: The places in what :func:`area_replicates` returns.
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

    def rows(self, chosen: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the probabilities of some rows, shape ``(rows, classes)``, float64."""
        block = self._scaled(self.values[chosen])
        return np.asarray(softmax(block, axis=1)) if self.function == "softmax" else block

    def columns(self, chosen: slice = slice(None)) -> np.ndarray:
        """Return the probabilities of some classes, shape ``(classes, rows)``, float64."""
        block = self._scaled(self.values[:, chosen].T)
        if self.function != "softmax":
            return block
        highest, total = self.normalizers
        block -= highest
        return np.asarray(np.exp(block, out=block) / total)

    def row_blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of rows: which they are, and their probabilities."""
        for chosen in slices(*self.values.shape):
            yield chosen, self.rows(chosen)

    @functools.cached_property
    def normalizers(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the highest scaled logit, and the sum of all exponentials less that."""
        highest, total = np.empty((2, len(self.values)))
        for chosen in slices(*self.values.shape):
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


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with labels and ``outputs``, which metrics take as ``predictions``."""

    labels: np.ndarray  # shape (rows,) or (rows, labels)
    kind: ClassVar[Kind]

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
    def outputs(self) -> np.ndarray:
        """The logits; of a table the logarithms or the log-odds of the probabilities."""
        values = self.probabilities.values
        limits = np.finfo(np.float64)
        if self.probabilities.function is not None:
            return values
        if self.kind == "classes":
            return np.asarray(np.log(np.maximum(values, limits.tiny)))
        return np.asarray(logit(np.clip(values, limits.tiny, 1 - limits.epsneg)))

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
    def areas(self) -> np.ndarray:
        """The replicates of each class against the rest: of the area under the ROC curve, and of
        the average precision; ``(2, 1 + groups, classes)``, NaN where a class has no row or all.
        """
        areas = np.full((2, 2 + int(self.groups.max(initial=-1)), len(self.names)), np.nan)
        for chosen in slices(len(self.names), len(self)):
            columns = self.probabilities.columns(chosen)
            for number, scores in enumerate(columns, start=chosen.start):
                has = self.labels == number if self.labels.ndim == 1 else self.labels[:, number]
                if 0 < np.count_nonzero(has) < len(self):
                    areas[:, :, number] = area_replicates(scores, has, self.groups)
        return areas


@dataclass(frozen=True, eq=False)
class ScoredRows(NamedRows):
    """Rows of one class each, the ``labels``, shape ``(rows,)``."""

    kind: ClassVar[Kind] = "classes"

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
        return np.asarray(self.classes == self.labels)

    @property
    def off(self) -> np.ndarray:
        """How many classes the prediction of each row is off, float64, shape ``(rows,)``."""
        return np.asarray(np.abs(self.labels - self.classes), dtype=np.float64)

    @property
    def confusion(self) -> np.ndarray:
        """Counts of true by predicted class, shape ``(classes, classes)``."""
        count = len(self.names)
        cells = np.bincount(self.labels * count + self.classes, minlength=count**2)
        return cells.reshape(count, count)

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """Of all classes, then over the rows of each the square of how far off predictions are;
        most metrics depend on a confusion matrix through these alone.
        """
        shape = int(self.groups.max(initial=-1)) + 1, len(self.names)

        def sums(classes: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
            cells = np.bincount(self.groups * shape[1] + classes, weights, math.prod(shape))
            return leave_out(cells.reshape(shape).astype(np.float64))

        right, true = sums(self.labels, self.right), sums(self.labels)
        return right, true, sums(self.classes), sums(self.labels, self.off**2)


@dataclass(frozen=True, eq=False)
class ScoredLabels(NamedRows):
    """Rows of any number of labels, of booleans, shape ``(rows, labels)``."""

    kind: ClassVar[Kind] = "labels"

    @functools.cached_property
    def decided(self) -> np.ndarray:
        """Which labels each row is given, shape ``(rows, labels)``: those above one half."""
        return np.concatenate([block > 0.5 for _, block in self.probabilities.row_blocks()])

    @property
    def right(self) -> np.ndarray:
        """Whether each row is given exactly the labels it has, shape ``(rows,)``."""
        return np.asarray((self.decided == self.labels).all(axis=1))

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
    """Rows with numbers as label and predicted ``values``, ``(rows,)`` or ``(rows, targets)``."""

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
    return pd.Index(names).get_indexer(pd.Index(table[column]))


def to_float16(outputs: np.ndarray) -> np.ndarray:
    """Return logits, ``(rows, classes)``, as float16, shifted so that the highest of a row is 0.

    Probabilities depend on differences of logits alone, and near 0 float16 is fine: no other class
    becomes the most probable one.
    """
    stored = np.empty(outputs.shape, dtype=np.float16)
    limits = np.finfo(np.float16)
    for chosen in slices(*outputs.shape):
        block = outputs[chosen].astype(np.float64)
        with np.errstate(invalid="ignore"):  # what is not finite stays so, and is refused later
            block -= block.max(axis=1, keepdims=True)
        is_inside = (block < 0) & np.isfinite(block)
        # what would round to 0 and is not: two classes would be the most probable ones
        clipped = np.clip(block, limits.min, -limits.smallest_subnormal)
        stored[chosen] = np.where(is_inside, clipped, block)
    return stored


def most_probable(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the most probable classes of each row in their order, and their probabilities, both
    of shape ``(rows, MOST_PROBABLE)``.
    """
    blocks = []
    for _, block in rows.probabilities.row_blocks():
        # stable: the first of several that are as probable, as everywhere
        order = np.argsort(-block, axis=1, kind="stable")[:, :MOST_PROBABLE]
        blocks.append((order, np.take_along_axis(block, order, axis=1)))
    classes, probabilities = map(np.concatenate, zip(*blocks, strict=True))
    return classes, probabilities


def area_replicates(
    scores: np.ndarray, has: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of the areas under the ROC curve, and of the average precision, of one
    class by its probability; ``has`` is whether a row is of the class: some are, and not all.

    Only rows of the class are sorted, since of many classes each has few; equal scores are one
    level.
    """
    levels, places = np.unique(scores[has], return_inverse=True)
    width = len(levels) + 1
    count = int(groups.max()) + 1

    def reached(side: Literal["left", "right"]) -> np.ndarray:
        """Count the rows of each group above each level, those at it included if right."""
        level = np.searchsorted(levels, scores, side)
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
