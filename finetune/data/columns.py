"""Which columns of a data set hold the text and the label, where that is obvious."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Value

from finetune.data.delimited import separator_hint
from finetune.errors import UserError

#: Rows that are looked at, spread over the data.
_LOOKED_AT = 1000
#: What the two columns are often called; decides between several that could be it.
_USUAL = {
    "text": ("text", "sentence", "review", "body", "content", "message", "comment"),
    "label": ("label", "labels", "class", "category", "target"),
}
_FEWEST_WORDS, _MOST_CLASSES = 3, 100
_LONGEST_EXAMPLE = 60


def chosen(rows: Dataset, text_column: str, label_column: str) -> tuple[str, str]:
    """Return the columns of the text and of the label; an empty name is chosen here.

    A text has three words or more on average and is mostly unlike the others; a label is one of at
    most 100 values that occur again and again.

    Args:
        rows: Of training.
        text_column: Its name, or empty.
        label_column: Likewise.

    Raises:
        UserError: if not exactly one column can be it; it lists all with an example value each.
    """
    if text_column and label_column:
        return text_column, label_column
    return _chosen(rows, [text_column] if text_column else [], label_column)


def chosen_label(rows: Dataset, text_columns: Sequence[str]) -> str:
    """Return the column of the label, as :func:`chosen` does, where those of the texts are known.

    Raises:
        UserError: if not exactly one column can be it; it lists all with an example value each.
    """
    return _chosen(rows, text_columns, "")[1]


def _chosen(rows: Dataset, texts: Sequence[str], label_column: str) -> tuple[str, str]:
    """Return the columns of the text, empty if there are several, and of the label.

    Args:
        rows: Of training.
        texts: The columns of texts; that of the only one is chosen here if there are none.
        label_column: Its name; chosen here if empty.
    """
    some = rows.select(np.unique(np.linspace(0, len(rows) - 1, _LOOKED_AT, dtype=int)))
    features = rows.features  # copied at each access
    columns = {
        name: _values(some, name, features[name])
        for name in rows.column_names
        if name not in ("id", label_column)
    }
    mistakes, text_column = [], texts[0] if len(texts) == 1 else ""
    if not texts:
        candidates = [name for name, values in columns.items() if _are_texts(values)]
        text_column, mistake = _one(candidates, "text", columns)
        mistakes += mistake
    if not label_column:
        others = {name: each for name, each in columns.items() if name not in (text_column, *texts)}
        labels = [
            name
            for name, values in others.items()
            if isinstance(features[name], ClassLabel) or _are_labels(values)
        ]
        label_column, mistake = _one(labels, "label", others)
        if mistake and not others:  # also where the only column is taken for the text
            mistake = [f"{mistake[0]}{separator_hint(list(columns))}"]
        mistakes += mistake
    if mistakes:
        *first, last = mistakes
        listed = "".join(f"\n  {name}: {_example(some, name)}" for name in columns)
        raise UserError(*first, f"{last}; the columns, with an example each:{listed}")
    return text_column, label_column


def _one(candidates: list[str], kind: str, columns: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the only candidate, or the only one that is called so; if none looks like it, that of
    all columns: what is wrong with it is told by who reads it.
    """
    usual = [name for name in candidates or columns if name.lower() in _USUAL[kind]]
    if len(candidates) == 1 or len(usual) == 1:
        return (usual or candidates)[0], []
    several = f"several columns could be the {kind} ({', '.join(candidates)})"
    if kind == "text":
        several += f"; for all of them, --text_columns {','.join(candidates)}"
    none = f"no column is clearly a {kind}{separator_hint(list(columns))}"
    return "", [f"--{kind}_column: {several if candidates else none}"]


def _values(rows: Dataset, name: str, feature: Any) -> list[Any]:
    """Return the values that are there; none of a column of lists, objects or images."""
    if not isinstance(feature, Value | ClassLabel):
        return []
    return [value for value in rows[name][:] if value is not None and value != ""]


def _are_texts(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    words = np.mean([len(value.split()) for value in values])
    return bool(words >= _FEWEST_WORDS) and len(set(values)) > len(values) / 2


def _are_labels(values: list[Any]) -> bool:
    distinct = len(set(values))
    fractions = any(isinstance(value, float) and not value.is_integer() for value in values)
    return not fractions and 2 <= distinct <= min(_MOST_CLASSES, len(values) // 4)


def _example(rows: Dataset, name: str) -> str:
    shown = next((repr(value) for value in rows[name] if value not in (None, "")), "no value")
    return shown if len(shown) <= _LONGEST_EXAMPLE else f"{shown[:_LONGEST_EXAMPLE]}…"
