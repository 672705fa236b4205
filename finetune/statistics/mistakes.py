"""Which rows a classifier gets wrong: confident mistakes, labels that may be wrong, slices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import is_predicted
from finetune.statistics import estimates
from finetune.statistics.estimates import Estimate
from finetune.statistics.scored import ScoredRows

_FEWEST_ROWS = 20
_MOST_VALUES = 30
_LENGTH_GROUPS = 4
_TENTH, _FEWEST_TO_SUSPECT, _MOST_CONTRADICTED = 10, 100, 1 / 3


@dataclass(frozen=True)
class Slice:
    """Rows that have something in common: their accuracy by Wilson's interval, and whether all of
    it is lower than the accuracy on all rows.
    """

    name: str
    rows: int
    accuracy: Estimate
    lower: bool


@dataclass(frozen=True)
class Suspicion:
    """Labels that may be wrong.

    Attributes:
        rows: Indices, the most confident prediction first, shape ``(suspected,)``.
        confident: How many predictions were looked at, the most confident ones.
        wrong: The share of these whose label is contradicted: of all labels, at most about as many
            are wrong.
    """

    rows: np.ndarray
    confident: int
    wrong: Estimate


def most_confident(predicted: ScoredRows) -> np.ndarray:
    """Return the indices of the mistakes, the one with the highest probability first."""
    wrong = np.flatnonzero(~predicted.right)
    sure = predicted.summary.confidence[wrong]
    return wrong[np.argsort(-sure, kind="stable")]


def suspicion(predicted: ScoredRows) -> Suspicion | None:
    """Return which labels may be wrong: those that the most confident predictions contradict.

    Mistakes of the model get rarer as its confidence grows, wrong labels do not. Among the tenth of
    the rows with the most confident predictions, most of what is contradicted is therefore wrong
    itself, if the confidence is worth anything. The share, the precision on seeded noise, and why
    not confident learning: docs/decisions/suspected-labels.md.

    Returns:
        None of fewer than 100 rows, and if more than a third of all labels are contradicted: then
        too many of the most confident predictions are wrong themselves.
    """
    wrong = ~predicted.right
    if len(predicted) < _FEWEST_TO_SUSPECT or wrong.mean() > _MOST_CONTRADICTED:
        return None
    confident = len(predicted) // _TENTH
    order = np.argsort(-predicted.summary.confidence, kind="stable")[:confident]
    rows = order[wrong[order]]
    return Suspicion(rows, confident, estimates.share(float(len(rows)), confident))


def worst_slices(predicted: ScoredRows, table: pd.DataFrame, most: int) -> list[Slice]:
    """Return the slices with the lowest accuracy: by class, by length, by columns of the data.

    Args:
        predicted: The rows.
        table: ``predictions.parquet``; a column that came with the data is a source of slices if
            it has 2 to 30 values.
        most: How many slices; those of fewer than 20 rows are left out.
    """
    right = predicted.right
    groups: dict[str, np.ndarray] = {}
    if "tokens" in table:
        groups |= _by_length(table["tokens"].to_numpy())
    for column in table.columns:
        if is_predicted(column):
            continue
        values = table[column]
        kinds = values.dropna().unique()
        if 1 < len(kinds) <= _MOST_VALUES:
            groups |= {f"{column} = {each}": (values == each).to_numpy() for each in kinds}
    counted = {
        f"true class '{name}'": (rows, hits)
        for name, rows, hits in zip(
            predicted.names,
            np.bincount(predicted.labels, minlength=len(predicted.names)).tolist(),
            np.bincount(predicted.labels, right, len(predicted.names)).tolist(),
            strict=True,
        )
    }
    counted |= {name: (int(each.sum()), right[each].sum()) for name, each in groups.items()}
    found = [
        _slice(name, rows, float(hits), float(right.mean()))
        for name, (rows, hits) in counted.items()
        if _FEWEST_ROWS <= rows < len(right)
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


def _slice(name: str, rows: int, hits: float, overall: float) -> Slice:
    accuracy = estimates.share(hits, rows)
    return Slice(name, rows, accuracy, accuracy.high < overall)
