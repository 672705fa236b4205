"""Which task the labels of a data set, or of a run, are, and the labels as the task has them.

The training rows decide. Where labels can be two kinds of thing, the user is asked for ``--task``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from finetune.data import labels
from finetune.data.labels import LabelColumn, LabelOptions, list_names, parse_list
from finetune.data.targets import class_names, is_set
from finetune.errors import Report, counted
from finetune.tasks.base import Task
from finetune.tasks.classes import MultiLabel, Ordinal, SingleLabel
from finetune.tasks.regression import Regression

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

AUTO = "auto"
#: By the names in ``run.json``.
KINDS: dict[str, type[Task[Any]]] = {
    kind.name: kind for kind in (SingleLabel, Ordinal, MultiLabel, Regression)
}
#: An order of fewer classes means nothing.
FEWEST_ORDERED = 3
#: So many different whole numbers can be classes or quantities; more of them are classes only if
#: they are numbered without a gap, from 0 or 1.
SURELY_CLASSES = 20


def of_rows(
    rows: Dataset,
    *,
    ordered: bool = False,
    loss_function: str | None = None,
    thresholds: str = "one",
    target_names: Sequence[str] = (),
) -> Task[Any]:
    """Return the task of raw rows by the feature of their ``label``; options of other tasks than
    that are not used.

    Raises:
        UserError: If the task has no such loss.
    """
    names = class_names(rows)
    loss = loss_function or ""
    if is_set(rows):
        return MultiLabel(labels=names, loss_function=loss, thresholds=thresholds)
    if not names:
        return Regression.of(rows, target_names, loss)
    return (Ordinal if ordered else SingleLabel)(labels=names, loss_function=loss)


def in_order(rows: Dataset, ordered_names: Sequence[str]) -> bool:
    """Return whether there are three classes or more that are in an order or ascend as numbers."""
    names = class_names(rows)
    are_numbers = not any(is_word for is_word, _, _ in map(labels.natural_key, names))
    ascend = are_numbers and names == sorted(names, key=labels.natural_key)
    return len(names) >= FEWEST_ORDERED and (set(names) <= set(ordered_names) or ascend)


def encode_labels(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> labels.Encoded:
    """Return the labels of all splits as the task of the options has them.

    Raises:
        UserError: If they cannot be labels of that task, with all columns that cannot.
    """
    task = options.task
    if options.separator is not None and task != "multi_label":
        report.fail(f"--label_separator: a row has one label, with --task {task}")
    if len(options.columns) > 1 and task not in ("multi_label", "regression"):
        report.fail(f"--label_columns: a row has one label, with --task {task}: use --label_column")
    encode = labels.encode_numbers if task == "regression" else labels.encode_names
    return encode(columns, options, report)


def check_order(dataset: DatasetDict, options: LabelOptions, report: Report) -> None:
    """Add an error to the report if the order of the classes of ``--task ordinal`` is not known."""
    names = class_names(dataset["train"])
    is_stray = options.is_ordered and set(names) != set(options.names)
    if is_stray or not in_order(dataset["train"], options.names):
        report.error(
            f"--task ordinal: the classes in '{options.columns[0]}' are {list_names(names)}; "
            f"expected {FEWEST_ORDERED} or more whose order is known",
            fix="add --label_order LOWEST,...,HIGHEST with all of them, or use --task single_label",
        )


def decide_task(
    columns: Sequence[LabelColumn], options: LabelOptions, report: Report
) -> tuple[str, str]:
    """Return the task that the labels of training rows are, and why.

    Raises:
        UserError: If the labels can be several kinds of thing; it names the column, the first such
            row and the flags that decide.
    """
    column = columns[0]
    values = column.values
    if options.is_ordered:
        return "ordinal", "--label_order says the order of the classes"
    if len(columns) > 1:
        return _decide_columns(columns, report)
    if options.separator:
        return "multi_label", f"the labels are separated by {options.separator!r}"
    lists = [place for place, value in enumerate(values) if parse_list(value) is not None]
    if any(isinstance(values[place], list) for place in lists) or 2 * len(lists) > len(values):
        pairs = [(place, label) for place in lists for label in parse_list(values[place]) or ()]
        kinds = {type(label) for _, label in pairs}
        is_binary = all(label in (0, 1) for _, label in pairs)
        if pairs and str not in kinds and (float in kinds or is_binary):
            _ask(column, pairs[0][0], report, ", a list of numbers")
        example = repr(values[pairs[0][0]]) if pairs else "[]"
        return "multi_label", f"the labels are lists, such as {example}"
    if column.classes or any(isinstance(value, bool | dict) for value in values):
        return "single_label", "the labels are classes"
    if set(map(str, values)) <= set(options.names):
        return "single_label", "the labels are the classes of the recipe"
    return _decide_values(column, options, report)


def _ask(
    column: LabelColumn, place: int, report: Report, context: str = "", separator: str = ";"
) -> NoReturn:
    """Ask for the task by the first row of an ambiguous value."""
    report.fail(
        f"--task: '{column.name}' holds {column.values[place]!r}{context}",
        split="train",
        rows=column.first_row(place),
        fix=labels.EXPECTED.format(separator=separator),
    )


def _decide_columns(columns: Sequence[LabelColumn], report: Report) -> tuple[str, str]:
    """Return the task of several columns: sets of labels if all are 0 and 1, else numbers."""
    title = f"the columns {', '.join(column.name for column in columns)}"
    strays = [
        [place for place, value in enumerate(column.values) if labels.parse_truth(value) is None]
        for column in columns
    ]
    if not any(strays):
        return "multi_label", f"{title} hold 0 and 1"
    for column, places in zip(columns, strays, strict=True):
        words = [place for place in places if labels.parse_number(column.values[place]) is None]
        if words or (places and not all(strays)):
            _ask(column, (words or places)[0], report, " beside columns of other values")
    return "regression", f"{title} hold numbers"


def _decide_values(column: LabelColumn, options: LabelOptions, report: Report) -> tuple[str, str]:
    """Return the task of words and numbers."""
    parsed = [labels.parse_number(value) for value in column.values]
    finite = sorted({value for value in parsed if value is not None and math.isfinite(value)})
    words = {
        str(value): place
        for place, (value, number) in enumerate(zip(column.values, parsed, strict=True))
        if number is None or not math.isfinite(number)
    }
    unnamed = {word: place for word, place in words.items() if word not in options.renames}
    if unnamed and len(words) < len(finite):
        context = f", while {len(finite):,} of {len(parsed):,} different labels are numbers"
        _ask(column, min(unnamed.values()), report, context)
    reason = "the labels are words"
    if not words:
        is_small = FEWEST_ORDERED <= len(finite) <= SURELY_CLASSES
        if fractions := [value for value in finite if value % 1]:
            reason = f"the labels are numbers with a fraction, such as {fractions[0]:g}"
            return "regression", reason + "; --task ordinal if they are grades" * is_small
        is_gapless = finite[0] in (0, 1) and finite[-1] - finite[0] == len(finite) - 1
        if len(finite) > SURELY_CLASSES and not is_gapless:
            _ask(column, 0, report, f", one of {len(finite):,} different whole numbers")
        reason = f"the labels are {len(finite)} different whole numbers"
        reason += "; --task ordinal if their order counts" * is_small
    count = len({options.renames.get(str(value), str(value)) for value in column.values})
    rows = int((column.codes >= 0).sum())
    if count > SURELY_CLASSES and 2 * count > rows:
        context = f", one of {count:,} different labels in {counted(rows, 'row')}"
        _ask(column, 0, report, f"{context} (is --label_column the right column?)")
    for word, place in unnamed.items():
        if labels.looks_printed(word) and parse_list(word) is None:
            _ask(column, place, report, ", several values as a program prints them")
    if separated := _find_separator([*unnamed]):
        separator, word = separated
        _ask(column, unnamed[word], report, separator=separator)
    return "single_label", reason


def _find_separator(words: Sequence[str]) -> tuple[str, str] | None:
    """Return what seems to separate several labels in a cell, and the first cell that has it.

    Either every part of a cell is itself a label, or most cells have the separator and consist of
    no more parts than there are such cells, or are numbers with a decimal comma. A semicolon or a
    bar counts in any cell.
    """
    names = {word.strip() for word in words}
    signs = Counter(
        sign.strip() or sign for word in words for sign in {*re.findall(r"[\W_]+", word.strip())}
    )
    for sign, _ in signs.most_common(20):
        splits = {word: [part.strip() for part in word.split(sign)] for word in words}
        cells = {word: parts for word, parts in splits.items() if len(parts) > 1 and all(parts)}
        parts = {*itertools.chain(*cells.values())}
        is_usual = sign in (";", "|") or (sign == "," and all(map(str.isdecimal, parts)))
        are_few = 2 * len(cells) > len(words) and len(parts) <= len(cells)
        are_short = all(len(part.split()) <= 3 for part in parts)
        seems_to = sign.strip() and are_short and (is_usual or are_few)
        for word, cell_parts in cells.items():
            if seems_to or names.issuperset(cell_parts):
                return sign, word
    return None
