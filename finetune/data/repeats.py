"""Rows with the same value: repeated, contradicting each other, or held out in another split."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Held:
    """The values of the rows that are held out so far, and what they contradict each other by."""

    def __init__(self) -> None:
        self._hashes: list[pa.Array] = []
        self._labels: list[np.ndarray] = []

    def add(self, hashes: pa.Array, labels: np.ndarray) -> None:
        """Hold more rows out; they stand before the others."""
        self._hashes.insert(0, hashes[::-1])
        self._labels.insert(0, labels[::-1])

    def labels_of(self, hashes: pa.Array, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether rows with these values are held out, shape ``(rows,)``, and the label of
        the last one; where there is none, that of the row itself.
        """
        if not self._hashes:
            return np.zeros(len(hashes), dtype=bool), labels
        found = pc.index_in(hashes, value_set=pa.concat_arrays(self._hashes))
        places = found.fill_null(-1).to_numpy(zero_copy_only=False)
        theirs = np.concatenate(self._labels)[places]
        return places >= 0, np.where(places >= 0, theirs, labels)


class Values:
    """The values of some rows, by their hashes.

    Args:
        hashes: Of the values, see :func:`finetune.data.digests.packed`.
        labels: A key of the labels of each row, shape ``(rows,)``; rows with the same value and
            different keys contradict each other.
        held: Rows of other splits that these are compared with.

    Attributes:
        codes: The number of the value of each row, shape ``(rows,)``.
        leaked: Whether its value is held out.
        contradictory: Whether its value has several labels, and is not held out.
        relabelled: How many leaked rows have another label where they are held out.
    """

    def __init__(self, hashes: pa.Array, labels: np.ndarray, held: Held) -> None:
        encoded = hashes.dictionary_encode()
        self.codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        self.leaked, theirs = held.labels_of(hashes, labels)
        self.relabelled = int((theirs != labels).sum())
        differs = np.zeros(len(encoded.dictionary), dtype=bool)
        differs[self.codes[labels != labels[self._first()[self.codes]]]] = True
        self.contradictory = differs[self.codes] & ~self.leaked

    def _first(self, order: np.ndarray | None = None) -> np.ndarray:
        """Return the row in which each value comes first, shape ``(values,)``."""
        order = np.arange(len(self.codes)) if order is None else order
        first = np.zeros(self.codes.max(initial=-1) + 1, dtype=np.int64)
        first[self.codes[order][::-1]] = order[::-1]
        return first

    def repeated(self, order: np.ndarray | None = None) -> np.ndarray:
        """Return whether the value of each row came before, in an order of the rows or theirs."""
        return np.asarray(self._first(order)[self.codes] != np.arange(len(self.codes)))
