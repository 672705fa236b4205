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
import pandas as pd

from finetune.data.words import UNLABELLED, find_entities, parse_tags
from finetune.statistics.estimates import leave_out
from finetune.statistics.scored import Kind, NamedRows


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
        """Return the entities of true and predicted tags.

        Args:
            labels: The true tags of the words of all rows, each row followed by a separator
                (``UNLABELLED``), int64, shape ``(places,)``.
            tags: The predicted ones, of the same shape.
            names: The types, in the order of their ids.
            confidence: The probability of each predicted tag, shape ``(places,)``.
        """
        is_word = labels != UNLABELLED
        rows = np.cumsum(~is_word) - ~is_word
        count = np.count_nonzero(~is_word)
        tags = np.where(is_word, tags, 0)
        is_right = is_word
        for true, predicted in zip(parse_tags(labels), parse_tags(tags), strict=True):
            is_right = is_right & (true == predicted)
        words = [np.bincount(rows[mask], minlength=count) for mask in (is_word, is_right)]
        sums = np.concatenate([[0.0], np.cumsum(confidence, dtype=np.float64)])

        def in_rows(tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            entities = find_entities(tags)
            first, end, _ = entities.T
            means = (sums[end] - sums[first]) / (end - first)
            return np.column_stack([rows[first], entities]), means

        entities, at_labels = in_rows(labels)
        predicted, means = in_rows(tags)
        return cls(entities, names, predicted, np.stack(words, axis=1), means, at_labels)

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def is_right(self) -> np.ndarray:
        """Whether each predicted entity is a true one, bool, shape ``(entities,)``."""
        return np.isin(_keys(self.predicted), _keys(self.labels))

    @functools.cached_property
    def is_found(self) -> np.ndarray:
        """Whether each true entity is predicted, bool, shape ``(entities,)``."""
        return np.isin(_keys(self.labels), _keys(self.predicted))

    @functools.cached_property
    def is_correct(self) -> np.ndarray:
        """Whether the predicted entities of each row are the true ones, bool, ``(rows,)``."""
        return np.asarray(self.differences(self.labels) == 0)

    def _occurrences(self) -> Iterable[tuple[Any, np.ndarray]]:
        for entities in (self.predicted[self.is_right], self.labels, self.predicted):
            yield entities[:, 0], entities[:, 3]

    def differences(self, entities: np.ndarray) -> np.ndarray:
        """Return for each row how many entities are only predicted, or only in ``entities``, of the
        same shape: ``(rows,)``.
        """
        different = np.setxor1d(_keys(self.predicted), _keys(entities))
        return np.bincount(different["row"], minlength=len(self)).astype(float)

    @functools.cached_property
    def mistakes(self) -> list[EntityMistake]:
        """What is predicted wrong, the most confident first."""
        wrong = []
        for is_predicted, entities, confidence, is_right in (
            (False, self.labels, self.confidence_at_labels, self.is_found),
            (True, self.predicted, self.confidence, self.is_right),
        ):
            values = zip(entities[~is_right].tolist(), confidence[~is_right].tolist(), strict=True)
            wrong += [(*entity, is_predicted, value) for entity, value in values]
        groups: list[list[tuple[Any, ...]]] = []
        row_before = last = -1
        for entity in sorted(wrong):
            row, first, end, *_ = entity
            if row != row_before or first >= last:
                groups.append([])
                last = end
            groups[-1].append(entity)
            row_before, last = row, max(last, end)
        return sorted(map(_mistake, groups), key=lambda mistake: -mistake.confidence)

    def counts(self, *, of_words: bool) -> tuple[int, int]:
        """Return how many words, or true and predicted entities, are right, and how many are."""
        if of_words:
            words, correct = self.words.sum(axis=0).tolist()
            return correct, words
        correct = int(np.count_nonzero(self.is_right))
        return correct, len(self.labels) + len(self.predicted) - correct

    @property
    def token_accuracy(self) -> np.ndarray:
        """The replicates of the share of words with the right tag, ``(1 + groups,)``."""
        words, correct = (leave_out(np.bincount(self.groups, column)) for column in self.words.T)
        return np.asarray(correct / np.maximum(words, 1))

    @property
    def confusion(self) -> np.ndarray:
        """How often a true type is predicted as another, for the same words: ``(types + 1, types +
        1)``. The last column has missed entities, the last row has spurious ones.
        """
        missing = len(self.names)
        true, predicted = pd.DataFrame(self.labels), pd.DataFrame(self.predicted)
        pairs = true.merge(predicted, "outer", on=[0, 1, 2]).fillna(missing).astype(int)
        cells = np.zeros((missing + 1, missing + 1), dtype=np.int64)
        np.add.at(cells, (pairs["3_x"], pairs["3_y"]), 1)
        return cells


def _keys(entities: np.ndarray) -> np.ndarray:
    """Return entities as an array of one dimension, for the set operations of NumPy."""
    names = ("row", "first", "end", "kind")
    table = np.ascontiguousarray(entities, dtype=np.int64)
    return table.view([(name, np.int64) for name in names]).ravel()


def _mistake(entities: list[tuple[Any, ...]]) -> EntityMistake:
    """Return wrong entities of a row that overlap as one mistake."""
    labels = [entity[1:4] for entity in entities if not entity[4]]
    predicted = [entity[1:4] for entity in entities if entity[4]]
    name = "other boundary"
    if not predicted:
        name = "missed"
    elif not labels:
        name = "spurious"
    elif [place[:2] for place in labels] == [place[:2] for place in predicted]:
        name = "other type"
    confidence = min(entity[5] for entity in entities if entity[4] or not predicted)
    return EntityMistake(entities[0][0], name, confidence, labels, predicted)
