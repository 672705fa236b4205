"""Labels with names: one class a row, or any number, encoded in a deterministic order."""

from __future__ import annotations

import itertools
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, List

from finetune.data import numbers, targets
from finetune.data.comma_list import join_pairs
from finetune.data.label_columns import (
    Encoded,
    LabelColumn,
    LabelOptions,
    list_names,
    parse_list,
    read_label_column,
)
from finetune.errors import Finding, Report, UserError, counted

#: What a cell of a column of 0 and 1 may be.
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: What is written where there is no label. In lower case none and na can be the name of a class.
_NO_CLASS = {
    *("nan", "NaN", "NAN", "NaT", "None", "null", "Null", "NULL", r"\N", "?"),
    *("n/a", "N/A", "#N/A", "NA", "<NA>"),
}
_BITS = {"0", "1", "False", "True"}
_SHOWN = 5
_EXPECTED_CLASS = (
    "expected one class per row, written in one way; several labels per row are --task "
    "multi_label, numbers to predict are --task regression"
)
_EXPECTED_SET = (
    'expected a JSON list of names, such as ["a", "b"]; labels with a sign between them are '
    "--label_separator ';', a column of 0 and 1 for each label is --label_columns, one label per "
    "row is --task single_label, numbers to predict are --task regression"
)


def class_name(value: Any) -> str:
    """Return what the class of a label is called: that of 1.0 is ``1``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parse_truth(value: Any) -> bool | None:
    """Return what a cell of a column of 0 and 1 says; None of other values."""
    number = numbers.parse_number(value)
    return _TRUTH.get(str(value).strip().lower() if number is None else f"{number:g}")


def looks_printed(value: Any) -> bool:
    """Return whether a text looks like several values as a program prints them: ``('a', 'b')``."""
    return bool(re.fullmatch(r"""\s*\w*[\[({].*['",].*[\])}]\s*""", str(value)))


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
        report: Gets an error for the first value of a column that cannot be read.

    Raises:
        UserError: If there is such a value.
    """
    named = {
        split: _merge(group, split, report)
        if len(group) > 1
        else _name_labels(group[0], split, options, report)
        for split, group in columns.items()
    }
    report.raise_errors()
    if options.task != "multi_label" and {*map(type, columns["train"][0].values)} - {str, int}:
        names = list_names([*itertools.chain(*named["train"].values)])
        report.info(f"the classes of '{options.columns[0]}' are called {names}")
    return _number_names(named, options, is_set=options.task == "multi_label")


def _merge(group: Sequence[LabelColumn], split: str, report: Report) -> LabelColumn:
    """Return columns of 0 and 1 as one, whose values list the names of those that say yes."""
    columns = []
    for column in group:
        truths = [parse_truth(value) for value in column.values]
        if None in truths:
            place = truths.index(None)
            report.error(
                f"--label_columns: '{column.name}' holds '{column.values[place]}'",
                split=split,
                rows=column.first_row(place),
                fix="expected 0 and 1",
            )
        columns.append(np.array([*map(bool, truths), False])[column.codes])
    rows, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    names = [column.name for column in group]
    values = [list(itertools.compress(names, row)) for row in rows.tolist()]
    codes = np.where(np.all([column.codes >= 0 for column in group], axis=0), codes, -1)
    return replace(group[0], values=values, codes=codes, classes=names)


def _name_labels(
    column: LabelColumn, split: str, options: LabelOptions, report: Report
) -> LabelColumn:
    """Return a column whose values are lists of the names of classes; report the first other.

    In a cell of several labels these are words or whole numbers. Where 0 or 1 comes twice in a
    cell, it has a place for each label rather than their names.
    """
    is_set, separator = options.task == "multi_label", options.separator
    are_numbers = options.task != "ordinal" and numbers.are_numbers([*map(str, column.values)])
    names: list[list[str]] = []
    seen: set[str] = set()
    kinds: set[type] = set()
    for place, value in enumerate(column.values):
        labels = parse_list(value)
        if labels is None and separator and not looks_printed(value):
            labels = str(value).split(separator)
        if is_set:
            cell = [class_name(label).strip() for label in labels or ()]
            kinds |= {*map(_kind, labels or ())}
            is_refused = labels is None or not (kinds <= {str} or kinds <= {int})
            is_refused = is_refused or (len({*cell}) < len(cell) and _BITS.issuperset(cell))
        else:
            cell = [class_name(value)]
            is_refused = labels is not None or isinstance(value, dict) or cell[0] in seen
            is_refused = is_refused or (are_numbers and float(value) % 1 > 0)
            seen.add(cell[0])
        if is_refused:
            report.error(
                f"--label_column: '{column.name}' holds {value!r}",
                split=split,
                rows=column.first_row(place),
                fix=_EXPECTED_SET if is_set else _EXPECTED_CLASS,
            )
            break
        names.append([name for name in cell if name] if is_set else cell)
    if separator and split == "train" and not any(separator in str(v) for v in column.values):
        report.warning(f"--label_separator '{separator}': no cell of '{column.name}' has it")
    return replace(column, values=names)


def _kind(label: Any) -> type:
    """Return ``str`` for a word, ``int`` for a whole number, else the type of a label."""
    return int if isinstance(label, int | float) and label % 1 == 0 else type(label)


def _number_names(
    columns: Mapping[str, LabelColumn], options: LabelOptions, *, is_set: bool
) -> Encoded:
    """Return labels by the names of their classes.

    Args:
        columns: The column of labels of each split; its values are lists of names.
        options: With new names and the order of classes.
        is_set: Whether a row has any number of them.
    """

    def rename(name: str) -> str:
        return options.renames.get(name, name)

    source = columns["train"].classes
    present = {
        name
        for names in itertools.chain(*(column.values for column in columns.values()))
        for name in names
    }
    renamed = {rename(name) for name in present}
    ordered = [*dict.fromkeys(map(rename, source))]
    if renamed <= set(options.names):
        is_complete = is_set or set(ordered) == set(options.names)
        ordered = [name for name in options.names if is_complete or name in renamed]
    else:
        ordered += sorted(renamed - set(ordered), key=numbers.natural_key)
    if options.task == "ordinal" and not numbers.have_order(ordered, options.names):
        ordered = sorted(ordered, key=numbers.natural_key)  # if words, the order is asked for
    number = {name: place for place, name in enumerate(ordered)}
    labels = {}
    for split, column in columns.items():
        classes = [sorted({number[rename(name)] for name in names}) for names in column.values]
        if is_set:
            rows = [classes[code] if code >= 0 else None for code in column.codes.tolist()]
            labels[split] = pa.array(rows, pa.list_(pa.int64()))
        else:
            places = np.array([*itertools.chain(*classes), -1])  # the last one: of missing labels
            labels[split] = pa.array(places[column.codes], mask=column.codes < 0)
    feature: Any = ClassLabel(names=ordered)
    unmapped = sorted(options.renames.keys() - present - set(source))
    return Encoded(List(feature) if is_set else feature, labels, unmapped)


def match_labels(rows: Dataset, names: Sequence[str], split: str, report: Report) -> Dataset:
    """Return rows of other data with the classes numbered as a model numbers them.

    Args:
        rows: With a ``ClassLabel``, or a list of one, as ``label``.
        names: Of the classes of the model.
        split: Of these rows in their source.
        report: For the message.

    Raises:
        UserError: If there are labels that the model does not know.
    """
    if not targets.are_classes(rows):
        raise UserError("the data has numbers as labels, and the model predicts classes")
    column = read_label_column(rows, "label", split, report)
    cells = [value if isinstance(value, list) else [value] for value in column.values]
    if unknown := {*itertools.chain(*cells)} - {*names}:
        listing = list_names(sorted(unknown, key=numbers.natural_key))
        report.fail(
            f"the data has labels that the model does not know: {listing} (it knows: "
            f"{list_names(names)})",
            split=split,
            rows=column.first_row([bool(unknown & {*cell}) for cell in cells].index(True)),
        )
    columns = {"train": replace(column, values=cells, classes=names)}
    encoded = _number_names(columns, LabelOptions(names=names), is_set=targets.is_set(rows))
    rows = rows.remove_columns("label")
    return rows.add_column("label", encoded.labels["train"], feature=encoded.feature)


def check_label_map(unmapped: Sequence[str], dataset: DatasetDict, report: Report) -> None:
    """Report names in ``--label_map`` that no row of a training has; other data may lack them."""
    if unmapped:
        names = list_names(targets.class_names(dataset["train"]))
        report.error(f"--label_map: no label {list_names(unmapped)} in the data (labels: {names})")


def find_doubtful_names(dataset: DatasetDict, *, can_rename: bool) -> list[Finding]:
    """Return warnings about classes that look like mistakes; none are merged.

    Args:
        dataset: Splits with one common feature ``label``.
        can_rename: Whether there is ``--label_map``.
    """
    classes = targets.class_names(dataset["train"])
    counts: dict[str, int] = {}
    for rows in dataset.values():
        for number, count in targets.counts(rows).items():
            counts[classes[number]] = counts.get(classes[number], 0) + count
    groups: dict[str, list[str]] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        groups.setdefault(_comparable(name), []).append(name)
    similar = [group for _, group in sorted(groups.items()) if len(group) > 1]
    findings = []
    if similar:
        listing = "; ".join(" and ".join(map(_quote, group)) for group in similar[:_SHOWN])
        fix = "to merge them, make them identical in the data"
        if can_rename:
            renames = [(name, group[0].strip()) for group in similar for name in group]
            pairs = [(name, target) for name, target in renames if name != target]
            fix += f", or --label_map {shlex.quote(join_pairs(pairs))}"
        message = f"similar labels kept as separate classes: {listing}"
        message += ", ..." * (len(similar) > _SHOWN)
        findings.append(
            Finding(name="similar_labels", severity="warning", message=message, fix=fix)
        )
    missing = sorted(name for name in counts if name.strip() in _NO_CLASS)
    if missing and len(missing) < len(counts):
        listing = ", ".join(f"'{name}' ({counted(counts[name], 'row')})" for name in missing)
        message = f"classes like a missing label: {listing}"
        fix = "if these labels are missing, leave the field empty"
        findings.append(
            Finding(name="missing_labels", severity="warning", message=message, fix=fix)
        )
    return findings


def _comparable(name: str) -> str:
    """Return a name without case, blanks, invisible characters and zeros before a whole number."""
    composed = unicodedata.normalize("NFKC", name)
    visible = "".join(letter for letter in composed if letter.isprintable() or letter.isspace())
    words = " ".join(visible.split()).casefold()
    return words.lstrip("0") or "0" if words.isdecimal() else words


def _quote(name: str) -> str:
    """Return a quoted name, escaped if that is the only way to see its difference from others."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)
