"""Notice a table whose first line has no names of columns, or one that has these names again."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import ROW, arrow
from finetune.data.numbers import parse_number

#: A name of so many words that is a text of the column itself, too, is a text; one of so many
#: characters is, unless it ends like the question of a form.
_FEWEST_WORDS, _LONGEST_NAME = 3, 60
_FORM = ("?", ":", ")", "*")
_LOOKED_AT = 1000
#: Where a column is missing, a name of so many words may be a text.
_TEXT_WORDS = 5
#: How a comment begins, and "# of visits" does not.
_COMMENT = re.compile(r"#+\s*(?!of\b)\S+\s+\S|//|--")


def looks_like_row(rows: Dataset, text: str, label: str) -> str | None:
    """Return why the names of two columns are rather values of a row; None if they are not.

    Args:
        rows: Of a table with a first line of names.
        text: The column of the text.
        label: That of the label.
    """
    names = [name for name in rows.column_names if name != ROW]
    if names == [str(number) for number in range(len(names))]:  # as pandas numbers them
        return None
    if _occurs(rows, label):
        return f"'{label}' is both the name of a column and a label in it"
    words = len(text.split())
    if words >= _FEWEST_WORDS and _occurs(rows, text):
        return f"'{_short(text)}' is both the name of a column and a text in it"
    if len(text) > _LONGEST_NAME and not text.rstrip().endswith(_FORM):
        return f"a column is called '{_short(text)}'"
    value = parse_number(label)
    if words >= _FEWEST_WORDS and value is not None and math.isfinite(value):
        return f"the columns are called '{_short(text)}' and '{label}'"
    return None


def of_a_form(rows: Dataset, text: str) -> bool:
    """Return whether the first two rows are the questions and identifiers that Qualtrics writes
    below the names of columns.

    Args:
        rows: Of a table.
        text: The column of the text.
    """
    return any(str(value).startswith('{"ImportId"') for value in rows[:2][text])


def unnamed(rows: Dataset, read: Sequence[str]) -> int:
    """Return how many rows have something in a column without a name, but for the first column.

    Args:
        rows: Of a table.
        read: Columns that are meant.
    """
    names = [name for name in rows.column_names if name not in (ROW, *read)]
    several = [name for name in names if name.startswith("Unnamed: ") and name != "Unnamed: 0"]
    return max((len(rows) - arrow.column(rows, name).null_count for name in several), default=0)


def again(table: pa.Table) -> list[int]:
    """Return the rows of a table of text that are the names of its columns, two or more."""
    named = [name for name in table.column_names if not name.startswith("Unnamed: ")]
    if len(named) < 2:
        return []
    found = functools.reduce(pc.and_, (pc.equal(table.column(name), name) for name in named))
    return list(np.flatnonzero(found.fill_null(False)).tolist())


def above(names: Sequence[str]) -> str:
    """Return what a first line probably is instead of the names of columns: ``comment`` or
    ``title``; else an empty text.
    """
    if names and _COMMENT.match(names[0]):
        return "comment"
    are_unnamed = len(names) > 1 and all(name.startswith("Unnamed: ") for name in names[1:])
    return "title" if are_unnamed and not names[0].startswith("Unnamed: ") else ""


def hint_of_names(names: Sequence[str]) -> str:
    """Return a hint, where a column is missing, if the first line is probably none of names, by
    these alone.
    """
    if kind := above(names):
        return (
            f"; is the first line, '{_short(names[0])}', a {kind}? Remove what is above the names "
            "of the columns"
        )
    if any(len(name.split()) >= _TEXT_WORDS and not name.endswith(_FORM) for name in names):
        return "; if the first line is a row, add a line with the names of the columns on top"
    return ""


def _occurs(rows: Dataset, column: str) -> bool:
    """Return whether the name of a column of text is a value in it."""
    stored = rows.data.column(column)
    return arrow.is_text(stored.type) and bool(pc.any(pc.equal(stored, column)).as_py())


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
