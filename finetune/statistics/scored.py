"""Labels and predictions as arrays, from which all statistics are computed.

Probabilities are computed by blocks of rows or by class: logits of 50,000 rows and 2,000 classes
take 400 MB as float32, and their softmax as float64 would take 800 MB.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, logit, logsumexp, softmax

from finetune.data.prediction_columns import MAX_PROBABLE_CLASSES
from finetune.statistics.estimates import group_rows, leave_out

Kind = Literal["classes", "labels", "numbers", "entities"]
#: The indices of the two curves in the result of :func:`area_replicates`.
ROC, PRECISION = 0, 1
#: The numbers in a block: 16 MB as float64.
AT_ONCE = 2**21


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices that split ``count`` lines of ``size`` numbers into blocks."""
    step = max(1, AT_ONCE // max(1, size))
    for start in range(0, max(1, count), step):
        yield slice(start, min(count, start + step))


@dataclass(frozen=True, eq=False)
class Probabilities:
    """The probabilities of classes or labels, computed from logits when they are used."""

    values: np.ndarray  # logits, maybe memory-mapped, or probabilities; shape (rows, classes)
    function: Literal["softmax", "sigmoid"] | None = None  # None if the values are probabilities
    temperature: float = 1.0  # divides logits

    def rows(self, indices: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the probabilities of some rows, shape ``(rows, classes)``, float64."""
        block = self._scaled(indices)
        if self.function == "softmax":
            return np.asarray(softmax(block, axis=1))
        if self.function == "sigmoid":
            return np.asarray(expit(block))
        return block

    def column(self, index: int) -> np.ndarray:
        """Return the probabilities of one class, shape ``(rows,)``, float64."""
        values = self._scaled((slice(None), index))
        if self.function == "softmax":
            return np.asarray(np.exp(values - self._log_totals))
        if self.function == "sigmoid":
            return np.asarray(expit(values))
        return values

    def row_blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the slice of each block of rows, and its probabilities, ``(rows, classes)``."""
        for indices in slices(*self.values.shape):
            yield indices, self.rows(indices)

    def _scaled(self, indices: Any) -> np.ndarray:
        return np.asarray(self.values[indices].astype(np.float64) / self.temperature)

    @functools.cached_property
    def _log_totals(self) -> np.ndarray:
        blocks = map(self._scaled, slices(*self.values.shape))
        return np.concatenate([logsumexp(block, axis=1) for block in blocks])


@dataclass(frozen=True, eq=False)
class Scored:
    """Labels of rows; subclasses add ``outputs``, the ``predictions`` for metrics."""

    labels: np.ndarray  # shape (rows,) or (rows, labels)
    kind: ClassVar[Kind]

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """The index of the jackknife group of each row, int64, shape ``(rows,)``."""
        return group_rows(len(self))

    def __len__(self) -> int:
        return len(self.labels)


class Summary(NamedTuple):
    """What statistics use from the probabilities of each row; each of shape ``(rows,)``."""

    classes: np.ndarray  # the most probable class
    confidence: np.ndarray  # the probability of that class
    of_label: np.ndarray  # the probability of the true class
    rank: np.ndarray  # how many classes are more probable; of equal ones the last is first
    squared_error: np.ndarray  # of the probabilities, summed over the classes; of two the mean


@dataclass(frozen=True, eq=False)
class NamedRows(Scored):
    """Labels with names and predicted probabilities, for single-label and multi-label tasks."""

    names: list[str]  # the names of the classes or labels by id
    probabilities: Probabilities  # of each class or label, shape (rows, classes)

    @property
    def outputs(self) -> np.ndarray:
        """The logits; if only probabilities are known, their logarithms or log-odds."""
        values = self.probabilities.values
        limits = np.finfo(np.float64)
        if self.probabilities.function is not None:
            return values
        if self.kind == "classes":
            return np.asarray(np.log(np.maximum(values, limits.tiny)))
        return np.asarray(logit(np.clip(values, limits.tiny, 1 - limits.epsneg)))

    @property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """For each class the number of correctly predicted rows (true positives), of rows that have
        it, and of rows predicted to have it: replicates, each of shape ``(1 + groups, classes)``.
        """
        raise NotImplementedError

    @property
    def supports(self) -> np.ndarray:
        """The number of rows of each class, int64, shape ``(classes,)``."""
        return np.asarray(self.tallies[1][0].astype(np.int64))

    @functools.cached_property
    def areas(self) -> np.ndarray:
        """The replicates of the area under the ROC curve and of the average precision of each class
        against the rest, ``(2, 1 + groups, classes)``; NaN if no row or every row has the class.
        """
        areas = np.full((2, 2 + int(self.groups.max(initial=-1)), len(self.names)), np.nan)
        for index in range(len(self.names)):
            has = self.labels == index if self.labels.ndim == 1 else self.labels[:, index]
            if 0 < np.count_nonzero(has) < len(self):
                areas[:, :, index] = area_replicates(
                    self.probabilities.column(index), has, self.groups
                )
        return areas


@dataclass(frozen=True, eq=False)
class ScoredRows(NamedRows):
    """Rows with one class each; ``labels`` are class ids, shape ``(rows,)``."""

    positive: int = 1  # the positive class, if there are two
    kind: ClassVar[Kind] = "classes"

    @functools.cached_property
    def summary(self) -> Summary:
        """What most statistics use, computed in one pass over the probabilities."""
        parts = []
        for indices, block in self.probabilities.row_blocks():
            rows, classes = np.arange(len(block)), block.argmax(axis=1)
            labels = self.labels[indices]
            confidence, of_label = block[rows, classes], block[rows, labels]
            # scikit-learn's order of equal probabilities, in top_k_accuracy_score
            is_later = np.arange(block.shape[1]) > labels[:, None]
            is_above = (block > of_label[:, None]) | (is_later & (block == of_label[:, None]))
            block[rows, labels] -= 1
            squares = np.square(block).sum(axis=1) / (2 if block.shape[1] == 2 else 1)
            parts.append((classes, confidence, of_label, is_above.sum(axis=1), squares))
        return Summary(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def classes(self) -> np.ndarray:
        """The most probable class of each row, shape ``(rows,)``."""
        return self.summary.classes

    @property
    def is_correct(self) -> np.ndarray:
        """Whether the most probable class is the true one, bool, shape ``(rows,)``."""
        return np.asarray(self.classes == self.labels)

    @property
    def class_distance(self) -> np.ndarray:
        """The distance of true and predicted class ids, float64, shape ``(rows,)``."""
        return np.asarray(np.abs(self.labels - self.classes), dtype=np.float64)

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix: row counts by true and predicted class, ``(classes, classes)``."""
        count = len(self.names)
        cells = np.bincount(self.labels * count + self.classes, minlength=count**2)
        return cells.reshape(count, count)

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """See :attr:`NamedRows.tallies`; a fourth array is the sum of the squares of
        :attr:`class_distance` over the rows of each class. Most metrics are functions of these.
        """
        shape = int(self.groups.max(initial=-1)) + 1, len(self.names)

        def sums(classes: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
            cells = np.bincount(self.groups * shape[1] + classes, weights, math.prod(shape))
            return leave_out(cells.reshape(shape).astype(np.float64))

        correct, true = sums(self.labels, self.is_correct), sums(self.labels)
        return correct, true, sums(self.classes), sums(self.labels, self.class_distance**2)


@dataclass(frozen=True, eq=False)
class ScoredLabels(NamedRows):
    """Rows with any number of labels; ``labels`` is bool, shape ``(rows, labels)``."""

    kind: ClassVar[Kind] = "labels"

    @functools.cached_property
    def decided(self) -> np.ndarray:
        """Whether each label is predicted: above one half. Bool, shape ``(rows, labels)``."""
        return np.concatenate([block > 0.5 for _, block in self.probabilities.row_blocks()])

    @property
    def is_correct(self) -> np.ndarray:
        """Whether the predicted labels of each row are exactly the true ones, shape ``(rows,)``."""
        return np.asarray((self.decided == self.labels).all(axis=1))

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """See :attr:`NamedRows.tallies`."""
        members = csr_array((np.ones(len(self)), (self.groups, np.arange(len(self)))))
        entries = (self.labels & self.decided, self.labels, self.decided)
        return tuple(leave_out(members @ table.astype(np.float64)) for table in entries)


@dataclass(frozen=True, eq=False)
class ScoredNumbers(Scored):
    """Rows with true and predicted numbers: ``(rows,)`` or ``(rows, targets)``."""

    values: np.ndarray
    kind: ClassVar[Kind] = "numbers"
    names: ClassVar[Sequence[str]] = ()

    @property
    def targets(self) -> np.ndarray:
        """The labels, shape ``(rows, targets)``, float64."""
        return self.labels.reshape(len(self), -1).astype(np.float64)

    @property
    def outputs(self) -> np.ndarray:
        """The predictions, shape ``(rows, targets)``."""
        return self.values.reshape(len(self), -1)


def distances(first: Any, second: Any) -> np.ndarray:
    """Return how much the predictions of two models differ for each row, shape ``(rows,)``: 0 if
    they are equal, for classes the sum of their probabilities, for labels the largest difference of
    probabilities, for entities how many only one of them has, and for numbers the largest
    difference in standard deviations of the labels.
    """
    if first.kind == "classes":
        confidence = first.summary.confidence + second.summary.confidence
        return np.where(first.classes != second.classes, confidence, 0.0)
    if first.kind == "labels":
        gaps = np.abs(first.probabilities.rows() - second.probabilities.rows()).max(axis=1)
        return np.where((first.decided != second.decided).any(axis=1), gaps, 0.0)
    if first.kind == "entities":
        return np.asarray(first.differences(second))
    spread = first.targets.std(axis=0)
    gaps = np.abs(first.outputs - second.outputs) / np.where(spread > 0, spread, 1)
    return np.asarray(gaps.max(axis=1))


def agreement(first: Any, second: Any) -> dict[str, Any]:
    """Return how far the answers of two models agree on the same rows.

    Returns:
        ``rows``; ``changed``, the rows with another decision, of numbers those that move by more
        than 5% of the standard deviation of the labels; ``largest_difference`` of a probability,
        or of a number in standard deviations. It is NaN if an answer is not finite.
    """
    changes = gaps = distances(first, second)
    limit = 0.05
    if first.kind != "numbers":
        gaps = np.abs(first.probabilities.rows() - second.probabilities.rows())
        limit = 0.0
    changed = int(np.count_nonzero(~(changes <= limit)))
    return {"rows": len(first), "changed": changed, "largest_difference": float(gaps.max())}


def to_float16(outputs: np.ndarray) -> np.ndarray:
    """Return logits, ``(rows, classes)``, as float16, shifted so that the highest of a row is 0.

    Probabilities only depend on differences of logits, and float16 is precise near 0. The most
    probable class stays the same.
    """
    stored = np.empty(outputs.shape, dtype=np.float16)
    limits = np.finfo(np.float16)
    for indices in slices(*outputs.shape):
        block = outputs[indices].astype(np.float64)
        with np.errstate(invalid="ignore"):  # values that are not finite are refused later
            block -= block.max(axis=1, keepdims=True)
        is_inside = (block < 0) & np.isfinite(block)
        # a negative number must not round to 0: there would be two most probable classes
        clipped = np.clip(block, limits.min, -limits.smallest_subnormal)
        stored[indices] = np.where(is_inside, clipped, block)
    return stored


def most_probable(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the most probable classes of each row in descending order, and their
    probabilities, both of shape ``(rows, MAX_PROBABLE_CLASSES)``.
    """
    blocks = []
    for _, block in rows.probabilities.row_blocks():
        # stable: of equally probable classes the first, as argmax does
        order = np.argsort(-block, axis=1, kind="stable")[:, :MAX_PROBABLE_CLASSES]
        blocks.append((order, np.take_along_axis(block, order, axis=1)))
    classes, probabilities = map(np.concatenate, zip(*blocks, strict=True))
    return classes, probabilities


def area_replicates(
    scores: np.ndarray, has: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of the area under the ROC curve and of the average precision of one
    class, ``(1 + groups,)``.

    Only the scores of rows with the class are sorted, since each of many classes has few rows.
    Equal scores form one level.

    Args:
        scores: The probability of the class for each row, shape ``(rows,)``.
        has: Whether a row has the class: some rows must, but not all.
        groups: The jackknife group of each row.
    """
    levels, level_ids = np.unique(scores[has], return_inverse=True)
    width = len(levels) + 1
    count = int(groups.max()) + 1

    def count_above(side: Literal["left", "right"]) -> np.ndarray:
        """Return the replicates of the row count above each level; ``right`` includes the level."""
        level = np.searchsorted(levels, scores, side)
        counts = np.bincount(groups * width + level, minlength=count * width).reshape(count, width)
        return leave_out(np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1])

    at_least, strictly_above = count_above("right"), count_above("left")
    cells = groups[has] * (width - 1) + level_ids
    at_level = np.bincount(cells, minlength=count * (width - 1)).reshape(count, width - 1)
    positives = leave_out(at_level)
    hits = np.cumsum(positives[:, ::-1], axis=1)[:, ::-1]  # positives at or above each level
    total = hits[:, 0]
    rest = leave_out(np.bincount(groups, minlength=count)) - total
    # negatives below each level; those at it count one half
    negatives_below = rest[:, None] - (at_least - hits + strictly_above - hits + positives) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (positives * negatives_below).sum(axis=1) / (total * rest)
        precisions = np.where(at_least > 0, hits / at_least, 0.0)
        precision = (positives * precisions).sum(axis=1) / total
    # if only the group left out has the class, use the value of all rows
    return np.where(total * rest > 0, roc, roc[0]), np.where(total > 0, precision, precision[0])
