"""Read label columns, and encode them as class ids or numbers. Classes have a deterministic
order.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import targets
from finetune.data.comma_list import split_pairs
from finetune.errors import Findings, UserError

#: Below three numbers with a point, so many without one are needed to take it for a separator.
_MIN_WHOLE_NUMBERS = 20
_ADJACENT_STRINGS = re.compile(r"""['"]\s+['"]""")
#: The values of a cell of ``--label_columns``, in lower case.
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: The labels that are expected, for messages; format it with a ``separator``.
EXPECTED = (
    "expected labels of one kind: classes, one per row, are --task single_label; several per row "
    "are --task multi_label, as a JSON list, with --label_separator '{separator}' or in "
    "--label_columns of 0 and 1; numbers with a decimal point are --task regression"
)


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How the labels of a data set are written.

    Attributes:
        columns: The names of the label columns.
        task: ``single_label``, ``ordinal``, ``multi_label``, ``regression`` or ``auto``.
        names: The classes in the order of the recipe or of ``--label_order``; may be empty.
        is_ordered: Whether ``names`` are from ``--label_order``.
        renames: The new names of labels, by their names in the data (``--label_map``).
        separator: The separator of labels in a cell; None if a cell is one label or a list.
        drop_invalid: Whether rows with an invalid label are left out; otherwise they are errors.
    """

    columns: Sequence[str]
    task: str
    names: Sequence[str]
    is_ordered: bool = False
    renames: Mapping[str, str]
    separator: str | None = None
    drop_invalid: bool


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A label column of a split, before it is encoded.

    Attributes:
        name: The name of the column.
        values: The unique values in the order of their first rows; for a ``ClassLabel``, its names
            instead of its ids.
        codes: The index in ``values`` of each row's value, int64, shape ``(rows,)``; -1 if the
            label is missing.
        rows: The rows of the split.
        classes: The names of a ``ClassLabel`` in their order; otherwise empty.
    """

    name: str
    values: Sequence[Any]
    codes: np.ndarray
    rows: Dataset
    classes: Sequence[str]

    def first_row(self, place: int) -> list[int]:
        """Return the source row number of the first row with ``values[place]``, in a list."""
        return [int(targets.source_rows(self.rows)[np.argmax(self.codes == place)])]

    def only(self, valid: np.ndarray) -> LabelColumn:
        """Return the column with missing labels where ``valid`` is False."""
        codes = np.where(valid, self.codes, -1)
        places = np.unique(codes[codes >= 0])
        codes = np.where(codes < 0, -1, np.searchsorted(places, codes))
        return replace(self, values=[self.values[place] for place in places.tolist()], codes=codes)


def read_label_column(rows: Dataset, name: str) -> LabelColumn:
    """Return a label column.

    A label is missing if it is null, NaN or blank, a ``ClassLabel`` id without a name, such as -1,
    or a list that contains a missing label.
    """
    classes = targets.class_names(rows, name)
    cells = rows[name][:]
    keys = np.array(list(map(repr, cells)), dtype=object)  # 1, True and "1" are different labels
    codes = pd.factorize(keys)[0]
    values = [cells[row] for row in np.unique(codes, return_index=True)[1].tolist()]
    if classes:
        names = dict(enumerate(classes)).get
        values = [list(map(names, v)) if isinstance(v, list) else names(v) for v in values]
    are_labels = []
    for value in values:
        if isinstance(value, list):  # an empty one is valid: a row without any label
            are_labels.append(None not in value)
        else:
            are_labels.append(not pd.isna(value) and str(value).strip() != "")
    column = LabelColumn(name=name, values=values, codes=codes, rows=rows, classes=classes)
    return column.only(np.array(are_labels, dtype=bool)[codes])


def parse_list(cell: Any) -> list[Any] | None:
    """Return a cell as a list: a list itself, or text in JSON or Python syntax; otherwise None.

    Adjacent strings, as NumPy prints arrays, are not a list: Python would join them into one.
    """
    if isinstance(cell, list):
        return cell
    if not isinstance(cell, str) or not cell.strip().startswith("["):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return list(json.loads(cell))
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        parsed = ast.literal_eval(cell.strip())
        if isinstance(parsed, list) and not _ADJACENT_STRINGS.search(cell):
            return parsed
    return None


def parse_number(value: Any) -> float | None:
    """Return a number, or the text of a number, as a float; None for other values."""
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_000
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # Overflow: a huge integer
        return None


def find_thousands(values: Iterable[Any]) -> tuple[str, str] | None:
    """Return two texts of numbers, such as ``796`` and ``1.277``, if the point is likely to
    separate thousands: three digits follow each point, and the numbers without one are below 1000.
    Fewer than three numbers with a point need many without.
    """
    grouped, ungrouped = set(), set()
    for value in values:
        if not isinstance(value, str):
            continue
        if re.fullmatch(r"\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*", value):
            grouped.add(value)
        elif re.fullmatch(r"\s*[-+]?\d{1,3}\s*", value):
            ungrouped.add(value)
        else:
            return None
    if not grouped or not ungrouped or (len(grouped) < 3 and len(ungrouped) < _MIN_WHOLE_NUMBERS):
        return None
    return min(ungrouped), min(grouped)


def natural_key(name: str) -> tuple[bool, float, str]:
    """Return a sort key for names: numbers first, by value, then words."""
    value = parse_number(name)
    if value is None or not math.isfinite(value):
        return True, 0.0, name
    return False, value, name


def parse_label_map(text: str | None) -> dict[str, str]:
    """Return the value of ``--label_map`` as a dict from label to new name.

    Raises:
        UserError: If the value is not ``LABEL=NAME,LABEL=NAME`` with each label once.
    """
    pairs = split_pairs(text or "")
    if not all(label and name for label, name in pairs) or len(dict(pairs)) < len(pairs):
        raise UserError(f"--label_map {text}: expected LABEL=NAME,LABEL=NAME, each label once")
    return dict(pairs)


def list_names(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and how many more there are, as text."""
    rest = ""
    if len(names) > 5:
        rest = f" and {len(names) - 5} more"
    return ", ".join(f"'{name}'" for name in names[:5]) + rest


def _with_labels(dataset: DatasetDict, labels: Mapping[str, pa.Array], feature: Any) -> DatasetDict:
    """Return rows with the column ``label``, without those whose label is null."""
    splits = DatasetDict()
    for split, rows in dataset.items():
        splits[split] = rows.add_column("label", labels[split], feature=feature)
        if labels[split].null_count:
            splits[split] = splits[split].select(np.flatnonzero(labels[split].is_valid()))
    return splits


def parse_truth(value: Any) -> bool | None:
    """Return a cell of ``--label_columns``, such as 0, ``yes`` or True, as a bool; else None."""
    number = parse_number(value)
    return _TRUTH.get(str(value).strip().lower() if number is None else f"{number:g}")


def looks_printed(value: Any) -> bool:
    """Return whether a text looks like a printed collection, e.g. ``('a', 'b')``."""
    return bool(re.fullmatch(r"""\s*\w*[\[({].*['",].*[\])}]\s*""", str(value)))


# ---- classes -------------------------------------------------------------------------------------


def encode_names(
    dataset: DatasetDict,
    columns: Mapping[str, Sequence[LabelColumn]],
    options: LabelOptions,
    report: Findings,
) -> DatasetDict:
    """Return rows with labels as class ids: one id per row, or a list of ids for ``multi_label``.

    Class names are kept as written: ``00``, ``NA``, `` good``; the float 1.0 is called ``1``. If
    ``options.names`` has all classes, they take its order. Otherwise they have the order of the
    ``ClassLabel`` or of ``--label_columns``; other classes follow, numbers by value, then words.
    An empty list, or a row of zeros, is a row without labels.

    Args:
        dataset: The splits of the source, to which the column ``label`` is added.
        columns: The label columns of each split.
        options: How the labels are written.
        report: Gets an error for each invalid column, a warning if no label has the separator, and
            the labels in ``--label_map`` that the data does not have.

    Raises:
        UserError: With the first invalid value of each column.
    """
    by_name = {}
    for split, group in columns.items():
        if len(group) > 1:
            by_name[split] = _read_bits(group, split, report)
        else:
            by_name[split] = _read_names(group[0], split, options, report)
    report.raise_errors()
    present: set[str] = set()
    for column in by_name.values():
        present.update(*column.values)
    declared = by_name["train"].classes
    renamed = {name: options.renames.get(name, name) for name in (*declared, *present)}
    occurring = {renamed[name] for name in present}
    ordered = list(dict.fromkeys(renamed[name] for name in declared))
    if not occurring <= set(options.names):
        ordered += sorted(occurring - set(ordered), key=natural_key)
    elif options.task == "multi_label" or set(ordered) == set(options.names):
        ordered = list(options.names)
    else:
        ordered = [name for name in options.names if name in occurring]
    numbers = {name: ordered.index(renamed[name]) for name in present}
    feature: Any = ClassLabel(names=ordered)
    kind = pa.int64()
    if options.task == "multi_label":
        feature, kind = List(feature), pa.list_(kind)
    labels = {}
    for split, column in by_name.items():
        cells: list[Any] = []
        for cell in column.values:
            ids = sorted({numbers[name] for name in cell})
            cells += [ids] if options.task == "multi_label" else ids
        labels[split] = pa.array(cells, kind).take(pa.array(column.codes, mask=column.codes < 0))
    report.facts.unmapped_labels = sorted(options.renames.keys() - renamed.keys())
    return _with_labels(dataset, labels, feature)


def _read_bits(group: Sequence[LabelColumn], split: str, report: Findings) -> LabelColumn:
    """Return columns of 0 and 1 as one column whose values are lists of the names of the ones."""
    bits = []
    for column in group:
        truths = list(map(parse_truth, column.values))
        if None in truths:
            place = truths.index(None)
            report.error(
                f"--label_columns: '{column.name}' holds '{column.values[place]}'",
                split=split,
                rows=column.first_row(place),
                fix="expected 0 and 1",
            )
        bits.append(np.array([*map(bool, truths), False])[column.codes])
    sets, codes = np.unique(np.stack(bits, axis=1), axis=0, return_inverse=True)
    names = [column.name for column in group]
    values = [list(itertools.compress(names, row)) for row in sets.tolist()]
    codes = np.where(np.all([column.codes >= 0 for column in group], axis=0), codes, -1)
    return replace(group[0], values=values, codes=codes, classes=names)


def _read_names(
    column: LabelColumn, split: str, options: LabelOptions, report: Findings
) -> LabelColumn:
    """Return a column whose values are lists of class names; report the first invalid value, and
    a separator that no label of the training rows has.

    A multi-label cell is a list, or a text with a separator that is not within quotation marks. Its
    labels are words or whole numbers. A cell with 0 or 1 twice is invalid: it is an indicator
    vector, not a list of names.
    """
    separator = options.separator
    texts = map(str, column.values)
    if separator and split == "train" and not any(separator in text for text in texts):
        report.warning(
            f"--label_separator {separator!r}: no label of the training rows has it, such as "
            f"{column.values[0]!r}"
        )
    names = []
    for place, value in enumerate(column.values):
        labels = parse_list(value)
        if labels is None and separator and not looks_printed(value):
            parts = list(map(str.strip, str(value).split(separator)))
            if not any(part.startswith('"') and part.count('"') == 1 for part in parts):
                labels = parts
        cell = None
        if options.task == "multi_label":
            cell = _set_of_names(labels)
        elif isinstance(value, list) and len(value) == 1:  # as doccano writes one class
            cell = _set_of_names(value)
        elif labels is None and not isinstance(value, dict):
            cell = [_class_name(value)]
        if cell is None:
            message = f"--label_column: '{column.name}' holds {value!r}"
            rows = column.first_row(place)
            report.error(message, split=split, rows=rows, fix=EXPECTED.format(separator=";"))
            break
        names.append(cell)
    return replace(column, values=names)


def _set_of_names(labels: Sequence[Any] | None) -> list[str] | None:
    """Return the class names of a multi-label cell; None if it is invalid."""
    names = []
    for label in labels or ():
        is_whole = isinstance(label, int | float) and label % 1 == 0
        if not (is_whole or isinstance(label, str)):
            return None
        names.append(_class_name(label))
    is_indicator = len(set(names)) < len(names) and set(names) <= {"0", "1", "False", "True"}
    if labels is None or is_indicator:
        return None
    return list(filter(str.strip, names))


def _class_name(value: Any) -> str:  # "1" for 1.0
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def match_names(
    rows: Dataset, names: Sequence[str], split: str, report: Findings, fix: str
) -> dict[int, int]:
    """Return for each class id that rows have the place of its name in those of a model.

    Args:
        rows: The rows, with encoded labels.
        names: The classes of the model.
        split: The name of the split, for the message.
        report: Gets the error.
        fix: What to type, for the message.

    Raises:
        UserError: If the data has labels that the model does not know.
    """
    source = targets.class_names(rows)
    numbers = {n: names.index(source[n]) for n in targets.counts(rows) if source[n] in names}
    if unknown := targets.counts(rows).keys() - numbers.keys():
        listing = list_names(sorted((source[number] for number in unknown), key=natural_key))
        report.fail(
            f"the data has labels that the model does not know: {listing} "
            f"(it knows: {list_names(names)})",
            split=split,
            rows=targets.first_row(rows, unknown),
            fix=fix,
        )
    return numbers


# ---- numbers -------------------------------------------------------------------------------------


def encode_numbers(
    dataset: DatasetDict,
    columns: Mapping[str, Sequence[LabelColumn]],
    options: LabelOptions,
    report: Findings,
) -> DatasetDict:
    """Return rows with labels as float32: one number per row, or a list with one per column.

    Args:
        dataset: The splits of the source, to which the column ``label`` is added.
        columns: The label columns of each split.
        options: How the labels are written.
        report: Gets an error for each invalid column.

    Raises:
        UserError: If a value is not a finite number; with ``drop_invalid`` this is a warning.
    """
    if options.renames:
        report.fail("--label_map: the labels are numbers, which cannot be renamed")
    count = len(options.columns)
    labels = {}
    for split, group in columns.items():
        parsed = []
        for column in group:
            if thousands := find_thousands(column.values):
                ungrouped, grouped = thousands
                digits = grouped.replace(".", "")
                report.error(
                    f"'{column.name}' holds {grouped!r} beside {ungrouped!r}: the point may "
                    f"separate thousands, as in {digits}",
                    split=split,
                    rows=column.first_row(column.values.index(grouped)),
                    fix=f"expected numbers written alike, {digits} and {ungrouped}, or {grouped} "
                    f"and {ungrouped}.000",
                )
            values = np.array([*map(parse_number, column.values), None], dtype=float)
            values[np.abs(values) > np.finfo(np.float32).max] = np.nan
            numbers = values.astype(np.float32)[column.codes]  # code -1: the last value, NaN
            parsed.append(numbers)
            invalid = np.flatnonzero(np.isnan(numbers) & (column.codes >= 0))
            if len(invalid):
                example = column.values[column.codes[invalid[0]]]
                targets.refuse_or_drop(
                    report,
                    f"with no finite number in '{column.name}', such as '{example}'",
                    f"{EXPECTED.format(separator=';')}; --drop_invalid leaves these rows out",
                    invalid,
                    column.rows,
                    split,
                    drop=options.drop_invalid,
                )
        matrix = np.stack(parsed, axis=1)
        mask = pa.array(np.isnan(matrix).any(axis=1))
        lists = pa.FixedSizeListArray.from_arrays(matrix.ravel(), count, mask=mask)
        labels[split] = lists if count > 1 else pa.array(parsed[0], from_pandas=True)
    if not options.drop_invalid:
        report.raise_errors()
    feature: Any = Value("float32")
    if count > 1:
        feature = List(feature, length=count)
    return _with_labels(dataset, labels, feature)
