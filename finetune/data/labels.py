"""Labels as a task has them: classes with names in a deterministic order, or numbers."""

from __future__ import annotations

import itertools
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import targets
from finetune.data.comma_list import join_pairs
from finetune.data.label_columns import (
    LabelColumn,
    LabelOptions,
    are_numbers,
    have_order,
    list_names,
    natural_key,
    parse_list,
    parse_number,
)
from finetune.data.row_findings import refuse_or_drop
from finetune.errors import Report, UserError

#: What a cell of a column of 0 and 1 may be.
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_EXPECTED = (
    "expected labels of one kind: classes, one per row, are --task single_label; several per row "
    "are --task multi_label, as a JSON list, with --label_separator ';' or in --label_columns of "
    "0 and 1; numbers with a decimal point are --task regression"
)


@dataclass(frozen=True)
class Encoded:
    """The labels of all splits as a task has them.

    Attributes:
        feature: Of the column ``label``: one of those in :mod:`finetune.data.targets`.
        labels: Of each split, null in rows that are left out.
        unmapped: Labels in ``--label_map`` that do not occur.
    """

    feature: Any
    labels: Mapping[str, pa.Array]
    unmapped: Sequence[str] = ()

    def added_to(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``label``, without the rows that are left out."""
        splits = DatasetDict()
        for split, rows in dataset.items():
            labels = self.labels[split]
            splits[split] = rows.add_column("label", labels, feature=self.feature)
            if labels.null_count:
                splits[split] = splits[split].select(np.flatnonzero(labels.is_valid()))
        return splits


def parse_truth(value: Any) -> bool | None:
    """Return what a cell of a column of 0 and 1 says; None of other values."""
    number = parse_number(value)
    return _TRUTH.get(str(value).strip().lower() if number is None else f"{number:g}")


def looks_printed(value: Any) -> bool:
    """Return whether a text looks like several values as a program prints them: ``('a', 'b')``."""
    return bool(re.fullmatch(r"""\s*\w*[\[({].*['",].*[\])}]\s*""", str(value)))


# ---- classes -------------------------------------------------------------------------------------


def encode_names(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> Encoded:
    """Return labels with names as numbers of classes: one a row, or a list for ``multi_label``.

    Classes are called as they are written: ``00``, ``NA``, `` good``; a number by its value, the
    float 1.0 ``1``. If all are among the names of the options, they take that order; otherwise that
    of the source or of the columns if it has one, then numbers as numbers, then words. An empty
    list, or a row of zeros, is a row that has none of the labels.

    Args:
        columns: The columns of labels of each split: one, or several of 0 and 1.
        options: How labels are written.
        report: Gets an error for the first value of a column that cannot be read; it is raised.
    """
    named = {
        split: _read_bits(group, split, report)
        if len(group) > 1
        else _read_names(group[0], split, options, report)
        for split, group in columns.items()
    }
    report.raise_errors()
    is_set, declared = options.task == "multi_label", named["train"].classes
    present = {name for column in named.values() for cell in column.values for name in cell}
    renamed = {name: options.renames.get(name, name) for name in (*declared, *present)}
    occurring = {renamed[name] for name in present}
    ordered = [*dict.fromkeys(renamed[name] for name in declared)]
    if occurring <= {*options.names}:
        is_complete = is_set or {*ordered} == {*options.names}
        ordered = [name for name in options.names if is_complete or name in occurring]
    else:
        ordered += sorted(occurring - {*ordered}, key=natural_key)
    if options.task == "ordinal" and not have_order(ordered, options.names):
        ordered = sorted(ordered, key=natural_key)  # if words, the order is asked for
    numbers = {name: ordered.index(renamed[name]) for name in present}
    labels = {}
    for split, column in named.items():
        cells = [sorted({numbers[name] for name in cell}) for cell in column.values]
        kind = pa.list_(pa.int64()) if is_set else pa.int64()
        values = pa.array(cells if is_set else [*itertools.chain(*cells)], kind)
        labels[split] = values.take(pa.array(column.codes, mask=column.codes < 0))
    feature: Any = ClassLabel(names=ordered)
    unmapped = sorted(options.renames.keys() - renamed.keys())
    return Encoded(List(feature) if is_set else feature, labels, unmapped)


def _read_bits(group: Sequence[LabelColumn], split: str, report: Report) -> LabelColumn:
    """Return columns of 0 and 1 as one, whose values list the names of those that are 1."""
    bits = []
    for column in group:
        truths = [parse_truth(value) for value in column.values]
        if None in truths:
            place = truths.index(None)
            message = f"--label_columns: '{column.name}' holds '{column.values[place]}'"
            rows = column.first_row(place)
            report.error(message, split=split, rows=rows, fix="expected 0 and 1")
        bits.append(np.array([*map(bool, truths), False])[column.codes])
    sets, codes = np.unique(np.stack(bits, axis=1), axis=0, return_inverse=True)
    names = [column.name for column in group]
    values = [list(itertools.compress(names, row)) for row in sets.tolist()]
    codes = np.where(np.all([column.codes >= 0 for column in group], axis=0), codes, -1)
    return replace(group[0], values=values, codes=codes, classes=names)


def _read_names(
    column: LabelColumn, split: str, options: LabelOptions, report: Report
) -> LabelColumn:
    """Return a column whose values are lists of the names of classes; report the first other.

    In a cell of several labels these are words or whole numbers. Where 0 or 1 comes twice in a
    cell, it has a place for each label rather than their names.
    """
    is_set = options.task == "multi_label"
    are_whole = options.task != "ordinal" and are_numbers([*map(str, column.values)])
    names: list[list[str]] = []
    single_names: set[str] = set()
    kinds: set[bool] = set()
    for place, value in enumerate(column.values):
        labels = parse_list(value)
        if labels is None and options.separator and not looks_printed(value):
            labels = str(value).split(options.separator)
        if is_set:
            cell = [_class_name(label).strip() for label in labels or ()]
            kinds |= {isinstance(label, str) for label in labels or ()}
            is_refused = labels is None or len(kinds) > 1 or not all(map(_is_class, labels))
            is_refused |= len({*cell}) < len(cell) and {*cell} <= {"0", "1", "False", "True"}
        else:
            cell = [_class_name(value)]
            is_refused = labels is not None or isinstance(value, dict) or cell[0] in single_names
            is_refused |= are_whole and float(value) % 1 > 0
            single_names.add(cell[0])
        if is_refused:
            message, rows = (
                f"--label_column: '{column.name}' holds {value!r}",
                column.first_row(place),
            )
            report.error(message, split=split, rows=rows, fix=_EXPECTED)
            break
        names.append([name for name in cell if name] if is_set else cell)
    return replace(column, values=names)


def _class_name(value: Any) -> str:  # of 1.0 it is "1"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_class(label: Any) -> bool:  # a word or a whole number
    return isinstance(label, str) or (isinstance(label, int | float) and label % 1 == 0)


def match_labels(rows: Dataset, names: Sequence[str], split: str, report: Report) -> Dataset:
    """Return rows of other data with the classes numbered as a model numbers its ``names``.

    Raises:
        UserError: If there are labels that the model does not know.
    """
    if not targets.are_classes(rows):
        raise UserError("the data has numbers as labels, and the model predicts classes")
    source, is_set = targets.class_names(rows), targets.is_set(rows)
    numbers = {n: names.index(source[n]) for n in targets.counts(rows) if source[n] in names}
    if unknown := targets.counts(rows).keys() - numbers.keys():
        listing = list_names(sorted((source[number] for number in unknown), key=natural_key))
        report.fail(
            f"the data has labels that the model does not know: {listing} (it knows: "
            f"{list_names(names)})",
            split=split,
            rows=targets.first_row(rows, unknown),
        )
    labels = [
        sorted(numbers[number] for number in label) if is_set else numbers[label]
        for label in targets.values(rows)
    ]
    feature: Any = ClassLabel(names=[*names])
    rows = rows.remove_columns("label")
    return rows.add_column("label", labels, feature=List(feature) if is_set else feature)


def check_names(dataset: DatasetDict, unmapped: Sequence[str], report: Report) -> None:
    """Refuse names in ``--label_map`` that no row of a training has, and warn of classes that
    differ by case, blanks or the like; none are merged.
    """
    classes = targets.class_names(dataset["train"])
    if unmapped:
        names = f"{list_names(unmapped)} in the data (labels: {list_names(classes)})"
        report.error(f"--label_map: no label {names}")
    counts: Counter[str] = Counter()
    for rows in dataset.values():
        counts.update({classes[number]: n for number, n in targets.counts(rows).items()})
    groups: dict[str, list[str]] = defaultdict(list)
    for name, _ in counts.most_common():
        words = unicodedata.normalize("NFKC", name).casefold().split()
        visible = " ".join("".join(filter(str.isprintable, word)) for word in words)
        groups[visible.lstrip("0") or "0" if visible.isdecimal() else visible].append(name)
    similar = [group for _, group in sorted(groups.items()) if len(group) > 1]
    if similar:
        # in ASCII, where a difference is not visible
        quoted = [
            [repr(n) if unicodedata.is_normalized("NFC", n) else ascii(n) for n in group]
            for group in similar
        ]
        renames = [(name, group[0].strip()) for group in similar for name in group]
        option = shlex.quote(join_pairs([pair for pair in renames if pair[0] != pair[1]]))
        report.warning(
            f"similar labels kept as separate classes: {'; '.join(map(' and '.join, quoted))}",
            "similar_labels",
            fix=f"to merge them, make them identical in the data, or --label_map {option}",
        )


# ---- numbers -------------------------------------------------------------------------------------


def encode_numbers(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> Encoded:
    """Return the labels as float32: a number a row, or a list of as many as there are columns.

    Raises:
        UserError: If there are other values, unless such rows are left out, with a warning.
    """
    if options.renames:
        report.fail("--label_map: the labels are numbers, which have no other names")
    count, labels = len(options.columns), {}
    for split, group in columns.items():
        parsed = []
        for column in group:
            values = np.array([*map(parse_number, column.values), None], dtype=float)
            with np.errstate(over="ignore"):
                numbers = values.astype(np.float32)[column.codes]  # -1 is the last one: missing
            numbers[~np.isfinite(numbers)] = np.nan
            parsed.append(numbers)
            invalid = np.flatnonzero(np.isnan(numbers) & (column.codes >= 0))
            if len(invalid):
                message = (
                    f"{len(invalid):,} of {len(numbers):,} {split} rows with a value that is not a "
                    f"finite number in '{column.name}', such as "
                    f"'{column.values[column.codes[invalid[0]]]}'"
                )
                fix = f"{_EXPECTED}; --drop_invalid leaves these rows out"
                rows = column.numbers[invalid].tolist()
                refuse_or_drop(report, message, split, rows, fix, drop=options.drop_invalid)
        matrix = np.stack(parsed, axis=1)
        mask = pa.array(np.isnan(matrix).any(axis=1))
        lists = pa.FixedSizeListArray.from_arrays(matrix.ravel(), count, mask=mask)
        labels[split] = lists if count > 1 else pa.array(parsed[0], from_pandas=True)
    if not options.drop_invalid:
        report.raise_errors()
    feature = Value("float32")
    return Encoded(feature if count == 1 else List(feature, length=count), labels)
