"""The predictions of a run as arrays, which is what every statistic is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd
from scipy.special import logit, softmax

#: The names of columns of ``predictions.parquet``, and those that ``predict`` adds.
LABEL, PREDICTION, PROBABILITY = "label", "prediction", "probability"


def probability_of(name: str) -> str:
    """Return the name of the column with the probability of a label."""
    return f"{PROBABILITY} of {name}"


def of_target(column: str, name: str) -> str:
    """Return the name of the column with the label or prediction of one of several targets."""
    return f"{column} of {name}"


class Scored(Protocol):
    """Rows with their labels and what a model put out for them."""

    @property
    def labels(self) -> np.ndarray:
        """Shape ``(rows,)`` or ``(rows, labels)``."""

    @property
    def outputs(self) -> np.ndarray:
        """What metrics take as ``predictions``, shape ``(rows, number of outputs)``."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class ScoredRows:
    """Rows with their true class, shape ``(rows,)``, and the probability of every class, shape
    ``(rows, classes)``, float64; the names of the classes are in the order of their numbers.
    """

    names: list[str]
    labels: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of_table(cls, table: pd.DataFrame, names: list[str]) -> ScoredRows:
        """Return those in the table of ``predictions.parquet``."""
        number = {name: index for index, name in enumerate(names)}
        return cls(
            names,
            table[LABEL].map(number).to_numpy(dtype=np.int64),
            table[[probability_of(name) for name in names]].to_numpy(dtype=np.float64),
        )

    @classmethod
    def of_outputs(
        cls, names: list[str], labels: np.ndarray, outputs: np.ndarray, temperature: float = 1.0
    ) -> ScoredRows:
        """Return those of logits, shape ``(rows, classes)``, whatever their precision."""
        return cls(names, labels, softmax(outputs.astype(np.float64) / temperature, axis=1))

    @property
    def classes(self) -> np.ndarray:
        """Return the most probable class of each row, shape ``(rows,)``."""
        classes: np.ndarray = self.probabilities.argmax(axis=1)
        return classes

    @property
    def right(self) -> np.ndarray:
        """Whether the most probable class of each row is its own, shape ``(rows,)``."""
        right: np.ndarray = self.classes == self.labels
        return right

    @property
    def outputs(self) -> np.ndarray:
        """The logarithms of the probabilities, which are logits, too."""
        outputs: np.ndarray = np.log(np.maximum(self.probabilities, np.finfo(np.float64).tiny))
        return outputs

    @property
    def one_vs_rest(self) -> ScoredLabels:
        """Each class as a label of its own; of two classes, the second alone."""
        chosen = slice(len(self.names) == 2, None)
        has = self.labels[:, None] == np.arange(len(self.names))
        return ScoredLabels(self.names[chosen], has[:, chosen], self.probabilities[:, chosen])

    def __len__(self) -> int:
        return len(self.labels)


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


@dataclass(frozen=True)
class ScoredLabels:
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
