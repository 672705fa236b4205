"""What is added to a row: the label and its probability, or the number that was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax


@dataclass(frozen=True)
class AddedColumns:
    """Makes the added columns of logits.

    Attributes:
        labels: Names of the classes; none in a regression.
        names: Of the added columns, none of which the input has.
        temperature: By which logits are divided.
    """

    labels: Sequence[str]
    names: Sequence[str]
    temperature: float = 1.0

    @classmethod
    def beside(
        cls,
        columns: Iterable[str],
        labels: Sequence[str],
        all_probabilities: bool,
        temperature: float = 1.0,
    ) -> AddedColumns:
        """Those for an input with these columns.

        Where the input has a column ``label`` of its own, as a labelled test file does, the added
        one is called ``predicted label``; the others likewise.
        """
        names = ["label", "probability"] if labels else ["prediction"]
        if all_probabilities:
            names += [f"probability of {label}" for label in labels]
        taken, free = set(columns), []
        for name in names:
            while name in taken:
                name = f"predicted {name}"
            free.append(name)
        return cls(labels, free, temperature)

    def columns(
        self, logits: np.ndarray | None, present: Sequence[int], count: int
    ) -> dict[str, list[Any]]:
        """The added columns of a chunk.

        Args:
            logits: Shape ``(present, classes)``, or ``(present, 1)`` in a regression; None if
                nothing is present.
            present: Numbers of the rows that were predicted; the others get None.
            count: Rows of the chunk.
        """
        values: list[list[Any]] = [[None] * count for _ in self.names]
        if logits is not None:
            for column, found in zip(values, self._of(logits), strict=True):
                for number, value in zip(present, found, strict=True):
                    column[number] = value
        return dict(zip(self.names, values, strict=True))

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Shape ``(rows, classes)``, float64."""
        return np.asarray(softmax(np.asarray(logits, dtype=np.float64) / self.temperature, axis=1))

    def _of(self, logits: np.ndarray) -> list[list[Any]]:
        if not self.labels:
            return [_short(logits.reshape(len(logits)))]
        probabilities = self.probabilities(logits)
        best = probabilities.argmax(axis=1)
        found: list[list[Any]] = [
            [self.labels[index] for index in best],
            _short(probabilities.max(axis=1)),
        ]
        if len(self.names) > len(found):
            found += [_short(column) for column in probabilities.T]
        return found


def _short(values: np.ndarray) -> list[float]:
    """With the digits of a float32 and no more: ``0.9812``, not ``0.9811999797821045``."""
    return [float(str(value)) for value in values.astype(np.float32)]
