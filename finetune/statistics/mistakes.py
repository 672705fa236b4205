"""Which rows a model gets wrong: confident mistakes, labels that may be wrong, slices."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import is_predicted
from finetune.statistics.estimates import Estimate, share
from finetune.statistics.scored import ScoredLabels, ScoredRows

_FEWEST_IN_SLICE, _MOST_VALUES, _LENGTH_GROUPS = 20, 30, 4
_TENTH, _FEWEST_TO_SUSPECT, _MOST_CONTRADICTED = 10, 100, 1 / 3


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
    confident = len(rows) // _TENTH
    order = np.argsort(-rows.summary.confidence, kind="stable")[:confident]
    suspected = order[wrong[order]]
    return Suspicion(suspected, confident, share(len(suspected), confident))


def worst_slices(rows: ScoredRows, table: pd.DataFrame, most: int) -> list[dict[str, Any]]:
    """Return the slices with the lowest accuracy: by class, by length, by columns of the data.

    Of each the name, rows, accuracy, and whether that is surely lower than that of all rows.

    Args:
        rows: To slice.
        table: ``predictions.parquet``; a column of the data is a source of slices if it has 2 to 30
            values.
        most: How many slices; those of fewer than 20 rows are left out.
    """
    right, masks = rows.right, dict[str, np.ndarray]()
    if "tokens" in table:
        masks |= _by_length(table["tokens"].to_numpy())
    for column in table.columns:
        cells = table[column]
        values = cells.dropna().unique() if not is_predicted(column) else ()
        for value in values if 1 < len(values) <= _MOST_VALUES else ():
            masks[f"{column} = {value}"] = (cells == value).to_numpy(bool, na_value=False)
    counts = {name: (int(mask.sum()), int(right[mask].sum())) for name, mask in masks.items()}
    hits = np.bincount(rows.labels, right, len(rows.names)).astype(int).tolist()
    for name, *count in zip(rows.names, rows.supports.tolist(), hits, strict=True):
        counts[f"true class '{name}'"] = count[0], count[1]
    slices, overall = list[dict[str, Any]](), float(right.mean())
    for name, (size, hit) in counts.items():
        if _FEWEST_IN_SLICE <= size < len(rows):
            accuracy = share(hit, size)
            slices.append(
                {
                    "name": name,
                    "rows": size,
                    "accuracy": asdict(accuracy),
                    "lower": accuracy.high < overall,
                }
            )
    return sorted(slices, key=lambda row: float(row["accuracy"]["value"]))[:most]


def _by_length(tokens: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, _LENGTH_GROUPS + 1)).astype(int))
    masks = {}
    for low, high in itertools.pairwise(edges):
        upper = high if high == edges[-1] else high - 1
        masks[f"{low:,} to {upper:,} tokens"] = (tokens >= low) & (tokens <= upper)
    return masks
