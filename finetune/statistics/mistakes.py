"""Which rows a classifier gets wrong: the surest mistakes, labels that may be wrong, slices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from finetune.data.findings import is_own_column
from finetune.statistics import intervals
from finetune.statistics.intervals import Interval
from finetune.statistics.scored import ScoredRows

_FEWEST_ROWS = 20
_MOST_VALUES = 30
_LENGTH_GROUPS = 4


@dataclass(frozen=True)
class Slice:
    """Rows that have something in common: their accuracy by Wilson's interval, and whether all of
    it is lower than the accuracy on all rows.
    """

    name: str
    rows: int
    accuracy: Interval
    lower: bool


def surest_mistakes(predicted: ScoredRows) -> np.ndarray:
    """Indices of wrong rows, the one with the highest probability first."""
    wrong = np.flatnonzero(predicted.classes != predicted.labels)
    sure = predicted.probabilities.max(axis=1)[wrong]
    return wrong[np.argsort(-sure, kind="stable")]


def likely_label_errors(predicted: ScoredRows) -> np.ndarray:
    """Indices of rows whose label is likely wrong, the likeliest first.

    Confident learning (Northcutt, Jiang and Chuang, JAIR 70, 2021): a row is taken to be of a
    class if its probability reaches the mean of the rows that bear that label; it is suspected if
    that class is not its own, and ranked by how far its own lies behind.
    """
    rows = np.arange(len(predicted))
    own = predicted.probabilities[rows, predicted.labels]
    thresholds = np.array(
        [
            own[predicted.labels == each].mean() if (predicted.labels == each).any() else np.inf
            for each in range(len(predicted.names))
        ]
    )
    confident = np.where(predicted.probabilities >= thresholds, predicted.probabilities, -1.0)
    taken_for, best = confident.argmax(axis=1), confident.max(axis=1)
    suspected = np.flatnonzero((best >= 0) & (taken_for != predicted.labels) & (best > own))
    margin = best[suspected] - own[suspected]
    return suspected[np.argsort(-margin, kind="stable")]


def worst_slices(predicted: ScoredRows, table: pd.DataFrame, most: int) -> list[Slice]:
    """The slices with the lowest accuracy: by true class, by length, by the columns of the data.

    Args:
        predicted: The rows.
        table: ``predictions.parquet``; a column that came with the data is a source of slices if
            it has 2 to 30 values.
        most: How many slices; those of fewer than 20 rows are left out.
    """
    right = predicted.classes == predicted.labels
    groups = {
        f"true class '{name}'": predicted.labels == index
        for index, name in enumerate(predicted.names)
    }
    if "tokens" in table:
        groups |= _by_length(table["tokens"].to_numpy())
    for column in table.columns:
        if is_own_column(column):
            continue
        values = table[column]
        kinds = values.dropna().unique()
        if 1 < len(kinds) <= _MOST_VALUES:
            groups |= {f"{column} = {each}": (values == each).to_numpy() for each in kinds}
    found = [
        _slice(name, right[chosen], float(right.mean()))
        for name, chosen in groups.items()
        if _FEWEST_ROWS <= chosen.sum() < len(right)
    ]
    return sorted(found, key=lambda each: each.accuracy.value)[:most]


def _by_length(tokens: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, _LENGTH_GROUPS + 1)).astype(int))
    groups = {}
    for low, high in itertools.pairwise(edges):
        last = high == edges[-1]
        upper = high if last else high - 1
        groups[f"{low:,} to {upper:,} tokens"] = (tokens >= low) & (tokens <= upper)
    return groups


def _slice(name: str, right: np.ndarray, overall: float) -> Slice:
    accuracy = intervals.of_share(float(right.sum()), len(right))
    return Slice(name, len(right), accuracy, accuracy.high < overall)
