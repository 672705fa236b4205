"""Columns of numbers as the label of each row, whatever they are stored as; what is no finite
number is refused with its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, List, Value

from finetune.data import ROW, arrow
from finetune.data.cells import about_comma, list_in
from finetune.data.labels import Places, listed
from finetune.data.numeric_names import number
from finetune.data.targets import class_names
from finetune.errors import UserError

#: The share of a standard deviation that the rounding to float32 may amount to.
_MOST_ROUNDED = 1e-3
#: Standard deviations from the mean beyond which a single row decides a squared error.
_FARTHEST = 20
#: What stands for a label that a benchmark keeps to itself.
_HIDDEN = -1


def encoded(
    dataset: DatasetDict,
    columns: Sequence[str],
    called: Mapping[str, str] | None = None,
    *,
    drop: bool,
    note: Callable[[str], object],
    places: Places,
) -> DatasetDict:
    """Return ``dataset`` with the numbers of ``columns`` as its ``label``, and without these.

    A column ``label`` that is none of them is dropped.

    Args:
        dataset: Splits that have the columns: of integers, floating-point numbers, or texts that
            are such.
        columns: One for ``Value("float32")``, several for a ``List`` of as many. A single column
            may hold lists of numbers itself, or texts that are such, all of one length.
        called: What a user calls these columns, if not that.
        drop: Whether to leave rows out that lack a finite number, instead of refusing them.
        note: Called with sentences about rows left out and about numbers that are hard to learn.
        places: Returns the positions of rows of a split, by their row number.

    Raises:
        UserError: if there are other values than finite numbers and ``drop`` is false; one line
            for each column and kind of value, with how many there are and where. Also if
            different numbers of training are one and the same in float32, or held-out ones all -1.
    """
    names = [(called or {}).get(each, each) for each in columns]
    mistakes, merged = list[str](), list[str]()
    kept, width = {}, _width(dataset, columns)
    exact: dict[str, np.ndarray] = {}
    for split, rows in dataset.items():
        parsed = []
        for column, shown in zip(columns, names, strict=True):
            if not width and (stored := _stored(rows, column)) is not None:
                parsed.append(stored)
                continue
            for values in _single(rows[column][:], width):
                read, found = _parsed(values, rows, split, shown, places)
                parsed.append(read)
                mistakes += [each for each in found if each not in mistakes]
        stacked = np.stack(parsed, axis=1)
        valid = np.isfinite(stacked).all(axis=1)
        others = [each for each in rows.column_names if each not in {*columns, "label"}]
        whole = rows.select_columns(others)
        whole = whole if valid.all() else whole.select(np.flatnonzero(valid))
        is_list = len(columns) > 1 or width > 0
        if split == "train":
            merged = _merged(stacked[valid], names)
        exact[split] = stacked[valid]
        kept[split] = _with_numbers(whole, stacked[valid], is_list=is_list)
    if mistakes and not drop:
        advice = "--drop_invalid leaves them out"
        if not all(map(len, kept.values())):
            advice = "is it the right column? words are labels of --task single_label"
        raise UserError(*(f"{each}; {advice}" for each in mistakes))
    if merged := [*merged, *_hidden(exact)]:
        raise UserError(*merged)
    for each in mistakes:
        note(f"dropped {each}")
    return DatasetDict(kept)


def _hidden(exact: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line for each held-out split whose labels are all -1, where no training row has a
    negative one.
    """
    if (exact["train"] < 0).any():
        return []
    return [
        f"all {len(labels):,} {split} rows have the label {_HIDDEN}, and no training row has one "
        f"below 0; if its labels are hidden, --dataset_splits {split}=none"
        for split, labels in exact.items()
        if len(labels) > 1 and (labels == _HIDDEN).all()
    ]


def _merged(exact: np.ndarray, columns: Sequence[str]) -> list[str]:
    """Return a line for each column of different numbers that are one and the same in float32."""
    found = []
    for place, column in enumerate(exact.T if len(exact) else ()):
        low, high = float(column.min()), float(column.max())
        if low < high and np.float32(low) == np.float32(high):
            found.append(
                f"'{columns[place % len(columns)]}' holds numbers from {low!r} "
                f"to {high!r}, all the same in float32: subtract a constant from them, or scale "
                "them"
            )
    return found


def remarks(rows: Dataset, names: Sequence[str]) -> list[str]:
    """Return sentences about numbers of training that are hard to learn, with advice.

    Args:
        rows: Of training; if their ``label`` is no number, there is nothing to say.
        names: Of the targets, one for each number of a row where they have names.

    Raises:
        UserError: if a target has the same number in every row, or nearly so.
    """
    if class_names(rows):
        return []
    stored = arrow.column(rows, "label").combine_chunks()
    values = stored.flatten() if pa.types.is_fixed_size_list(stored.type) else stored
    if arrow.is_number(values.type) and not values.null_count:
        exact = values.to_numpy().astype(np.float64)
    else:
        exact = np.asarray(rows["label"][:], dtype=np.float64)
    exact = exact.reshape(len(stored), -1)
    if len(names) != exact.shape[1]:
        names = [f"target {each + 1}" for each in range(exact.shape[1])]
    if constant := [
        f"'{name}' is {column[0]:g} in all {len(column):,} training rows: expected numbers that "
        "differ"
        for name, column in zip(names, exact.T, strict=True)
        if not len(column) or column.min() == column.max()
    ]:
        raise UserError(*constant)
    found = []
    for name, column in zip(names, exact.T, strict=True):
        mean, deviation = column.mean(), column.std()
        if deviation < np.finfo(np.float32).tiny:
            raise UserError(
                f"'{name}' is {column.min():g} to {column.max():g}, with a standard deviation that "
                "vanishes in float32: multiply it by a constant"
            )
        step = float(np.spacing(np.float32(np.abs(column).max())))
        if step > _MOST_ROUNDED * deviation:
            found.append(
                f"'{name}' has a standard deviation of {deviation:.3g} around {mean:.6g}, where "
                f"float32 knows multiples of {step:.2g} only: subtract a constant from it"
            )
        farthest = np.abs(column - mean).max() / deviation
        if farthest > _FARTHEST:
            found.append(
                f"'{name}' has values up to {farthest:.0f} standard deviations from its mean, "
                "which then decide the loss: consider its logarithm, or --loss_function huber"
            )
    return found


def _width(dataset: DatasetDict, columns: Sequence[str]) -> int:
    """Return the length of the first list in a single column of lists; 0 if it holds none."""
    there = (each for each in dataset["train"][columns[0]] if not _is_missing(each))
    found = list_in(next(there, None)) if len(columns) == 1 else None
    return 0 if found is None else max(1, len(found))


def _stored(rows: Dataset, column: str) -> np.ndarray | None:
    """Return a column of numbers as it is stored, float64, shape ``(rows,)``; None if some are not
    finite in float32, or it holds other values.
    """
    stored = arrow.column(rows, column)
    if stored.null_count or not arrow.is_number(stored.type):
        return None
    found = stored.to_numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        return found if np.isfinite(found.astype(np.float32)).all() else None


def _single(values: list[Any], width: int) -> list[list[Any]]:
    """Return the columns of a column of lists, or it alone; a list of another length, or a value
    that is no list, is taken for one that is no number.
    """
    if not width:
        return [values]
    lists = [list_in(each) for each in values]
    there = [each if each is not None and len(each) == width else None for each in lists]
    others = [own if list_in(own) is not None or _is_missing(own) else [own] for own in values]
    return [
        [each[place] if each is not None else own for each, own in zip(there, others, strict=True)]
        for place in range(width)
    ]


def _parsed(
    values: list[Any], rows: Dataset, split: str, column: str, places: Places
) -> tuple[np.ndarray, list[str]]:
    """Return the numbers of a column, NaN where there is no finite one, and what is wrong with it.

    Args:
        values: Of the column.
        rows: Of the split.
        split: Its name.
        column: What the user calls it.
        places: See :func:`encoded`.
    """
    parsed = [number(value) for value in values]
    missing = [row for row, value in enumerate(values) if _is_missing(value)]
    wrong = sorted({row for row, each in enumerate(parsed) if each is None} - set(missing))
    with np.errstate(over="ignore"):
        numbers = np.array([math.nan if each is None else each for each in parsed])
        infinite = sorted(set(np.flatnonzero(~np.isfinite(numbers.astype(np.float32)))))
    numbers[infinite] = math.nan
    infinite = sorted(set(infinite) - set(missing) - set(wrong))
    mistakes = []
    for bad, what in (
        (missing, "no number"),
        (infinite, "a number that is not finite in float32"),
        (wrong, "a value that is no number"),
    ):
        if bad:
            some = [] if bad is missing else list(dict.fromkeys(str(values[row]) for row in bad))
            about = next(filter(None, map(about_comma, some)), "")
            such = f" ({listed(some)}{about and '; '}{about})" if some else ""
            numbered = rows.select(bad)[ROW][:] if ROW in rows.column_names else bad
            where = places(split, [int(each) for each in numbered])
            mistakes.append(
                f"{len(bad):,} of {len(rows):,} {split} rows with {what} in '{column}'{such}: "
                f"{where}"
            )
    return numbers, mistakes


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _with_numbers(rows: Dataset, values: np.ndarray, *, is_list: bool) -> Dataset:
    """Return ``rows`` with ``values``, shape ``(rows, k)``, as ``label``: a list, or a number."""
    number = Value("float32")
    feature = List(number, length=values.shape[1]) if is_list else number
    exact = pa.array(values.astype(np.float32).ravel())
    column = pa.FixedSizeListArray.from_arrays(exact, values.shape[1]) if is_list else exact
    return arrow.with_column(rows, "label", column, feature)
