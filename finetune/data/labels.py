"""Labels with names: one class a row, or any number, encoded in a deterministic order."""

from __future__ import annotations

import itertools
import json
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
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
    looks_printed,
    parse_label_map,
    parse_list,
    read_label_column,
)
from finetune.errors import Finding, Report, UserError, counted

AS_JSON = 'write a JSON list, ["a", "b"], or a;b and --label_separator \';\''
AS_COLUMNS = "a column of 0 and 1 for each label and --label_columns"
#: What a cell of a column of 0 and 1 may be.
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: What is written where there is no label. In lower case none and na can be the name of a class.
_NO_CLASS = {
    *("nan", "NaN", "NAN", "NaT", "None", "null", "Null", "NULL", r"\N", "?"),
    *("n/a", "N/A", "#N/A", "NA", "<NA>"),
}
_EMOJI_STYLE = "\ufe0f"  # follows a character that is listing as an emoji
_SHOWN = 5


def class_name(value: Any) -> str:
    """Return what the class of a label is called: that of 1.0 is ``1``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def encode_classes(
    columns: Mapping[str, LabelColumn], options: LabelOptions, report: Report
) -> Encoded:
    """Return labels of which a row has one.

    Classes are called as they are written: ``00``, ``NA``, `` good``; a number by its value, the
    float 1.0 ``1``. If all are among the names of the options, they take that order; otherwise that
    of the source if it has one, then numbers as numbers, then words.

    Args:
        columns: The column of labels of each split.
        options: How labels are written.
        report: Gets an error for the first value of a split that is no class.

    Raises:
        UserError: If there is such a value.
    """
    for split, column in columns.items():
        _refuse_no_class(column, split, options, report)
    report.raise_errors()
    train = columns["train"].values
    if {*map(type, train)} - {str, int}:
        names = list_names([*map(class_name, train)])
        report.info(f"the classes of '{options.columns[0]}' are called {names}")
    words = {
        split: [[class_name(value)] for value in column.values] for split, column in columns.items()
    }
    return _encode_names(columns, words, options, is_set=False)


def _refuse_no_class(
    column: LabelColumn, split: str, options: LabelOptions, report: Report
) -> None:
    values: dict[str, Any] = {}
    are_numbers = numbers.are_numbers([*map(class_name, column.values)])
    for place, value in enumerate(column.values):
        first = values.setdefault(class_name(value), value)
        fix = "expected one label per row"
        if isinstance(value, dict):
            problem = f"objects, such as {value!r}"
        elif parse_list(value) is not None:
            problem = f"lists, such as {value!r}"
            fix += "; several labels per row are --task multi_label"
        elif type(first) is not type(value):
            problem, fix = f"both {first!r} and {value!r}", "write one class in one way"
        elif are_numbers and options.task != "ordinal" and numbers.has_fractions([str(value)]):
            problem = f"numbers with a fraction, such as {value}"
            fix = "expected classes; is --label_column the right column?"
        else:
            continue
        problem = f"--label_column: '{column.name}' holds {problem}"
        report.error(problem, split=split, rows=column.first_row(place), fix=fix)
        return


def encode_label_sets(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> Encoded:
    """Return labels of which a row has any number, as lists of the numbers of classes.

    An empty list, or a row of zeros, is a row that has none of the labels. Classes have the order
    of :func:`encode_classes`; those of several columns have that of the columns.

    Args:
        columns: The columns of labels of each split: one whose cells hold several labels, or
            several of 0 and 1.
        options: How labels are written.
        report: Gets an error for the first cell of a column that cannot be read.

    Raises:
        UserError: If there is such a cell.
    """
    if len(options.columns) > 1:
        cells = {split: _merge(group, split, report) for split, group in columns.items()}
    else:
        cells = {
            split: _split(group[0], split, options, report) for split, group in columns.items()
        }
    report.raise_errors()
    words = {split: list(column.values) for split, column in cells.items()}
    return _encode_names(cells, words, options, is_set=True)


def _encode_names(
    columns: Mapping[str, LabelColumn],
    words: Mapping[str, Sequence[Sequence[str]]],
    options: LabelOptions,
    *,
    is_set: bool,
) -> Encoded:
    """Return labels by the names of their classes.

    Args:
        columns: The column of labels of each split.
        words: Of each split the names in each of the column's values.
        options: With new names and the order of classes.
        is_set: Whether a row has any number of them.
    """

    def rename(name: str) -> str:
        return options.renames.get(name, name)

    source = columns["train"].classes
    present = {name for cells in words.values() for cell in cells for name in cell}
    renamed = {rename(name) for name in present}
    ordered = [*dict.fromkeys(map(rename, source))]
    if renamed <= set(options.names):
        is_whole = is_set or set(ordered) == set(options.names)
        ordered = [name for name in options.names if is_whole or name in renamed]
    else:
        ordered += sorted(renamed - set(ordered), key=numbers.natural_key)
    if options.task == "ordinal" and not numbers.have_order(ordered, options.names):
        ordered = sorted(ordered, key=numbers.natural_key)  # if words, the order is asked for
    number = {name: place for place, name in enumerate(ordered)}
    labels = {}
    for split, column in columns.items():
        cells = [sorted({number[rename(name)] for name in cell}) for cell in words[split]]
        if is_set:
            rows = [cells[code] if code >= 0 else None for code in column.codes.tolist()]
            labels[split] = pa.array(rows, pa.list_(pa.int64()))
        else:
            places = np.array([*itertools.chain(*cells), -1])  # the last one: of missing labels
            labels[split] = pa.array(places[column.codes], mask=column.codes < 0)
    feature: Any = ClassLabel(names=ordered)
    unmapped = sorted(options.renames.keys() - present - set(source))
    return Encoded(List(feature) if is_set else feature, labels, unmapped)


def parse_truth(value: Any) -> bool | None:
    """Return what a cell of a column of 0 and 1 says; None of other values."""
    number = numbers.parse_number(value)
    return _TRUTH.get(str(value).strip().lower() if number is None else f"{number:g}")


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
        columns.append(np.array([*(bool(truth) for truth in truths), False])[column.codes])
    rows, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    names = [column.name for column in group]
    values = [list(itertools.compress(names, row)) for row in rows.tolist()]
    codes = np.where(np.all([column.codes >= 0 for column in group], axis=0), codes, -1)
    return replace(group[0], values=values, codes=codes, classes=names)


def _split(column: LabelColumn, split: str, options: LabelOptions, report: Report) -> LabelColumn:
    """Return a column whose values are lists of the names of labels; report the first other."""

    def refuse(place: int, problem: str, fix: str) -> None:
        value = f"'{column.name}' holds {column.values[place]!r}"
        rows = column.first_row(place)
        report.error(f"--label_column: {value}{problem}", split=split, rows=rows, fix=fix)

    cells = [split_cell(value, options.separator) for value in column.values]
    labels = [label for cell in cells for label in cell or ()]
    are_words = any(isinstance(label, str) for label in labels)
    names = []
    for place, cell in enumerate(cells):
        if cell is None:
            refuse(place, "", _expected_list(column.values[place], labels, options.separator))
            break
        if not all(_is_word(label) if are_words else _is_whole(label) for label in cell):
            fix = f"expected a list of {'words' if are_words else 'whole numbers'} without nulls"
            refuse(place, "", f"{fix}; numbers to predict are --task regression")
            break
        names.append([name for label in cell if (name := class_name(label).strip())])
    bits = {"0", "1", "False", "True"}.issuperset(itertools.chain(*names))
    repeats = [place for place, cell in enumerate(names) if len(set(cell)) < len(cell)]
    if bits and repeats and len(set(map(len, names))) == 1:
        fix = f"expected the names of the labels that a row has, or {AS_COLUMNS}"
        refuse(repeats[0], ", a 0 or 1 for each label", fix)
    sign = options.separator
    if sign and split == "train" and not any(sign in str(value) for value in column.values):
        report.warning(f"--label_separator '{sign}': no cell of '{column.name}' has it")
    return replace(column, values=names)


def _is_word(label: Any) -> bool:
    return isinstance(label, str)


def _is_whole(label: Any) -> bool:
    return isinstance(label, int | float) and label % 1 == 0


def split_cell(value: Any, separator: str | None) -> list[Any] | None:
    """Return the labels in a cell; None if it holds no list and nothing separates its labels."""
    labels = parse_list(value)
    if labels is None and separator is not None and not looks_printed(value):
        return str(value).split(separator)
    return labels


def _expected_list(value: Any, labels: Sequence[Any], separator: str | None) -> str:
    """Return what to write instead of a cell that holds no list of labels."""
    if looks_printed(value):
        return AS_JSON
    if labels:
        word = str(value) if isinstance(labels[0], str) else value
        return f"expected a list like the others; write {json.dumps([word], ensure_ascii=False)}"
    instead = "" if separator else "; labels separated by commas are --label_separator ','"
    return f"expected a list of labels{instead}; one label a row is --task single_label"


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
    places = {name: place for place, cell in reversed([*enumerate(cells)]) for name in cell}
    if unknown := sorted(places.keys() - set(names), key=numbers.natural_key):
        report.fail(
            f"the data has labels that the model does not know: {list_names(unknown)} (it knows: "
            f"{list_names(names)})",
            split=split,
            rows=column.first_row(min(places[name] for name in unknown)),
        )
    options = LabelOptions(names=names)
    is_set = targets.is_set(rows)
    column = replace(column, classes=names)
    encoded = _encode_names({"train": column}, {"train": cells}, options, is_set=is_set)
    feature: Any = ClassLabel(names=list(names))
    return rows.remove_columns("label").add_column(
        "label", encoded.labels["train"], feature=List(feature) if is_set else feature
    )


def check_label_map(unmapped: Sequence[str], dataset: DatasetDict, report: Report) -> None:
    """Report names in ``--label_map`` that no row of a training has; other data may lack them."""
    if unmapped:
        names = list_names(targets.class_names(dataset["train"]))
        report.error(f"--label_map: no label {list_names(unmapped)} in the data (labels: {names})")


# ---- names that look like mistakes ---------------------------------------------------------------


def visible_name(name: str) -> str:
    """Return a name without case, blanks, invisible characters and ways to write it in Unicode."""
    composed = unicodedata.normalize("NFKC", name).replace(_EMOJI_STYLE, "")
    visible = "".join(letter for letter in composed if letter.isprintable() or letter.isspace())
    return " ".join(visible.split()).casefold()


def find_doubtful_names(dataset: DatasetDict, *, can_rename: bool) -> list[Finding]:
    """Return warnings about classes that look like mistakes; none are merged.

    Args:
        dataset: Splits with one common feature ``label``.
        can_rename: Whether there is ``--label_map``.
    """
    names = targets.class_names(dataset["train"])
    counts = dict.fromkeys(names, 0)
    for rows in dataset.values():
        for number, count in targets.counts(rows).items():
            counts[names[number]] += count
    counts = {name: counts[name] for name in sorted(counts) if counts[name]}
    findings = []
    groups: dict[Decimal | str, list[str]] = {}
    for name in counts:
        groups.setdefault(_comparable(name), []).append(name)
    if similar := [group for group in groups.values() if len(group) > 1]:
        listing = "; ".join(" and ".join(map(_quote, group)) for group in similar[:_SHOWN])
        message = f"similar labels kept as separate classes: {listing}"
        fix = "to merge them, make them identical in the data"
        fix += _merging_option(similar, counts) if can_rename else ""
        findings.append(("similar_labels", message + ", ..." * (len(similar) > _SHOWN), fix))
    missing = [name for name in counts if name.strip() in _NO_CLASS]
    if missing and len(missing) < len(counts):
        listing = ", ".join(f"'{name}' ({counted(counts[name], 'row')})" for name in missing)
        fix = "if these labels are missing, leave the field empty"
        findings.append(("missing_labels", f"classes like a missing label: {listing}", fix))
    return [
        Finding(name=name, severity="warning", message=message, fix=fix)
        for name, message, fix in findings
    ]


def _comparable(name: str) -> Decimal | str:
    """Return the number that a name is, not rounded, or what is visible of a word."""
    is_word, _, _ = numbers.natural_key(name)
    try:
        return visible_name(name) if is_word else Decimal(name.strip())
    except InvalidOperation:  # an exponent of 19 digits
        return name


def _quote(name: str) -> str:
    """Return a quoted name, escaped if that is the only way to see its difference from others."""
    is_plain = unicodedata.is_normalized("NFC", name) and _EMOJI_STYLE not in name
    return repr(name) if is_plain else ascii(name)


def _merging_option(groups: Sequence[Sequence[str]], counts: Mapping[str, int]) -> str:
    """Return the option that merges each group into its most frequent name, if it can be typed."""
    pairs: dict[str, str] = {}
    for group in groups:
        frequent = max(group, key=lambda name: counts[name])
        pairs |= {name: frequent for name in group if name != frequent}
    text = join_pairs(pairs.items())
    try:
        is_read = parse_label_map(text) == pairs
    except UserError:
        is_read = False
    can_type = is_read and text.isascii() and text.isprintable()
    return f", or --label_map {shlex.quote(text)}" if can_type else ""
