"""Entities of rows, true and predicted, and the tags of words that they are made from.

Tags are in one array for all rows: those of the words of a row, then a separator, which is outside
of every entity. The tag 0 is outside, ``2 k + 1`` begins an entity of type ``k``, ``2 k + 2``
continues it. As in ``conlleval``, a tag that continues nothing begins an entity, so that the scores
are those of ``seqeval`` in strict mode for these entities written in IOB2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from finetune.data.words import UNLABELLED, begin_entities, find_entities
from finetune.statistics.estimates import leave_out
from finetune.statistics.scored import Kind, NamedRows


def in_iob2(tags: np.ndarray) -> np.ndarray:
    """Return tags of the same entities in which each begins with the tag for that."""
    types = (np.maximum(tags, 0) + 1) // 2 - 1
    return np.where(types < 0, 0, 2 * types + 2 - begin_entities(tags, types))


class EntityMistake(NamedTuple):
    """True and predicted entities that overlap, but are not the same; or one that overlaps none.

    Attributes:
        confidence: The lowest probability of the predicted entities; without one that of the
            predicted tags of the words of the true one.
        labels: First word, end and type of each true entity.
        predicted: The same of each predicted one.
    """

    row: int
    kind: str  # missed, spurious, other type, or other boundary
    confidence: float
    labels: list[tuple[int, int, int]]
    predicted: list[tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class ScoredEntities(NamedRows):
    """Entities of rows. ``labels`` are the true ones: row, first word, end and type of each, int64,
    shape ``(entities, 4)``; words are counted in any unit.
    """

    predicted: np.ndarray  # the predicted ones
    words: np.ndarray  # words of each row, and those with the right IOB2 tag: (rows, 2)
    #: The mean probability of the predicted tags of the words of each predicted entity, and of each
    #: true one, shape ``(entities,)``.
    confidence: np.ndarray
    confidence_at_labels: np.ndarray
    kind: ClassVar[Kind] = "entities"

    @classmethod
    def of_tags(
        cls, labels: np.ndarray, tags: np.ndarray, names: list[str], confidence: np.ndarray
    ) -> ScoredEntities:
        """Return the entities of true and predicted tags, which have a probability; each of shape
        ``(places,)``.
        """
        is_word = labels != UNLABELLED
        rows = np.cumsum(~is_word) - ~is_word
        count = np.count_nonzero(~is_word)
        true, predicted = in_iob2(labels), in_iob2(np.where(is_word, tags, 0))
        sums = np.concatenate([[0.0], np.cumsum(confidence, dtype=np.float64)])

        def in_rows(tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            entities = find_entities(tags)
            first, end, _ = entities.T
            means = (sums[end] - sums[first]) / (end - first)
            return np.column_stack([rows[first], entities]), means

        is_right = is_word & (true == predicted)
        words = [np.bincount(rows[mask], minlength=count) for mask in (is_word, is_right)]
        entities, at_labels = in_rows(true)
        found, means = in_rows(predicted)
        return cls(entities, names, found, np.stack(words, axis=1), means, at_labels)

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def is_found(self) -> np.ndarray:
        """Whether each predicted entity is a true one, bool, shape ``(entities,)``."""
        true = set(map(tuple, self.labels.tolist()))
        return np.array([tuple(entity) in true for entity in self.predicted.tolist()], dtype=bool)

    @functools.cached_property
    def is_correct(self) -> np.ndarray:
        """Whether the predicted entities of each row are the true ones, bool, ``(rows,)``."""
        return np.asarray(self.differences(self.labels) == 0)

    def _occurrences(self) -> Iterable[tuple[Any, np.ndarray]]:
        for entities in (self.predicted[self.is_found], self.labels, self.predicted):
            yield entities[:, 0], entities[:, 3]

    def differences(self, entities: np.ndarray) -> np.ndarray:
        """Return for each row how many entities are only predicted, or only in ``entities``, of the
        same shape: ``(rows,)``.
        """
        sets = (set(map(tuple, table.tolist())) for table in (self.predicted, entities))
        rows = [row for row, *_ in set.symmetric_difference(*sets)]
        return np.bincount(np.array(rows, dtype=np.int64), minlength=len(self)).astype(float)

    @functools.cached_property
    def mistakes(self) -> list[EntityMistake]:
        """What is predicted wrong, the most confident first."""
        predicted = set(map(tuple, self.predicted.tolist()))
        wrong = []
        for entity, confidence in zip(self.labels.tolist(), self.confidence_at_labels, strict=True):
            if tuple(entity) not in predicted:
                wrong.append((*entity, False, float(confidence)))
        is_wrong = ~self.is_found
        columns = self.predicted[is_wrong].tolist(), self.confidence[is_wrong].tolist()
        for entity, confidence in zip(*columns, strict=True):
            wrong.append((*entity, True, confidence))
        groups: list[list[Any]] = []
        row_before = last = -1
        for row, first, end, *rest in sorted(wrong):
            if row != row_before or first >= last:
                groups.append([])
                last = end
            groups[-1].append((row, first, end, *rest))
            row_before, last = row, max(last, end)
        return sorted(map(_mistake, groups), key=lambda mistake: -mistake.confidence)

    def counts(self, *, of_words: bool) -> tuple[int, int]:
        """Return how many words, or true and predicted entities, are right, and how many are."""
        if of_words:
            words, right = self.words.sum(axis=0).tolist()
            return right, words
        found = int(np.count_nonzero(self.is_found))
        return found, len(self.labels) + len(self.predicted) - found

    @property
    def token_accuracy(self) -> np.ndarray:
        """The replicates of the share of words with the right tag, ``(1 + groups,)``."""
        words, right = (leave_out(np.bincount(self.groups, column)) for column in self.words.T)
        return np.asarray(right / np.maximum(words, 1))

    @property
    def confusion(self) -> np.ndarray:
        """How often a true type is predicted as another, for the same words: ``(types + 1, types +
        1)``. The last column has missed entities, the last row has spurious ones.
        """
        count = len(self.names)
        cells = np.zeros((count + 1, count + 1), dtype=np.int64)
        predicted = {tuple(row): kind for *row, kind in self.predicted.tolist()}
        for *place, kind in self.labels.tolist():
            cells[kind, predicted.pop(tuple(place), count)] += 1
        for kind in predicted.values():
            cells[count, kind] += 1
        return cells


def _mistake(entities: list[Any]) -> EntityMistake:
    """Return wrong entities of a row that overlap as one mistake."""
    sides: tuple[list[Any], list[Any]] = ([], [])
    confidences: tuple[list[float], list[float]] = ([], [])
    for _, first, end, kind, is_predicted, confidence in entities:
        sides[is_predicted].append((first, end, kind))
        confidences[is_predicted].append(confidence)
    labels, predicted = sides
    name = "other boundary"
    if not predicted:
        name = "missed"
    elif not labels:
        name = "spurious"
    elif [place[:2] for place in labels] == [place[:2] for place in predicted]:
        name = "other type"
    confidence = min(confidences[bool(predicted)])
    return EntityMistake(entities[0][0], name, confidence, labels, predicted)
