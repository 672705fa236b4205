"""Choose the task from the labels of a data set, and encode the labels for it.

The labels of the training rows decide. If they are ambiguous, the user is asked for ``--task``.
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
from finetune.data.tags import tag_names
from finetune.data.targets import class_names, is_set, is_tagged
from finetune.errors import Findings, counted
from finetune.tasks.base import Task
from finetune.tasks.classes import MultiLabel, Ordinal, SingleLabel
from finetune.tasks.regression import Regression
from finetune.tasks.tokens import Tokens

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

AUTO = "auto"
#: The tasks by their names in ``run.json``.
TASKS: dict[str, type[Task[Any]]] = {
    task.name: task for task in (SingleLabel, Ordinal, MultiLabel, Regression, Tokens)
}
#: The fewest classes of an ordinal task: fewer have no meaningful order.
MIN_ORDERED_CLASSES = 3
#: Up to this many different whole numbers are classes. More of them are classes only if they have
#: no gap and start at 0 or 1; else they may be quantities.
MAX_OBVIOUS_CLASSES = 20


def of_rows(
    rows: Dataset,
    *,
    ordered: bool = False,
    loss_function: str | None = None,
    thresholds: str = "one",
    target_names: Sequence[str] = (),
    positive_label: str | None = None,
) -> Task[Any]:
    """Return the task of raw rows, which follows from the feature of their column ``label``.

    Options of other tasks are ignored.

    Args:
        rows: The training rows.
        ordered: Whether the classes have an order.
        loss_function: The value of ``--loss_function``; None for the default of the task.
        thresholds: The value of ``--thresholds``.
        target_names: The names of several numbers a row.
        positive_label: The value of ``--positive_label``; None for the default.

    Raises:
        UserError: If the task has no loss called ``loss_function``.
    """
    names = class_names(rows)
    loss = loss_function or ""
    if is_tagged(rows):
        return Tokens(labels=tag_names(names), loss_function=loss)
    if is_set(rows):
        return MultiLabel(labels=names, loss_function=loss, thresholds=thresholds)
    if not names:
        return Regression.of(rows, target_names, loss)
    task = Ordinal if ordered else SingleLabel
    return task(labels=names, loss_function=loss, positive_label=positive_label)


def in_order(rows: Dataset, ordered_names: Sequence[str]) -> bool:
    """Return whether there are 3 or more classes, in ``ordered_names`` or sorted as numbers."""
    names = class_names(rows)
    are_numbers = not any(is_word for is_word, _, _ in map(labels.natural_key, names))
    is_ascending = are_numbers and names == sorted(names, key=labels.natural_key)
    return len(names) >= MIN_ORDERED_CLASSES and (set(names) <= set(ordered_names) or is_ascending)


def check_order(dataset: DatasetDict, options: LabelOptions, report: Findings) -> None:
    """Raise a ``UserError`` if the task is ordinal and the order of the classes is not known."""
    names = class_names(dataset["train"])
    has_mismatch = options.is_ordered and set(names) != set(options.names)
    if has_mismatch or not in_order(dataset["train"], options.names):
        report.fail(
            f"--task ordinal: the classes in '{options.columns[0]}' are {list_names(names)}; "
            f"expected {MIN_ORDERED_CLASSES} or more in a known order",
            fix="add --label_order LOWEST,...,HIGHEST with all of them, or use --task single_label",
        )


def decide_task(
    columns: Sequence[LabelColumn], options: LabelOptions, report: Findings
) -> tuple[str, str]:
    """Return the name of the task that fits the labels of the training rows, and the reason.

    Args:
        columns: The label columns of the training rows.
        options: How the labels are written.
        report: Gets the error.

    Raises:
        UserError: If the labels are ambiguous; names the column, the first ambiguous row and the
            flags that decide.
    """
    column = columns[0]
    values = column.values
    if options.is_ordered:
        return "ordinal", "--label_order sets the order of the classes"
    if len(columns) > 1:
        return _decide_columns(columns, report)
    if options.separator:
        return "multi_label", f"the labels are separated by {options.separator!r}"
    lists = [index for index, value in enumerate(values) if parse_list(value) is not None]
    if any(isinstance(values[index], list) for index in lists) or 2 * len(lists) > len(values):
        example = _find_example(column, lists, report)
        return "multi_label", f"the labels are lists, such as {example}"
    if column.classes or any(isinstance(value, bool | dict) for value in values):
        return "single_label", "the labels are classes"
    if set(map(str, values)) <= set(options.names):
        return "single_label", "the labels are the classes of the recipe"
    return _decide_values(column, options, report)


def _find_example(column: LabelColumn, lists: Sequence[int], report: Findings) -> str:
    """Return the first list with a label. Lists of numbers may be targets, so the user is asked."""
    members: list[Any] = []
    first = None
    for index in lists:
        members += parse_list(column.values[index]) or ()
        if members and first is None:
            first = index
    if first is None:
        return "[]"
    types = set(map(type, members))
    if str not in types and (float in types or all(member in (0, 1) for member in members)):
        _ask(column, first, report, ", a list of numbers")
    return repr(column.values[first])


def _ask(
    column: LabelColumn, index: int, report: Findings, context: str = "", separator: str = ";"
) -> NoReturn:
    """Raise an error that asks for ``--task`` and shows the ambiguous ``column.values[index]``."""
    report.fail(
        f"--task: '{column.name}' holds {column.values[index]!r}{context}",
        split="train",
        rows=column.first_row(index),
        fix=labels.EXPECTED.format(separator=separator),
    )


def _decide_columns(columns: Sequence[LabelColumn], report: Findings) -> tuple[str, str]:
    """Return the task of several columns: multi-label if all hold 0 and 1, else regression."""
    title = f"the columns {', '.join(column.name for column in columns)}"
    not_binary = []
    for column in columns:
        truths = map(labels.parse_truth, column.values)
        not_binary.append([index for index, truth in enumerate(truths) if truth is None])
    if not any(not_binary):
        return "multi_label", f"{title} hold 0 and 1"
    for column, indices in zip(columns, not_binary, strict=True):
        words = [index for index in indices if labels.parse_number(column.values[index]) is None]
        if words or (indices and not all(not_binary)):
            _ask(column, (words or indices)[0], report, " beside columns of other values")
    return "regression", f"{title} hold numbers"


def _decide_values(column: LabelColumn, options: LabelOptions, report: Findings) -> tuple[str, str]:
    """Return the task of one column of words and numbers, and the reason."""
    numbers = set()
    words: dict[str, int] = {}
    for index, value in enumerate(column.values):
        number = labels.parse_number(value)
        if number is not None and math.isfinite(number):
            numbers.add(number)
        else:
            words[str(value)] = index
    unmapped = {word: index for word, index in words.items() if word not in options.renames}
    if unmapped and len(words) < len(numbers):
        count = len(column.values)
        context = f", while {len(numbers):,} of {count:,} different labels are numbers"
        _ask(column, min(unmapped.values()), report, context)
    task, reason = "single_label", "the labels are words"
    if not words:
        task, reason = _decide_numbers(column, sorted(numbers), report)
    if task == "single_label":
        _refuse_unlikely(column, options, unmapped, report)
    return task, reason


def _decide_numbers(
    column: LabelColumn, finite: Sequence[float], report: Findings
) -> tuple[str, str]:
    """Return the task of a column of numbers, and the reason; ``finite`` are sorted."""
    can_be_ordinal = MIN_ORDERED_CLASSES <= len(finite) <= MAX_OBVIOUS_CLASSES
    if fractions := [value for value in finite if value % 1]:
        reason = f"the labels are numbers with a fraction, such as {fractions[0]:g}"
        if can_be_ordinal:
            reason += "; --task ordinal if they are grades"
        return "regression", reason
    is_gapless = finite[0] in (0, 1) and finite[-1] - finite[0] == len(finite) - 1
    if len(finite) > MAX_OBVIOUS_CLASSES and not is_gapless:
        _ask(column, 0, report, f", one of {len(finite):,} different whole numbers")
    reason = f"the labels are {len(finite)} different whole numbers"
    if can_be_ordinal:
        reason += "; --task ordinal if their order matters"
    return "single_label", reason


def _refuse_unlikely(
    column: LabelColumn, options: LabelOptions, unmapped: Mapping[str, int], report: Findings
) -> None:
    """Ask for the task if the labels may be no classes: too many, printed lists, or several."""
    count = len({options.renames.get(str(value), str(value)) for value in column.values})
    rows = int((column.codes >= 0).sum())
    if count > MAX_OBVIOUS_CLASSES and 2 * count > rows:
        context = f", one of {count:,} different labels in {counted(rows, 'row')}"
        _ask(column, 0, report, f"{context} (is --label_column the right column?)")
    for word, index in unmapped.items():
        if labels.looks_printed(word) and parse_list(word) is None:
            _ask(column, index, report, ", which looks like a printed list")
    if separated := _find_separator(list(unmapped)):
        separator, word = separated
        _ask(column, unmapped[word], report, separator=separator)


def _find_separator(words: Sequence[str]) -> tuple[str, str] | None:
    """Return the likely separator of several labels in a cell, and the first cell that has it.

    A separator is likely if all parts of some cell are labels themselves. If no part has more than
    three words, these are likely too: a semicolon, a bar, a comma between digits (or a decimal
    comma), and any separator that most cells have, with no more different parts than such cells.
    """
    names = {word.strip() for word in words}
    separators: Counter[str] = Counter()
    for word in words:
        matches = set(re.findall(r"[\W_]+", word.strip()))
        separators.update(match.strip() or match for match in matches)
    for separator, _ in separators.most_common(20):
        cells = {}
        for word in words:
            cell_parts = [part.strip() for part in word.split(separator)]
            if len(cell_parts) > 1 and all(cell_parts):
                cells[word] = cell_parts
        parts = set(itertools.chain(*cells.values()))
        is_usual = separator in (";", "|") or (separator == "," and all(map(str.isdecimal, parts)))
        are_few = 2 * len(cells) > len(words) and len(parts) <= len(cells)
        are_short = all(len(part.split()) <= 3 for part in parts)
        is_likely = separator.strip() and are_short and (is_usual or are_few)
        for word, cell_parts in cells.items():
            if is_likely or names.issuperset(cell_parts):
                return separator, word
    return None
