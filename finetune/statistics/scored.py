"""Labels and predictions as arrays, from which all statistics are computed.

Probabilities are computed by blocks of rows or by class: logits of 50,000 rows and 2,000 classes
take 400 MB as float32, and their softmax as float64 would take 800 MB.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.special import expit, logit, logsumexp, softmax

from finetune.data.prediction_columns import MAX_PROBABLE_CLASSES
from finetune.statistics.estimates import group_rows, leave_out

Kind = Literal["classes", "labels", "numbers", "entities"]
#: The indices of the two curves in :attr:`ProbableRows.areas`.
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

    def tally(self, rows: Any, columns: np.ndarray, width: int) -> np.ndarray:
        """Return how often each column occurs: replicates, float64, shape ``(1 + groups, width)``.

        Args:
            rows: The row of each occurrence: indices, a mask or a slice.
            columns: The column of each occurrence, int64, below ``width``.
            width: The number of columns.
        """
        count = int(self.groups.max(initial=-1)) + 1
        cells = np.bincount(self.groups[rows] * width + columns, minlength=count * width)
        return leave_out(cells.reshape(count, width).astype(np.float64))

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
    """Labels with names."""

    names: list[str]  # the names of the classes, labels or types by id

    def _occurrences(self) -> Iterable[tuple[Any, np.ndarray]]:
        """Return rows and classes of what is correctly predicted, true and predicted."""
        raise NotImplementedError

    @functools.cached_property
    def tallies(self) -> tuple[np.ndarray, ...]:
        """For each class how often it is correctly predicted (true positives), true and predicted:
        replicates, each of shape ``(1 + groups, classes)``. Most metrics are functions of these.
        """
        width = len(self.names)
        return tuple(self.tally(rows, classes, width) for rows, classes in self._occurrences())

    @property
    def supports(self) -> np.ndarray:
        """How often each class is true, int64, shape ``(classes,)``."""
        return np.asarray(self.tallies[1][0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class ProbableRows(NamedRows):
    """Rows with predicted probabilities, for single-label and multi-label tasks."""

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

    @functools.cached_property
    def areas(self) -> np.ndarray:
        """The replicates of the area under the ROC curve and of the average precision of each class
        against the rest, ``(2, 1 + groups, classes)``; NaN if no row or every row has the class.
        """
        areas = np.full((2, 2 + int(self.groups.max(initial=-1)), len(self.names)), np.nan)
        for index in range(len(self.names)):
            has = self.labels == index if self.labels.ndim == 1 else self.labels[:, index]
            if 0 < np.count_nonzero(has) < len(self):
                areas[:, :, index] = self._areas_of(index, has)
        return areas

    def _areas_of(self, index: int, has: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the replicates of both areas of one class, ``(1 + groups,)``.

        Only the scores of rows with the class are sorted, since each of many classes has few rows.
        Equal scores form one level.

        Args:
            index: The id of the class.
            has: Whether a row has the class: some rows must, but not all.
        """
        scores = self.probabilities.column(index)
        levels = np.unique(scores[has])
        # the place of a level is odd, that of scores between two levels is even
        places = np.searchsorted(levels, scores) + np.searchsorted(levels, scores, side="right")
        counts = []
        for rows in (has, slice(None)):
            tally = self.tally(rows, places[rows], 2 * len(levels) + 1)
            counts.append(np.cumsum(tally[:, ::-1], axis=1)[:, ::-1])
        positives, both = counts  # rows at or above each place
        negatives = both - positives
        total, rest = positives[:, 0], negatives[:, 0]
        hits, at_least = positives[:, 1::2], both[:, 1::2]
        at_level = hits - positives[:, 2::2]
        # negatives below each level; those at it count one half
        negatives_below = rest[:, None] - (negatives[:, 1::2] + negatives[:, 2::2]) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            roc = (at_level * negatives_below).sum(axis=1) / (total * rest)
            precisions = np.where(at_least > 0, hits / at_least, 0.0)
            precision = (at_level * precisions).sum(axis=1) / total
        # if only the group left out has the class, use the value of all rows
        return np.where(total * rest > 0, roc, roc[0]), np.where(total > 0, precision, precision[0])


@dataclass(frozen=True, eq=False)
class ScoredRows(ProbableRows):
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

    def _occurrences(self) -> Iterable[tuple[Any, np.ndarray]]:
        yield self.is_correct, self.labels[self.is_correct]
        for classes in (self.labels, self.classes):
            yield slice(None), classes


@dataclass(frozen=True, eq=False)
class ScoredLabels(ProbableRows):
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

    def _occurrences(self) -> Iterable[tuple[Any, np.ndarray]]:
        for table in (self.labels & self.decided, self.labels, self.decided):
            rows, labels = np.nonzero(table)
            yield rows, labels


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
        return np.asarray(first.differences(second.predicted))
    spread = first.targets.std(axis=0)
    gaps = np.abs(first.outputs - second.outputs) / np.where(spread > 0, spread, 1)
    return np.asarray(gaps.max(axis=1))


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
