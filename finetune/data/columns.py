"""Which columns of a data set hold texts and labels: named, or found; and their missing values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.data import ROW, arrow
from finetune.data.comma_list import format_option, split_values
from finetune.data.label_columns import (
    LabelColumn,
    list_names,
    parse_number,
    source_rows,
)
from finetune.data.prediction_columns import is_own
from finetune.data.row_findings import refuse_or_drop
from finetune.errors import Report, UserError, suggestion

_USUAL_NAMES = {
    "text": ("text", "sentence", "review", "body", "content", "message", "comment"),
    "image": ("image", "img", "picture", "photo", "file", "path"),
    "label": ("label", "labels", "class", "category", "target"),
}
_LONGEST_EXAMPLE = 60  # characters


def parse_names(flag: str, text: Any) -> list[str]:
    """Return the columns that an option names, by a text or a list; none if it is None.

    Raises:
        UserError: If it names only one.
    """
    names = split_values(format_option(text, "NAME,NAME", flag) or "")
    if text is not None and len(names) < 2:
        raise UserError(f"{flag} {text}: expected two columns or more, separated by commas")
    return names


def require_columns(
    dataset: DatasetDict, columns: Mapping[str, Sequence[str]], report: Report
) -> None:
    """Refuse columns that are missing, named twice or of the wrong type.

    Args:
        dataset: As it was read.
        columns: The columns by the flags that name them: ``--text_column``, ``--label_columns``.
        report: Gets an error for each of them.

    Raises:
        UserError: If there is such a column.
    """
    flags: dict[str, str] = {}
    for flag, column in ((flag, column) for flag, names in columns.items() for column in names):
        lacking = [split for split, rows in dataset.items() if column not in rows.column_names]
        if column in flags:
            report.error(f"{flag}: '{column}' is named by {flags[column]} already")
        elif lacking:
            report.error(
                f"{flag}: no column '{column}' in the {' and '.join(lacking)} data"
                + describe_columns(dataset[lacking[0]], column)
            )
        elif flag.startswith("--text_column"):
            _require_texts(dataset, flag, column, report)
        flags.setdefault(column, flag)
    report.raise_errors()


def describe_columns(rows: Dataset, column: str) -> str:
    """Return which columns there are, and which is called most like a missing one."""
    names = [name for name in rows.column_names if name != ROW]
    return f"{suggestion(column, names)} (available: {', '.join(names)})"


def _require_texts(dataset: DatasetDict, flag: str, column: str, report: Report) -> None:
    """Report a column that holds other values than texts, or whose training texts are numbers."""
    for split, rows in dataset.items():
        values = (value for batch in arrow.batches(rows, column) for value in batch.drop_null())
        if (first := next(values, None)) is None:
            continue
        cells = (value.as_py() for value in itertools.chain([first], values))
        is_text = arrow.is_text(first.type)
        if not is_text or (split == "train" and all(parse_number(c) is not None for c in cells)):
            kind = "numbers only" if is_text else f"values of the type {first.type}"
            report.error(
                f"{flag}: the column '{column}' of the {split} data holds {kind}, such as "
                f"{first.as_py()!r}",
                fix="expected text; is it the right column?",
            )
            return


def drop_own_columns(dataset: DatasetDict, columns: Sequence[str], report: Report) -> DatasetDict:
    """Return ``dataset`` without columns that the toolkit writes, unless they are ``columns``."""
    names = dict.fromkeys(name for rows in dataset.values() for name in rows.column_names)
    clashes = [name for name in names if is_own(name) and name not in columns]
    if clashes:
        reason = "the toolkit writes columns of these names; rename to keep"
        report.info(f"dropped from the data: {list_names(clashes)} ({reason})")
    return DatasetDict(
        {
            split: rows.remove_columns([name for name in clashes if name in rows.column_names])
            for split, rows in dataset.items()
        }
    )


def find_valid_rows(
    dataset: DatasetDict,
    texts: Sequence[str],
    labels: Mapping[str, Sequence[LabelColumn]],
    report: Report,
    *,
    drop: bool,
) -> dict[str, np.ndarray]:
    """Return which rows of each split have all texts and labels, shape ``(rows,)``, of booleans.

    ``report`` gets an error for each column of a split with missing values, or a warning if such
    rows are to be left out, ``drop``.

    Raises:
        UserError: If values are missing and ``drop`` is false.
    """
    valid = {}
    for split, rows in dataset.items():
        columns = [(f"text in '{name}'", _has_text(rows, name)) for name in texts]
        columns += [(f"label in '{column.name}'", column.codes >= 0) for column in labels[split]]
        valid[split] = np.logical_and.reduce([has_value for _, has_value in columns])
        for kind, has_value in columns:
            missing = np.flatnonzero(~has_value)
            message = f"{len(missing):,} of {len(rows):,} {split} rows without a {kind}"
            fix = "--drop_invalid leaves them out"
            if len(missing) == len(rows):
                fix = f"--dataset_splits {split}=none does not read these rows"
            if places := source_rows(rows, missing).tolist():
                refuse_or_drop(report, message, split, places, fix, drop=drop)
    if not drop:
        report.raise_errors()
    return valid


def _has_text(rows: Dataset, column: str) -> np.ndarray:
    """Return which rows have a text that is not blank, shape ``(rows,)``."""
    has_text = [np.zeros(0, dtype=bool)]
    for batch in arrow.batches(rows, column):
        if arrow.is_text(batch.type):
            batch = pc.utf8_trim_whitespace(batch)
            has_text.append(pc.fill_null(pc.not_equal(batch, ""), False).to_numpy())
        else:  # of no values at all
            has_text.append(batch.is_valid().to_numpy())
    return np.concatenate(has_text)


def find_columns(rows: Dataset, columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the columns of each kind: those that are named, or else the one with a usual name.

    Args:
        rows: Of training.
        columns: The columns by kind, ``text``, ``image`` or ``label``; empty ones are found.

    Raises:
        UserError: If no column has a usual name, or several, none of which is called as its kind;
            it lists all, with an example of each.
    """
    reserved = {name for names in columns.values() for name in names}
    names = [name for name in rows.column_names if name not in {ROW, *reserved}]
    chosen, mistakes = list[list[str]](), list[str]()
    for kind, of_kind in columns.items():
        usual = [name for name in of_kind if name]
        if not usual:
            usual = [name for name in names if name.lower() in _USUAL_NAMES[kind]]
            usual = [kind] if kind in usual else usual
            if len(usual) != 1:
                problem = "several columns are" if usual else "no column is"
                mistakes.append(
                    f"--{kind}_column: {problem} called {' or '.join(_USUAL_NAMES[kind])}; the "
                    "columns, with an example each:"
                )
        chosen.append(usual)
    if mistakes:
        example = rows.with_format("arrow")[:1]
        for name in [name for name in rows.column_names if name != ROW]:
            cell = ", ".join(map(repr, example[name].to_pylist()))
            mistakes[-1] += f"\n  {name}: {shorten(cell, _LONGEST_EXAMPLE, placeholder='…')}"
        raise UserError(*mistakes)
    return chosen
