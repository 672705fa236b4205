"""Notice a table whose first line is a row, or several columns in one, by the names of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import ROW, arrow
from finetune.data.numbers import parse_number

#: Separators that are detected, and what they are called.
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: A name of so many words that is a text of the column itself, too, is a text; one of so many
#: characters is, unless it ends like the question of a form.
_FEWEST_WORDS, _LONGEST_NAME = 3, 60
_FORM = ("?", ":", ")", "*")
#: Where a column is missing, a name of so many words may be a text.
_TEXT_WORDS = 5


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


def hint_of_names(names: Sequence[str]) -> str:
    """Return a hint, where a column is missing, if the first line is probably none of names."""
    if any(len(name.split()) >= _TEXT_WORDS and not name.endswith(_FORM) for name in names):
        return "; if the first line is a row, add a line with the names of the columns on top"
    return ""


def separator_hint(columns: Sequence[str]) -> str:
    """Return what to type if a single column looks like several with another separator."""
    if len(columns) == 1:
        for character in (*SEPARATOR_NAMES, *"^~:"):
            if character in columns[0]:
                name = SEPARATOR_NAMES.get(character, f"'{character}'")
                typed = "tab" if character == "\t" else f"'{character}'"
                return f"; if fields are separated by {name}: --csv_separator {typed}"
    return ""


def _occurs(rows: Dataset, column: str) -> bool:
    """Return whether the name of a column of text is a value in it."""
    values = rows.data.column(column)
    return arrow.is_text(values.type) and bool(pc.any(pc.equal(values, column)).as_py())


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
