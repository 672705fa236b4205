"""Which task the labels of a data set are, and the labels as the task has them.

The training rows decide. Where labels can be two kinds of thing, the user is asked for ``--task``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

from finetune.data import labels, numbers, targets
from finetune.data.columns import find_valid_rows
from finetune.data.comma_list import join_values
from finetune.data.label_columns import (
    Encoded,
    LabelColumn,
    LabelOptions,
    list_names,
    looks_printed,
    parse_list,
    read_label_column,
)
from finetune.errors import Report, counted

if TYPE_CHECKING:
    from datasets import DatasetDict

Name = Literal["single_label", "multi_label", "regression", "ordinal"]
AUTO = "auto"
#: An order of fewer classes means nothing.
FEWEST_ORDERED = 3
_AS_CLASS = "if it is the name of a class, add --task single_label"
#: So many different whole numbers can be classes or quantities; more of them are classes only if
#: they are numbered without a gap, from 0 or 1.
SURELY_CLASSES = 20
#: A separator is looked for in labels of at most so many characters.
_LONGEST_JOINED = 100
_MOST_WORDS = 3  # of a label beside a separator
_USUAL_SEPARATORS = (";", "|")


def read_columns(
    dataset: DatasetDict, texts: Sequence[str], options: LabelOptions, report: Report
) -> dict[str, list[LabelColumn]]:
    """Return the columns of labels of each split, missing where a text or a label of a row is.

    Args:
        dataset: With the columns.
        texts: Columns of texts.
        options: How labels are written.
        report: See :func:`~finetune.data.columns.find_valid_rows`.

    Raises:
        UserError: If values are missing, unless such rows are left out.
    """
    columns = {
        split: [read_label_column(rows, name, split, report) for name in options.columns]
        for split, rows in dataset.items()
    }
    hint = " (a row that has none of the labels is written [])" if options.separator else ""
    valid = find_valid_rows(dataset, texts, columns, report, drop=options.drop_invalid, hint=hint)
    return {
        split: [column.only(valid[split]) for column in group] for split, group in columns.items()
    }


def encode_labels(
    columns: Mapping[str, Sequence[LabelColumn]], options: LabelOptions, report: Report
) -> Encoded:
    """Return the labels of all splits as the task of the options has them.

    Raises:
        UserError: If they cannot be labels of that task, with all columns that cannot.
    """
    if options.separator is not None and options.task != "multi_label":
        report.fail(f"--label_separator: a row has one label, with --task {options.task}")
    if options.task == "multi_label":
        return labels.encode_label_sets(columns, options, report)
    if options.task == "regression":
        return numbers.encode_numbers(columns, options, report)
    if len(options.columns) > 1:
        report.fail(
            f"--label_columns: a row has one label, with --task {options.task}",
            fix="name the column of classes by --label_column",
        )
    single = {split: group[0] for split, group in columns.items()}
    encoded = labels.encode_classes(single, options, report)
    names = encoded.feature.names
    if len(names) > SURELY_CLASSES and options.task == "ordinal" and numbers.has_fractions(names):
        report.fail(
            f"--task ordinal: '{options.columns[0]}' holds {len(names):,} different numbers, some "
            "with a fraction",
            fix=f"use --task regression for more than {SURELY_CLASSES} such numbers",
        )
    return encoded


def decide_task(
    columns: Sequence[LabelColumn], options: LabelOptions, report: Report
) -> tuple[Name, str]:
    """Return the task that the labels of training rows are, and why.

    Args:
        columns: Of training.
        options: How labels are written; the task is open.
        report: For the question.

    Raises:
        UserError: If the labels can be several kinds of thing; it names the column, the first such
            row and the flags that decide.
    """
    column = columns[0]
    if options.is_ordered:
        return "ordinal", "--label_order says the order of the classes"
    if len(columns) > 1:
        return _decide_columns(columns, report)
    if options.separator:
        return "multi_label", f"the labels are separated by {options.separator!r}"
    lists = [place for place, value in enumerate(column.values) if parse_list(value) is not None]
    are_stored = any(isinstance(column.values[place], list) for place in lists)
    if are_stored or 2 * len(lists) > len(column.values):
        return _decide_lists(column, lists, report)
    if column.classes or any(isinstance(value, bool | dict) for value in column.values):
        return "single_label", "the labels are classes"
    if set(map(str, column.values)) <= set(options.names):
        return "single_label", "the labels are the classes of the recipe"
    return _decide_values(column, options, report)


def _ask(column: LabelColumn, place: int, fix: str, report: Report, context: str = "") -> NoReturn:
    problem = f"--task: '{column.name}' holds {column.values[place]!r}{context}"
    report.fail(problem, split="train", rows=column.first_row(place), fix=fix)


def _decide_columns(columns: Sequence[LabelColumn], report: Report) -> tuple[Name, str]:
    """Return the task of several columns: sets of labels if all are 0 and 1, else numbers."""
    title = f"the columns {', '.join(column.name for column in columns)}"
    parsers = (numbers.parse_number, labels.parse_truth)
    strays = [
        [(column, place) for place, value in enumerate(column.values) if parse(value) is None]
        for parse in parsers
        for column in columns
    ]
    no_numbers, no_truths = strays[: len(columns)], strays[len(columns) :]
    if not any(no_truths):
        return "multi_label", f"{title} hold 0 and 1"
    if not any(no_numbers) and all(no_truths):
        return "regression", f"{title} hold numbers"
    column, place = next(itertools.chain(*no_numbers, *no_truths))
    context = "" if any(no_numbers) else ", while another of the columns holds 0 and 1 only"
    fix = (
        "expected 0 and 1 in all of --label_columns for labels, or numbers for quantities; if they "
        "are, add --task multi_label or --task regression; a column of classes is --label_column"
    )
    _ask(column, place, fix, report, context)


def _decide_lists(column: LabelColumn, places: Sequence[int], report: Report) -> tuple[Name, str]:
    """Return the task of cells that are lists."""
    inner = [(place, label) for place in places for label in parse_list(column.values[place]) or ()]
    words = [label for _, label in inner if isinstance(label, str)]
    fractions = [label for _, label in inner if isinstance(label, float)]
    are_bits = all(label in (0, 1) for _, label in inner)
    if inner and not words and (fractions or are_bits):
        fix = (
            "if they are quantities, add --task regression; if they name labels, --task "
            f"multi_label; if each is for a label, write {labels.AS_COLUMNS}"
        )
        _ask(column, inner[0][0], fix, report, ", a list of numbers")
    example = repr(column.values[inner[0][0]]) if inner else "[]"
    return "multi_label", f"the labels are lists, such as {example}"


def _decide_values(column: LabelColumn, options: LabelOptions, report: Report) -> tuple[Name, str]:
    """Return the task of words and numbers."""
    parsed = [numbers.parse_number(value) for value in column.values]
    finite = [number for number in parsed if number is not None and math.isfinite(number)]
    words = {
        str(value): place
        for place, (value, number) in enumerate(zip(column.values, parsed, strict=True))
        if number is None or not math.isfinite(number)
    }
    unnamed = {word: place for word, place in words.items() if word not in options.renames}
    if unnamed and len(words) < len(finite):
        fix = (
            "if they are quantities, --task regression names the others; if the label is missing, "
            "leave it empty; if these are classes, add --task single_label"
        )
        most = f", while {len(finite):,} of {len(parsed):,} different labels are numbers"
        _ask(column, min(unnamed.values()), fix, report, f"{most}, such as {finite[0]:g}")
    task: Name = "single_label"
    reason = "the labels are words"
    if not words:
        task, reason = _decide_numbers(column, finite, report)
    commas = [place for word, place in unnamed.items() if numbers.has_decimal_comma(word)]
    if 2 * len(commas) > len(parsed):
        fix = "if it is a number, write a decimal point and add --task regression; if these are "
        fix += f"several labels, add --label_separator ','; {_AS_CLASS}"
        _ask(column, commas[0], fix, report)
    if task == "single_label":
        _ask_if_many(column, options, report, are_words=bool(words))
    if words:
        _ask_about_cells(column, unnamed, report)
    return task, reason


def _decide_numbers(
    column: LabelColumn, values: Sequence[float], report: Report
) -> tuple[Name, str]:
    """Return the task of labels that are these different numbers."""
    is_small = FEWEST_ORDERED <= len(values) <= SURELY_CLASSES
    if fractions := [value for value in values if value % 1]:
        reason = f"the labels are numbers with a fraction, such as {fractions[0]:g}"
        return "regression", reason + "; --task ordinal if they are grades" * is_small
    ordered = sorted(set(values))
    is_gapless = ordered[0] in (0, 1) and ordered[-1] - ordered[0] == len(ordered) - 1
    if len(ordered) <= SURELY_CLASSES or is_gapless:
        reason = f"the labels are {len(ordered)} different whole numbers"
        return "single_label", reason + "; --task ordinal if their order counts" * is_small
    report.fail(
        f"--task: '{column.name}' holds {len(ordered):,} different whole numbers, {ordered[0]:g} "
        f"to {ordered[-1]:g}",
        fix="if they are classes, add --task single_label; if they are quantities, --task "
        "regression",
    )


def _ask_if_many(
    column: LabelColumn, options: LabelOptions, report: Report, *, are_words: bool
) -> None:
    """Ask about classes of which most have a single row."""
    count = len({options.renames.get(str(value), str(value)) for value in column.values})
    rows = int((column.codes >= 0).sum())
    if count > SURELY_CLASSES and 2 * count > rows:
        fix = "is --label_column the right column? If they are classes, add --task single_label"
        fix += "" if are_words else "; if they are quantities, --task regression"
        among = f", one of {count:,} different labels in {counted(rows, 'row')}"
        _ask(column, 0, fix, report, among)


def _ask_about_cells(column: LabelColumn, places: Mapping[str, int], report: Report) -> None:
    """Ask about words that may be several labels.

    Args:
        column: Of the labels.
        places: Of these words among its values.
        report: For the question.
    """
    for word, place in places.items():
        if looks_printed(word) and parse_list(word) is None:
            fix = f"for several labels, {labels.AS_JSON}; {_AS_CLASS}"
            _ask(column, place, fix, report, ", several values as a program prints them")
    if separated := find_separator(list(places)):
        separator, word = separated
        fix = f"if these are several labels, add --label_separator '{separator}'; {_AS_CLASS}"
        _ask(column, places[word], fix, report)


def warn_of_sets(column: LabelColumn, options: LabelOptions, report: Report) -> None:
    """Warn of words that look like several labels in a cell, where a row has one label."""
    words = [str(value) for value in column.values if str(value) not in options.renames]
    if separated := find_separator(words):
        report.warning(
            f"'{column.name}' holds {separated[1]!r}, which looks like several labels with "
            f"{separated[0]!r} between them, and is read as one class"
        )


def find_separator(words: Sequence[str]) -> tuple[str, str] | None:
    """Return what seems to separate several labels in a cell, and the first cell that has it.

    Either every part of a cell is itself a label, or most cells have the separator and consist of
    no more parts than there are such cells. A semicolon or a bar counts in any cell.

    Args:
        words: The different labels.
    """
    names = {word.strip() for word in words}
    for word in words:
        for separator in _joints(word, names):
            if all(part.strip() in names for part in word.split(separator)):
                return separator.strip() or separator, word
    signs = Counter(
        sign
        for word in words
        for sign in {sign.strip() for sign in re.findall(r"[\W_]+", word.strip())}
        if sign
    )
    for sign, _ in signs.most_common():
        cells = {
            word: [part.strip() for part in word.split(sign)] for word in words if sign in word
        }
        cells = {word: parts for word, parts in cells.items() if all(parts)}
        parts = {*itertools.chain(*cells.values())}
        are_short = all(len(part.split()) <= _MOST_WORDS for part in parts)
        are_few = 2 * len(cells) > len(words) and len(parts) <= len(cells)
        if cells and are_short and (are_few or sign in _USUAL_SEPARATORS):
            return sign, next(iter(cells))
    return None


def _joints(word: str, names: set[str]) -> Iterator[str]:
    """Yield what is between a label at the beginning of a word and the next label in it."""
    if len(word) > _LONGEST_JOINED:
        return
    for end in range(1, len(word) - 1):
        if word[:end] not in names:
            continue
        for start in range(end + 1, len(word)):
            rest = word[start:]
            joint = word[end:start]
            is_sign = re.search(r"[\W_]", joint) is not None  # in "aba" no letter is a separator
            if is_sign and any(rest[:stop] in names for stop in range(1, len(rest) + 1)):
                yield joint


def check_order(dataset: DatasetDict, options: LabelOptions, report: Report) -> None:
    """Report classes of ``--task ordinal`` whose order is not known.

    Args:
        dataset: Its ``label`` is a ``ClassLabel``.
        options: How labels are written.
        report: Where the error is added.
    """
    names = targets.class_names(dataset["train"])
    flag = f"--label_order {join_values(options.names)}"
    if len(names) < FEWEST_ORDERED:
        report.error(
            f"--task ordinal: the labels are {counted(len(names), 'class')}; expected "
            f"{FEWEST_ORDERED} or more",
            fix="use --task single_label",
        )
    elif options.is_ordered:
        if set(names) != set(options.names):
            report.error(f"{flag}: the classes are {list_names(names)}")
    elif not numbers.have_order(names, options.names):
        report.error(
            f"--task ordinal: the order of the classes {list_names(names)} in "
            f"'{options.columns[0]}' is not known",
            fix="add --label_order LOWEST,...,HIGHEST with all of them",
        )
