"""The predictions of a run as arrays, which is what every statistic is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax


@dataclass(frozen=True)
class ScoredRows:
    """Rows with their true class and the probability of every class.

    Attributes:
        names: Of the classes, in the order of their numbers.
        labels: The true classes, shape ``(rows,)``.
        probabilities: Shape ``(rows, classes)``, float64.
    """

    names: list[str]
    labels: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of_table(cls, table: pd.DataFrame, names: list[str]) -> ScoredRows:
        """From the table of ``predictions.parquet``."""
        number = {name: index for index, name in enumerate(names)}
        return cls(
            names,
            table["label"].map(number).to_numpy(dtype=np.int64),
            table[[f"probability of {name}" for name in names]].to_numpy(dtype=np.float64),
        )

    @classmethod
    def of_outputs(cls, names: list[str], labels: np.ndarray, outputs: np.ndarray) -> ScoredRows:
        """From the logits of a model, shape ``(rows, classes)``, whatever their precision."""
        return cls(names, labels, softmax(outputs.astype(np.float64), axis=1))

    @property
    def classes(self) -> np.ndarray:
        """The most probable class of each row, shape ``(rows,)``."""
        classes: np.ndarray = self.probabilities.argmax(axis=1)
        return classes

    def __len__(self) -> int:
        return len(self.labels)
