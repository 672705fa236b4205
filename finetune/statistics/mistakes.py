"""Which rows a model gets wrong: confident mistakes, labels that may be wrong, slices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import is_predicted
from finetune.statistics.estimates import Estimate, share
from finetune.statistics.scored import ScoredLabels, ScoredRows

_FEWEST_IN_SLICE, _MOST_VALUES = 20, 30
_FEWEST_TO_SUSPECT, _MOST_CONTRADICTED = 100, 1 / 3


@dataclass(frozen=True)
class Suspicion:
    """Labels that may be wrong."""

    rows: np.ndarray  # indices, the most confident prediction first
    confident: int  # how many predictions were looked at, the most confident ones
    wrong: Estimate  # the share whose label is contradicted: of all labels, at most about as many


def most_confident(rows: ScoredRows) -> np.ndarray:
    """Return the indices of the mistakes, the one with the highest probability first."""
    wrong = np.flatnonzero(~rows.right)
    return wrong[np.argsort(-rows.summary.confidence[wrong], kind="stable")]


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows that are wrong in a label, the most confident mistakes first."""
    gaps = np.zeros(len(rows))
    for chosen, block in rows.probabilities.row_blocks():
        is_wrong = rows.decided[chosen] != rows.labels[chosen]
        gaps[chosen] = np.where(is_wrong, np.abs(block - 0.5), 0).max(axis=1)
    order = np.argsort(-gaps, kind="stable")
    return np.asarray(order[~rows.right[order]])


def suspicion(rows: ScoredRows) -> Suspicion | None:
    """Return which labels may be wrong: those that the most confident predictions contradict.

    Mistakes of the model get rarer as its confidence grows, wrong labels do not: among the tenth of
    the rows with the most confident predictions most contradicted labels are wrong themselves
    (docs/decisions/suspected-labels.md).

    Returns:
        None of fewer than 100 rows, and if more than a third of all labels are contradicted: then
        too many of the most confident predictions are wrong themselves.
    """
    wrong = ~rows.right
    if len(rows) < _FEWEST_TO_SUSPECT or wrong.mean() > _MOST_CONTRADICTED:
        return None
    confident = len(rows) // 10
    order = np.argsort(-rows.summary.confidence, kind="stable")[:confident]
    suspected = order[wrong[order]]
    return Suspicion(suspected, confident, share(len(suspected), confident))


def worst_slices(rows: ScoredRows, table: pd.DataFrame, most: int) -> list[dict[str, Any]]:
    """Return the slices with the lowest accuracy: by length, by columns of the data, by class.

    Of each the name, rows, accuracy, and whether that is surely lower than that of all rows.

    Args:
        rows: To slice.
        table: ``predictions.parquet``; a column of the data is a source of slices if it has 2 to 30
            values.
        most: How many slices; those of fewer than 20 rows are left out.
    """
    names = [_by_length(table["tokens"])] if "tokens" in table else []  # the slice of each row
    for column in table.columns:
        if not is_predicted(column) and 1 < table[column].nunique() <= _MOST_VALUES:
            names.append(f"{column} = " + table[column].astype("string"))
    names.append(pd.Series([f"true class '{rows.names[label]}'" for label in rows.labels]))
    slices, overall = list[dict[str, Any]](), float(rows.right.mean())
    for slice_of_row in names:
        by_slice = pd.Series(rows.right).groupby(slice_of_row.to_numpy(), sort=False)
        for name, right in by_slice:
            if _FEWEST_IN_SLICE <= len(right) < len(rows):
                accuracy = share(int(right.sum()), len(right))
                facts = {"name": name, "rows": len(right), "accuracy": asdict(accuracy)}
                slices.append({**facts, "lower": accuracy.high < overall})
    return sorted(slices, key=lambda part: float(part["accuracy"]["value"]))[:most]


def _by_length(tokens: pd.Series[int]) -> pd.Series[str]:
    """Return the group of each row by its tokens: quarters of all rows."""
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, 5)).astype(int))
    ends = [*(edges[1:-1] - 1), edges[-1]]
    names = [f"{low:,} to {high:,} tokens" for low, high in zip(edges, ends, strict=False)]
    return pd.Series(np.searchsorted(edges[1:-1], tokens, side="right")).map(dict(enumerate(names)))
