"""Which columns of a data set hold texts and labels: named, or found; and their missing values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import ROW, arrow
from finetune.data.comma_list import format_option, split_values
from finetune.data.label_columns import (
    LabelColumn,
    list_names,
    parse_list,
    parse_number,
    source_rows,
)
from finetune.data.prediction_columns import is_own
from finetune.errors import Report, UserError, suggestion

#: Rows that are looked at to find a column, spread over the data.
_SAMPLED_ROWS = 1000
_USUAL_NAMES = {
    "text": ("text", "sentence", "review", "body", "content", "message", "comment"),
    "label": ("label", "labels", "class", "category", "target"),
}
_FEWEST_WORDS, _MOST_CLASSES, _LONGEST_EXAMPLE = 3, 100, 60


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


def drop_clashes(
    dataset: DatasetDict, columns: Sequence[str], report: Report, split_by: Sequence[str] = ()
) -> DatasetDict:
    """Return ``dataset`` without columns that only some splits have or that the toolkit writes.

    Those of the texts and the labels, ``columns``, stay, and those that training rows are split by.
    """
    shared = set.intersection(*(set(rows.column_names) for rows in dataset.values()))
    clashing = [
        name
        for name in dataset["train"].column_names
        if name not in {ROW, *columns} and (is_own(name) or name not in {*shared, *split_by})
    ]
    if clashing:
        why = "not in every split, or called as a column of the toolkit: rename to keep"
        report.info(f"dropped from the data: {list_names(clashing)} ({why})")
    names = [name for name in dataset["train"].column_names if name not in clashing]
    return DatasetDict(
        {
            split: rows.select_columns([name for name in names if name in rows.column_names])
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
            places = source_rows(rows, missing).tolist()
            if places and drop:
                report.warning(f"dropped {message}", "dropped_rows", split=split, rows=places)
            elif places:
                fix = "--drop_invalid leaves them out"
                if len(missing) == len(rows):
                    fix = f"--dataset_splits {split}=none does not read these rows"
                report.error(message, split=split, rows=places, fix=fix)
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


def find_columns(rows: Dataset, texts: Sequence[str], label: str) -> tuple[list[str], str]:
    """Return the columns of the texts and of the label; those that are empty are found here.

    A column with a usual name is taken, such as ``text`` or ``label``. Otherwise a text has three
    words or more on average and is mostly unlike the others; a label is one of at most 100 values,
    or a list of such, that occur four times or more on average.

    Raises:
        UserError: If not exactly one column can be it; it lists all, with an example of each.
    """
    columns = _sample(rows)
    chosen = {"text": [*texts], "label": [label] if label else []}
    mistakes = []
    for kind, fits in (("text", _are_texts), ("label", _are_classes)):
        if chosen[kind]:
            continue
        names = [name for name in columns if name not in {*chosen["text"], label}]
        usual = [name for name in names if name.lower() in _USUAL_NAMES[kind]]
        fitting = [name for name in usual or names if fits(columns[name])]
        chosen[kind] = usual if len(usual) == 1 else fitting
        if len(chosen[kind]) != 1:
            problem = f"several columns could be the {kind}" if fitting else f"no clear {kind}"
            mistakes.append(f"--{kind}_column: {problem}; the columns, with an example each:")
    if mistakes:
        for name, values in columns.items():
            example = repr(values[0]) if values else "no value"
            mistakes[-1] += f"\n  {name}: {shorten(example, _LONGEST_EXAMPLE, placeholder='…')}"
        raise UserError(*mistakes)
    return chosen["text"], chosen["label"][0]


def _sample(rows: Dataset) -> dict[str, list[Any]]:
    """Return values of each column that are not missing; none of objects or images."""
    places = np.unique(np.linspace(0, max(0, len(rows) - 1), _SAMPLED_ROWS, dtype=int))
    some, columns = rows.select(places[: len(rows)]), {}
    for name, feature in rows.features.items():
        inner = feature.feature if isinstance(feature, List) else feature
        if name != ROW:
            cells = some[name][:] if isinstance(inner, Value | ClassLabel) else []
            columns[name] = [cell for cell in cells if cell is not None and cell != ""]
    return columns


def _are_texts(values: Sequence[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    words = np.mean([len(value.split()) for value in values])
    return bool(words >= _FEWEST_WORDS) and len(set(values)) > len(values) / 2


def _are_classes(values: Sequence[Any]) -> bool:
    lists = [parse_list(value) for value in values]
    cells = [
        [value] if labels is None else labels for value, labels in zip(values, lists, strict=True)
    ]
    labels = [repr(label) for cell in cells for label in cell]
    return 2 <= len({*labels}) <= min(_MOST_CLASSES, len(labels) // 4)
