"""Labels that are numbers: one or several a row, and the order that numbers give to names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, List, Value

from finetune.data import arrow
from finetune.data.label_columns import Encoded, LabelColumn, LabelOptions, list_names, parse_list
from finetune.errors import Report


def parse_number(value: Any) -> float | None:
    """Return a value that is a number, or the text of one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, str) and "_" in value:  # Python reads 1_000
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def natural_key(name: str) -> tuple[bool, float, str]:
    """Return a key that sorts names: numbers first, as numbers."""
    value = parse_number(name)
    if value is None or not math.isfinite(value):
        return True, 0.0, name
    return False, value, name


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names of classes are finite numbers."""
    return not any(is_word for is_word, _, _ in map(natural_key, names))


def have_order(names: Sequence[str], ordered: Sequence[str]) -> bool:
    """Return whether the order of classes is known: all are in ``ordered``, or numbers ascend."""
    ascend = are_numbers(names) and list(names) == sorted(names, key=natural_key)
    return set(names) <= set(ordered) or ascend


def encode_numbers(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> Encoded:
    """Return the labels as float32: a number a row, or a list of as many as there are columns.

    A single column may hold lists of numbers, all of one length.

    Args:
        columns: The columns of labels of each split.
        options: How labels are written.
        report: Gets an error for each column with other values, or a warning if rows with such
            values are left out.

    Raises:
        UserError: If there are other values, unless such rows are left out.
    """
    if options.renames:
        report.fail("--label_map: the labels are numbers, which have no other names")
    first = next(iter(columns["train"][0].values), None)
    width = len(parse_list(first) or ()) if len(options.columns) == 1 else 0
    is_list = width > 0 or len(options.columns) > 1
    count = max(width, len(options.columns))
    feature: Any = List(Value("float32"), length=count) if is_list else Value("float32")
    labels = {}
    for split, group in columns.items():
        parsed = [_parse_column(column, width, split, options, report) for column in group]
        numbers = np.concatenate(parsed, axis=1)
        is_missing = np.isnan(numbers).any(axis=1)
        flat = pa.array(numbers.ravel(), mask=None if is_list else is_missing)
        labels[split] = flat
        if is_list:
            mask = pa.array(is_missing)
            labels[split] = pa.FixedSizeListArray.from_arrays(flat, count, mask=mask)
    if not options.drop_invalid:
        report.raise_errors()
    return Encoded(feature, labels)


def _parse_column(
    column: LabelColumn, width: int, split: str, options: LabelOptions, report: Report
) -> np.ndarray:
    """Return the numbers of a column as float32, NaN where there is none, and report others.

    Returns:
        Shape ``(rows, width)``; ``(rows, 1)`` if the width is 0, where cells are no lists.
    """
    parsed = np.full((len(column.values) + 1, width or 1), np.nan)  # the last one: missing
    for place, value in enumerate(column.values):
        cells = parse_list(value) if width else [value]
        if cells is not None and len(cells) == parsed.shape[1]:
            numbers = [parse_number(cell) for cell in cells]
            parsed[place] = [np.nan if number is None else number for number in numbers]
    with np.errstate(over="ignore"):
        rounded = parsed.astype(np.float32)
    rounded[~np.isfinite(rounded)] = np.nan
    is_invalid = np.isnan(rounded[:-1]).any(axis=1)
    if is_invalid.any():
        invalid = np.flatnonzero(np.append(is_invalid, False)[column.codes])
        values = [str(column.values[place]) for place in np.flatnonzero(is_invalid).tolist()]
        message = (
            f"{len(invalid):,} of {len(column.codes):,} {split} rows with a value that is not a "
            f"finite number in '{column.name}' ({list_names(values)})"
        )
        details: dict[str, Any] = {"split": split, "rows": column.numbers[invalid].tolist()}
        if options.drop_invalid:
            report.warning(f"dropped {message}", name="dropped_rows", **details)
        else:
            fix = "expected numbers with a decimal point; --drop_invalid leaves these rows out; "
            fix += "words are labels of --task single_label"
            report.error(message, fix=fix, **details)
    return np.asarray(rounded[column.codes])


def check_targets(rows: Dataset, split: str, names: Sequence[str], report: Report) -> None:
    """Report numbers that are the same in every row: nothing can be learned or measured of them.

    Args:
        rows: With numbers as ``label``; rows with classes are left alone.
        split: Of these rows: an error for training, else a warning.
        names: Of the targets.
        report: Where they are added.
    """
    stored = arrow.column(rows, "label").combine_chunks()
    is_list = pa.types.is_fixed_size_list(stored.type)
    if not (is_list or pa.types.is_floating(stored.type)):
        return
    numbers = (stored.flatten() if is_list else stored).to_numpy(zero_copy_only=False)
    for place, target in enumerate(numbers.reshape(len(stored), -1).T):
        if len(target) < 2 or target.min() < target.max():
            continue
        name = names[place] if len(names) > place else f"target {place + 1}"
        message = f"'{name}' is {target[0]:g} in all {len(target):,} {split} rows"
        if split == "train":
            report.error(message, fix="expected numbers that differ, also in float32")
        else:
            report.warning(message, fix=f"if they are hidden, --dataset_splits {split}=none")
