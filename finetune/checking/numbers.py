"""Targets of a regression that are far from all others, or that stand for a missing one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, List

from finetune.checking.finding import EXCLUDE, MUCH, of_rows
from finetune.data import arrow, targets
from finetune.errors import Finding

#: Robust standard deviations from the median beyond which a target is far, and what makes one of
#: the median absolute deviation (of a normal distribution).
_FAR, _ROBUST = 10, 1.4826
#: What is written where a number is missing.
_CODES = (-1, -9, *(sign * each for each in (99, 999, 9999, 99999) for sign in (1, -1)))


def findings(rows: Dataset, split: str, names: Sequence[str]) -> list[Finding]:
    """Return what is suspicious in the targets of a split; nothing if the labels are classes.

    Args:
        rows: With ``id`` and ``label``.
        split: The name of the split in the source.
        names: Of the targets.
    """
    if targets.are_classes(rows) or not len(rows):
        return []
    labels = arrow.column(rows, "label")
    several = pc.list_flatten(labels) if isinstance(rows.features["label"], List) else labels
    columns = several.to_numpy().astype(np.float64).reshape(len(rows), -1)
    if len(names) != columns.shape[1]:
        names = [f"target {each + 1}" for each in range(columns.shape[1])]
    found = []
    for name, column in zip(names, columns.T, strict=True):
        code = _code(column)
        if code is not None:
            found += of_rows(
                "missing_code",
                f"with {code:g} in '{name}', which is far from all others: is it a code for "
                "missing?",
                f"if so, leave the field empty and add --drop_invalid, or {EXCLUDE}",
                np.flatnonzero(column == code),
                rows=rows,
                split=split,
                severity="warning",
            )
        found += _far(column, name, code, rows, split)
    return found


def _far(
    column: np.ndarray, name: str, code: float | None, rows: Dataset, split: str
) -> list[Finding]:
    """Return a finding of targets that are far from the median, but those of a code."""
    median = np.median(column)
    scale = _ROBUST * np.median(np.abs(column - median))
    if scale == 0:
        return []
    distances = np.where(column == code, 0, np.abs(column - median) / scale)
    farthest = int(distances.argmax())
    far = np.flatnonzero(distances > _FAR)
    return of_rows(
        "far_targets",
        f"more than {_FAR} robust standard deviations from the median of '{name}', {median:g}; the "
        f"farthest is {column[farthest]:g}",
        f"is the unit or the decimal point wrong? If so, correct them, or {EXCLUDE}",
        far,
        rows=rows,
        split=split,
        severity="warning" if len(far) <= MUCH * len(rows) else "info",  # a long tail, no mistakes
    )


def _code(column: np.ndarray) -> float | None:
    """Return the least or greatest target if it may stand for a missing one: it is repeated, a
    number that is written so, and farther from the others than they are from each other.
    """
    values, counts = np.unique(column, return_counts=True)
    if len(values) < 3:
        return None
    for value, count, others in (
        (values[0], counts[0], values[1:]),
        (values[-1], counts[-1], values[:-1]),
    ):
        if count < max(2, MUCH * len(column)):
            continue
        gap = min(abs(value - others[0]), abs(value - others[-1]))
        if value in _CODES and gap > others[-1] - others[0]:
            return float(value)
    return None
