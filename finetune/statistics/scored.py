"""The predictions of a run as arrays, which is what every statistic is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax


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
            table["label"].map(number).to_numpy(dtype=np.int64),
            table[[f"probability of {name}" for name in names]].to_numpy(dtype=np.float64),
        )

    @classmethod
    def of_outputs(cls, names: list[str], labels: np.ndarray, outputs: np.ndarray) -> ScoredRows:
        """Return those of logits, shape ``(rows, classes)``, whatever their precision."""
        return cls(names, labels, softmax(outputs.astype(np.float64), axis=1))

    @property
    def classes(self) -> np.ndarray:
        """Return the most probable class of each row, shape ``(rows,)``."""
        classes: np.ndarray = self.probabilities.argmax(axis=1)
        return classes

    def __len__(self) -> int:
        return len(self.labels)
