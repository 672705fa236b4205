"""Columns of ``ClassLabel`` as the names that their numbers stand for.

What wants words, numbers or truth values must not read the number of a class: of the names ``1`` to
``5`` it is one too low, of ``yes`` and ``no`` the contrary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, List, Value

from finetune.data import arrow, labels
from finetune.errors import UserError


def classes_in(feature: Any) -> ClassLabel | None:
    """Return the ``ClassLabel`` that a feature is, or a list of; None if it is neither."""
    inner = feature.feature if isinstance(feature, List) else feature
    return inner if isinstance(inner, ClassLabel) else None


def named(
    rows: Dataset, columns: Sequence[str], called: Sequence[str], where: Callable[[int], str]
) -> Dataset:
    """Return ``rows`` with names, or lists of names, in those ``columns`` that number classes.

    Args:
        rows: With the columns.
        columns: Of labels, those of other types included, which stay as they are.
        called: What the user calls each.
        where: Returns where a row is.

    Raises:
        UserError: if a number has no name; it names the column and the first such row.
    """
    features = rows.features  # copied at each access
    for column, shown in zip(columns, called, strict=True):
        if (classes := classes_in(features[column])) is None:
            continue
        refuse_nameless(rows, column, shown, where)
        stored = arrow.column(rows, column).combine_chunks()
        words = pa.array(classes.names, pa.string())
        kind: Any = Value("string")
        if isinstance(features[column], List):
            kind = List(kind)
            ends = pa.array(_ends(stored))
            words = pa.ListArray.from_arrays(ends, words.take(stored.flatten()))
        else:
            words = words.take(stored)
        rows = arrow.with_column(rows.remove_columns(column), column, words, kind)
    return rows


def refuse_nameless(rows: Dataset, column: str, called: str, where: Callable[[int], str]) -> None:
    """Refuse numbers of classes that have no name; see :func:`named`.

    Raises:
        UserError: with the first such row.
    """
    if (classes := classes_in(rows.features[column])) is None:
        return
    stored = arrow.column(rows, column).combine_chunks()
    is_list = isinstance(rows.features[column], List)
    numbers = stored.flatten() if is_list else stored
    inside = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(classes.names)))
    if pc.all(inside).as_py() is not False:  # also None, of no rows
        return
    first = int(np.flatnonzero(~inside.fill_null(True).to_numpy(zero_copy_only=False))[0])
    row = int(np.searchsorted(_ends(stored), first, side="right")) - 1 if is_list else first
    value = numbers[first].as_py()
    raise UserError(labels.refusal_of_number(value, classes.names, called, where(row)))


def _ends(lists: pa.Array) -> np.ndarray:
    """Return where each list begins among the values of all, and where the last ends, int32."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.cumsum([0, *lengths], dtype=np.int32)
