"""Columns of numbers as the label of each row, whatever they are stored as; what is no finite
number is refused with its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, List, Value

from finetune.data.labels import listed
from finetune.data.targets import class_names
from finetune.errors import UserError

#: Digits with a decimal comma, or with commas between thousands.
_COMMA = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
#: The share of a standard deviation that the rounding to float32 may amount to.
_MOST_ROUNDED = 1e-3
#: Standard deviations from the mean beyond which a single row decides a squared error.
_FARTHEST = 20
Places = Callable[[str, Sequence[int]], str]


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
            may hold lists of numbers itself, all of one length.
        called: What a user calls these columns, if not that.
        drop: Whether to leave rows out that lack a finite number, instead of refusing them.
        note: Called with sentences about rows left out and about numbers that are hard to learn.
        places: Returns the positions of rows of a split, by their ``id``.

    Raises:
        UserError: if there are other values than finite numbers and ``drop`` is false; one line
            for each column and kind of value, with how many there are and where.
    """
    mistakes: list[str] = []
    kept, width = {}, _width(dataset, columns)
    for split, rows in dataset.items():
        parsed = []
        for column in columns:
            shown = (called or {}).get(column, column)
            for values in _single(rows[column][:], width):
                numbers, found = _parsed(values, rows, split, shown, places)
                parsed.append(numbers)
                mistakes += [each for each in found if each not in mistakes]
        stacked = np.stack(parsed, axis=1)
        valid = np.isfinite(stacked).all(axis=1)
        others = [each for each in rows.column_names if each not in {*columns, "label"}]
        whole = rows.select_columns(others)
        whole = whole if valid.all() else whole.select(np.flatnonzero(valid))
        is_list = len(columns) > 1 or width > 0
        kept[split] = _with_numbers(whole, stacked[valid], is_list=is_list)
    if mistakes and not drop:
        hint = "; --drop_invalid leaves them out" * all(len(rows) for rows in kept.values())
        raise UserError(*(f"{each}{hint}" for each in mistakes))
    for each in mistakes:
        note(f"dropped {each}")
    return DatasetDict(kept)


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values that are there are finite numbers, as such or as text."""
    numbers = [_number(value) for value in values if not _is_missing(value)]
    return bool(numbers) and all(each is not None and math.isfinite(each) for each in numbers)


def remarks(rows: Dataset, names: Sequence[str]) -> list[str]:
    """Return sentences about numbers of training that are hard to learn, with advice.

    Args:
        rows: Of training; if their ``label`` is no number, there is nothing to say.
        names: Of the targets, where there are several.

    Raises:
        UserError: if a target has the same number in every row.
    """
    if class_names(rows):
        return []
    labels = np.asarray(rows["label"][:], dtype=np.float64)
    exact = labels.reshape(len(labels), -1)
    names = names or [f"target {each + 1}" for each in range(exact.shape[1])]
    names = names if labels.ndim == 2 else ["label"]
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
    if len(columns) > 1 or not isinstance(dataset["train"].features[columns[0]], List):
        return 0
    return max(1, len(next(iter(dataset["train"][columns[0]]), [])))


def _single(values: list[Any], width: int) -> list[list[Any]]:
    """Return the columns of a column of lists, or it alone; a list of another length is taken for a
    value that is no number.
    """
    if not width:
        return [values]
    there = [each if isinstance(each, list) and len(each) == width else None for each in values]
    return [
        [each[place] if each is not None else own for each, own in zip(there, values, strict=True)]
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
    parsed = [_number(value) for value in values]
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
            such = f" ({listed(some)}{_comma(some)})" if some else ""
            numbered = rows.select(bad)["id"][:] if "id" in rows.column_names else bad
            where = places(split, [int(each) for each in numbered])
            mistakes.append(
                f"{len(bad):,} of {len(rows):,} {split} rows with {what} in '{column}'{such}: "
                f"{where}"
            )
    return numbers, mistakes


def _comma(some: Sequence[str]) -> str:
    return "; expected a decimal point" if any(map(_COMMA.fullmatch, some)) else ""


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _number(value: Any) -> float | None:
    """Return a number, or None of what is none: a word, a truth value, a list."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value) if "_" not in str(value) else None
    except ValueError:
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _with_numbers(rows: Dataset, values: np.ndarray, *, is_list: bool) -> Dataset:
    """Return ``rows`` with ``values``, shape ``(rows, k)``, as ``label``: a list, or a number."""
    number = Value("float32")
    feature = List(number, length=values.shape[1]) if is_list else number
    if not len(rows):  # a column cannot be added to an empty selection
        features = Features({**rows.features, "label": feature})
        return Dataset.from_dict({name: [] for name in features}, features=features)
    exact = values.astype(np.float32)
    column = exact.tolist() if is_list else exact[:, 0]
    return rows.add_column("label", column, feature=feature)
