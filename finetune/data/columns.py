"""Which columns of a data set hold the text and the label, where that is obvious."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, Value

from finetune.data import ROW
from finetune.data.cells import list_in
from finetune.data.headers import separator_hint
from finetune.data.numeric_names import number
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
_DATE = re.compile(r"\d+([-/.]\d+){2}([ T]\d+:.*)?|\d+:\d\d(:\d.*)?")


def chosen(
    rows: Dataset, text_column: str, label_column: str, *, one_class: bool = False
) -> tuple[str, str]:
    """Return the columns of the text and of the label; an empty name is chosen here.

    A text has three words or more on average and is mostly unlike the others; a label is one of at
    most 100 values that occur again and again, or a list of such. If there is no such column, it is
    the only one that holds other lists, numbers, or short words of which some occur again.

    Args:
        rows: Of training.
        text_column: Its name, or empty.
        label_column: Likewise.
        one_class: Whether a row can have neither several labels nor a number.

    Raises:
        UserError: if not exactly one column can be it; it lists all with an example value each.
    """
    if text_column and label_column:
        return text_column, label_column
    return _chosen(rows, [text_column] if text_column else [], label_column, one_class=one_class)


def chosen_label(rows: Dataset, text_columns: Sequence[str]) -> str:
    """Return the column of the label, as :func:`chosen` does, where those of the texts are known.

    Raises:
        UserError: if not exactly one column can be it; it lists all with an example value each.
    """
    return _chosen(rows, text_columns, "")[1]


def _chosen(
    rows: Dataset, texts: Sequence[str], label_column: str, *, one_class: bool = False
) -> tuple[str, str]:
    """Return the columns of the text, empty if there are several, and of the label.

    Args:
        rows: Of training.
        texts: The columns of texts; that of the only one is chosen here if there are none.
        label_column: Its name; chosen here if empty.
        one_class: See :func:`chosen`.
    """
    some = rows.select(np.unique(np.linspace(0, len(rows) - 1, _LOOKED_AT, dtype=int)))
    features = rows.features  # copied at each access
    columns = {
        name: _values(some, name, features[name])
        for name in rows.column_names
        if name not in (ROW, label_column)
    }
    mistakes, text_column = [], texts[0] if len(texts) == 1 else ""
    if not texts:
        candidates = [name for name, values in columns.items() if _are_texts(values)]
        text_column, mistake = _one(candidates, "text", columns)
        mistakes += mistake
    if not label_column:
        others = {name: each for name, each in columns.items() if name not in (text_column, *texts)}
        if one_class:
            others = {name: [] if _lists(each) else each for name, each in others.items()}
        usual = {name for name in others if name.lower() in _USUAL["label"]}
        plausible = [name for name in others if not one_class and _may_be_labels(others[name])]
        labels = [
            name
            for name, values in others.items()
            if isinstance(features[name], ClassLabel)
            or _are_labels(values)
            or (name in usual and name in plausible)
        ]
        if not (labels or usual or mistakes):
            labels = plausible
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
    """Return the values that are there, lists also of a text that holds one; none of a column of
    objects or images.
    """
    inner = feature.feature if isinstance(feature, List) else feature
    if not isinstance(inner, Value | ClassLabel):
        return []
    values = (value for value in rows[name][:] if value is not None and value != "")
    return [value if (found := list_in(value)) is None else found for value in values]


def _lists(values: list[Any]) -> list[list[Any]]:
    """Return those values that are lists of labels or numbers."""
    lists = [value for value in values if isinstance(value, list)]
    inner = {type(each) for each in itertools.chain(*lists)}
    return lists if inner <= {str, int, float, bool} else []


def _are_texts(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    words = np.mean([len(value.split()) for value in values])
    return bool(words >= _FEWEST_WORDS) and len(set(values)) > len(values) / 2


def _are_labels(values: list[Any]) -> bool:
    """Return whether a few values, or values in lists, occur again and again."""
    if any(isinstance(value, list) for value in values):
        if len(_lists(values)) < len(values):
            return False
        values = [*itertools.chain(*values)]
    if 2 * sum(map(_is_date, values)) > len(values):
        return False
    distinct = len(set(values))
    fractions = any(isinstance(value, float) and not value.is_integer() for value in values)
    return not fractions and 2 <= distinct <= min(_MOST_CLASSES, len(values) // 4)


def _may_be_labels(values: list[Any]) -> bool:
    """Return whether values are lists, numbers or short words, and none of a date or of a row."""
    if any(isinstance(value, list) for value in values):
        inner = [*itertools.chain(*_lists(values))]
        recur = any(isinstance(each, float) for each in inner) or len(set(inner)) <= len(inner) / 2
        return bool(inner) and 2 * len(_lists(values)) > len(values) and recur
    numbers = [each for each in map(number, values) if each is not None]
    if 2 * len(numbers) > len(values):
        is_fraction = any(not each.is_integer() for each in numbers)
        return is_fraction or len(set(numbers)) < len(numbers)
    words = [value for value in values if isinstance(value, str) and not _is_date(value)]
    short = [value for value in words if len(value.split()) < _FEWEST_WORDS]
    return 2 * len(short) > len(values) and len(set(values)) <= len(values) / 2


def _is_date(value: Any) -> bool:
    """Return whether a value is a date, a time, or the text of one."""
    if isinstance(value, str):
        return _DATE.fullmatch(value) is not None
    return isinstance(value, date | time)


def _example(rows: Dataset, name: str) -> str:
    shown = next((repr(value) for value in rows[name] if value not in (None, "")), "no value")
    return shown if len(shown) <= _LONGEST_EXAMPLE else f"{shown[:_LONGEST_EXAMPLE]}…"
