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
from typing import Any, ClassVar

import numpy as np

from finetune.data.words import UNLABELLED, begin_entities, find_entities
from finetune.statistics.estimates import leave_out
from finetune.statistics.scored import Kind, NamedRows


def in_iob2(tags: np.ndarray) -> np.ndarray:
    """Return tags of the same entities in which each begins with the tag for that."""
    types = (np.maximum(tags, 0) + 1) // 2 - 1
    return np.where(types < 0, 0, 2 * types + 2 - begin_entities(tags, types))


@dataclass(frozen=True, eq=False)
class ScoredEntities(NamedRows):
    """Entities of rows. ``labels`` are the true ones: row, first word, end and type of each, int64,
    shape ``(entities, 4)``; words are counted in any unit.
    """

    predicted: np.ndarray  # the predicted ones
    words: np.ndarray  # words of each row, and those with the right IOB2 tag: (rows, 2)
    kind: ClassVar[Kind] = "entities"

    @classmethod
    def of_tags(cls, labels: np.ndarray, tags: np.ndarray, names: list[str]) -> ScoredEntities:
        """Return the entities of true and predicted tags, both of shape ``(places,)``."""
        is_word = labels != UNLABELLED
        rows = np.cumsum(~is_word) - ~is_word
        count = np.count_nonzero(~is_word)
        true, predicted = in_iob2(labels), in_iob2(np.where(is_word, tags, 0))

        def in_rows(tags: np.ndarray) -> np.ndarray:
            entities = find_entities(tags)
            return np.column_stack([rows[entities[:, 0]], entities])

        is_right = is_word & (true == predicted)
        words = [np.bincount(rows[mask], minlength=count) for mask in (is_word, is_right)]
        return cls(in_rows(true), names, in_rows(predicted), np.stack(words, axis=1))

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
