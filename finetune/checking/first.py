"""What every training looks for in its rows, in seconds; ``check`` tells it before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.checking import classes, numbers, texts
from finetune.data import ROW, arrow
from finetune.data.files_of_splits import guess_split
from finetune.errors import Finding

_SPLIT_COLUMNS = {"split", "set", "fold", "partition", "subset"}


def findings(
    source: DatasetDict,
    splits: DatasetDict,
    columns: Sequence[str],
    names: Sequence[str] = ("label",),
    split_by: Collection[str] = (),
) -> list[Finding]:
    """Return what is suspicious, besides what splitting the rows tells by itself.

    Args:
        source: The splits as they were read, with ``id``, ``label`` and what the model reads.
        splits: Training, validation and test rows made of it.
        columns: The columns of the data that the model reads.
        names: Of the targets that are numbers.
        split_by: The columns that the rows are split by.
    """
    found = [
        finding
        for split, rows in source.items()
        for finding in (
            *texts.findings(rows, split, columns),
            *numbers.findings(rows, split, names),
        )
    ]
    found += _of_columns(source, {*columns, *split_by, ROW, "label"})
    return [*found, *classes.findings(splits), *classes.shifts(source)]


def _of_columns(source: DatasetDict, read: Collection[str]) -> list[Finding]:
    """Return columns that say which split a row belongs to, and are not read."""
    named = [
        name
        for rows in source.values()
        for name in rows.column_names
        if name not in read and name.lower() in _SPLIT_COLUMNS and _names_splits(rows, name)
    ]
    return [
        Finding(
            name="split_column",
            severity="warning",
            message=f"'{name}' says which split each row belongs to, and is not read",
            fix="write a file for each: train.csv, validation.csv, test.csv",
        )
        for name in dict.fromkeys(named)
    ]


def _names_splits(rows: Dataset, name: str) -> bool:
    """Return whether the values of a column are names of two splits or three."""
    values = arrow.column(rows, name)
    if not arrow.is_text(values.type):
        return False
    found = {guess_split(each) for each in pc.unique(values).to_pylist() if (each or "").strip()}
    return len(found) > 1 and None not in found
