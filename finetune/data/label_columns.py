"""A column of labels as its different values and the value of each row, and how it is written."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, List

from finetune.data import targets
from finetune.data.comma_list import split_pairs
from finetune.errors import UserError

_NEIGHBOURS = re.compile(r"""['"]\s+['"]""")


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How the labels of a data set are written.

    Attributes:
        columns: Columns that hold the labels: one, or several.
        task: ``single_label``, ``ordinal``, ``multi_label``, ``regression`` or ``auto``.
        names: Classes in the order of the recipe, or of ``--label_order``; may be empty.
        is_ordered: Whether these are the classes of ``--label_order``.
        renames: New names of labels, by the labels in the data.
        separator: Between the labels in a cell; None if a cell is one label, or a list.
        drop_invalid: Whether rows whose label cannot be read are left out instead of refused.
    """

    columns: Sequence[str] = ("label",)
    task: str = "auto"
    names: Sequence[str] = ()
    is_ordered: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    drop_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """The labels of a split, as they are written in one column.

    Attributes:
        name: Of the column.
        values: The different values, in the order of their first rows; of a ``ClassLabel`` the
            names instead of the numbers.
        codes: The place in ``values`` of each row's value, int64, shape ``(rows,)``; -1 where the
            label is missing.
        numbers: The number of each row in its split of the source, shape ``(rows,)``.
        classes: The names of a ``ClassLabel`` in their order; else none.
    """

    name: str
    values: Sequence[Any]
    codes: np.ndarray
    numbers: np.ndarray
    classes: Sequence[str] = ()

    def first_row(self, place: int) -> list[int]:
        """Return the number, in the source, of the first row with a value, as a list of one."""
        return [int(self.numbers[np.argmax(self.codes == place)])]

    def only(self, valid: np.ndarray) -> LabelColumn:
        """Return the column with the labels of other than the ``valid`` rows missing."""
        codes = np.where(valid, self.codes, -1)
        places = np.unique(codes[codes >= 0])
        codes = np.where(codes < 0, -1, np.searchsorted(places, codes))
        return replace(self, values=[self.values[place] for place in places.tolist()], codes=codes)


def read_label_column(rows: Dataset, name: str) -> LabelColumn:
    """Return a column of labels.

    A label is missing if it is null, NaN or blank, a number of a ``ClassLabel`` that has no name,
    such as -1, or a list with a missing label in it.
    """
    feature = rows.features[name]
    inner = feature.feature if isinstance(feature, List) else feature
    classes = inner.names if isinstance(inner, ClassLabel) else []
    cells = rows[name][:]
    keys = np.array([*map(repr, cells)], dtype=object)  # 1, True and "1" are different labels
    codes = pd.factorize(keys)[0]
    values = [cells[row] for row in np.unique(codes, return_index=True)[1].tolist()]
    if classes:
        names = dict(enumerate(classes)).get
        values = [[*map(names, v)] if isinstance(v, list) else names(v) for v in values]
    are_labels = [  # an empty list is a row that has none of the labels
        None not in v if isinstance(v, list) else not pd.isna(v) and str(v).strip() != ""
        for v in values
    ]
    numbers = targets.source_rows(rows)
    column = LabelColumn(name=name, values=values, codes=codes, numbers=numbers, classes=classes)
    return column.only(np.array([*are_labels, False])[codes])


def parse_list(cell: Any) -> list[Any] | None:
    """Return the list that a cell is, or holds in JSON or Python syntax; None if it holds none.

    Python would join strings side by side, which NumPy writes for arrays: they are no list.
    """
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else None
    if not cell.strip().startswith("["):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return list(json.loads(cell))
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        parsed = ast.literal_eval(cell.strip())
        return parsed if isinstance(parsed, list) and not _NEIGHBOURS.search(cell) else None
    return None


def parse_number(value: Any) -> float | None:
    """Return a value that is a number, or the text of one; None for anything else."""
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_000
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def natural_key(name: str) -> tuple[bool, float, str]:
    """Return a key that sorts names: numbers first, as numbers."""
    value = parse_number(name)
    is_number = value is not None and math.isfinite(value)
    return not is_number, float(name) if is_number else 0.0, name


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names of classes are finite numbers."""
    return not any(is_word for is_word, _, _ in map(natural_key, names))


def have_order(names: Sequence[str], ordered: Sequence[str]) -> bool:
    """Return whether the order of classes is known: all are in ``ordered``, or numbers ascend."""
    ascend = are_numbers(names) and list(names) == sorted(names, key=natural_key)
    return set(names) <= set(ordered) or ascend


def parse_label_map(text: str | None) -> dict[str, str]:
    """Return the new names in ``--label_map``, by the labels that they stand for.

    Raises:
        UserError: If it is not ``LABEL=NAME,LABEL=NAME``, with each label once.
    """
    pairs = split_pairs(text or "")
    if not all(label and name for label, name in pairs) or len(dict(pairs)) < len(pairs):
        raise UserError(f"--label_map {text}: expected LABEL=NAME,LABEL=NAME, each label once")
    return dict(pairs)


def list_names(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and the number of others."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + rest
