"""Which task a column of labels is, and its labels in the form that the task has.

What decides are the training rows; what is doubtful is asked, never guessed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from datasets import ClassLabel, DatasetDict, List

from finetune.data import arrow, class_labels, labels, multi_labels, numbers, numeric_names
from finetune.data.cells import has_unit, list_in
from finetune.data.targets import class_names, is_set
from finetune.errors import UserError, counted
from finetune.tasks import doubtful
from finetune.tasks.orders import FEWEST_ORDERED

if TYPE_CHECKING:
    from datasets import Dataset

Name = Literal["single_label", "multi_label", "regression", "ordinal"]
#: What ``--task`` takes beside these.
AUTO = "auto"
#: So many different whole numbers can be anything; more of them are classes if they are numbered
#: without a gap, from 0 or 1.
_SURELY_CLASSES = 20
_OR_NUMBERS = "; if they are quantities, --task regression"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the labels of raw rows are read.

    Attributes:
        task: Its name, or ``auto``.
        columns: That hold the labels: ``label``, or several.
        names: Of the classes in the order of the recipe, or of ``label_order``; may be empty.
        ordered: Whether they are those of ``label_order``.
        renamed: Other names for labels.
        separator: Between the labels in a cell, or None.
        shown: What the user calls the columns, if not that.
        drop: Whether rows whose labels cannot be read are left out instead of refused.
        places: Returns the positions of rows of a split, by their ``id``.
    """

    task: str = AUTO
    columns: Sequence[str] = ("label",)
    names: Sequence[str] = ()
    ordered: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    shown: Sequence[str] = ()
    drop: bool = False
    places: labels.Places = labels.row_numbers

    @property
    def called(self) -> str:
        """What the user calls the only column, or the first of several."""
        return (self.shown or self.columns)[0]

    def holds(self, rows: Dataset, row: int, column: str | None = None) -> str:
        """Return what a row holds, and where: ``'queue' holds 'a;b' (train data, line 2)``."""
        value, where = rows[row][column or self.columns[0]], self.places
        place = labels.place(rows, "train", where, row)
        return f"'{column or self.called}' holds {value!r} ({place})"


def encoded(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    """Return splits whose ``label`` has one of the features of :mod:`finetune.data.targets`.

    Args:
        dataset: With the columns of labels, none missing.
        how: They are read, by a task with a name.
        note: Is given what is to be said of the labels.

    Returns:
        The splits, and those of ``how.renamed`` that do not occur.

    Raises:
        UserError: if the labels cannot be those of the task.
    """
    if how.separator is not None and how.task != "multi_label":
        raise UserError(f"--label_separator: a row has one label, with --task {how.task}")
    if how.task not in ENCODERS:
        raise UserError(f"--task {how.task}: not supported yet")
    return ENCODERS[how.task](dataset, how, note)


def decided(
    rows: Dataset, how: Reading, note: Callable[[str], None] = lambda sentence: None
) -> tuple[Name, str]:
    """Return the name of the task that the labels of training rows are, none missing, and why.

    Args:
        rows: Of training.
        how: The labels are read, by a task that is open.
        note: Is given what is doubtful of labels that are taken for classes.

    Raises:
        UserError: if they could be several; it names the column, the first such row and the flags.
    """
    if how.ordered:
        return "ordinal", "--label_order says the order of the classes"
    if len(how.columns) > 1:
        return _of_columns(_by_name(rows, "train", how), how)
    if how.separator:
        return "multi_label", f"the labels are separated by {how.separator!r}"
    feature = rows.features[how.columns[0]]
    if isinstance(feature, ClassLabel):
        return "single_label", "the labels are classes"
    if isinstance(feature, List):
        rows = _by_name(rows, "train", how)
        return _of_lists(rows, how, dict(enumerate(rows[how.columns[0]][:])))
    values, _ = arrow.distinct(rows, how.columns[0])
    distinct: dict[str, int] = {}  # the first row of each
    for row, each in values.items():
        distinct.setdefault(str(each), row)
    if set(distinct) <= set(how.names):
        return "single_label", "the labels are the classes of the recipe"
    lists = {row: found for row in distinct.values() if (found := list_in(values[row])) is not None}
    # where most are lists, or one surely is, it is said where the others are
    if 2 * len(lists) > len(distinct) or any(isinstance(values[row], list) for row in lists):
        return _of_lists(rows, how, lists)
    if any(isinstance(values[row], (bool, dict)) for row in distinct.values()):
        return "single_label", "the labels are classes"
    return _of_values(rows, how, {each: (row, values[row]) for each, row in distinct.items()}, note)


def _by_name(rows: Dataset, split: str, how: Reading) -> Dataset:
    """Return rows of a split with names instead of the numbers of a ``ClassLabel``."""
    where = functools.partial(labels.place, rows, split, how.places)
    return class_labels.named(rows, how.columns, how.shown or how.columns, where)


def _of_values(
    rows: Dataset,
    how: Reading,
    distinct: Mapping[str, tuple[int, Any]],
    note: Callable[[str], None],
) -> tuple[Name, str]:
    """Return the task of different words and numbers, with the first row of each."""
    parsed = {shown: numeric_names.number(value) for shown, (_, value) in distinct.items()}
    words = {shown: distinct[shown][0] for shown, each in parsed.items() if each is None}
    read = {shown: each for shown, each in parsed.items() if each is not None}
    found = [each for each in read.values() if math.isfinite(each)]
    strays = [shown for shown, each in read.items() if not math.isfinite(each)]
    if strays and not found:  # words that happen to be read as numbers
        words |= {shown: distinct[shown][0] for shown in strays}
    if words and any(not each.is_integer() for each in found) and len(words) < len(found):
        where = how.holds(rows, next(iter(words.values())))
        raise UserError(
            f"--task: {where}, while {len(found):,} of {len(parsed):,} different labels are "
            f"numbers, such as {found[0]:g}: if they are quantities, --task regression says where "
            "the others are; if they are classes, add --task single_label"
        )
    if not words:
        doubtful.refuse_thousands(rows, how, distinct)
        task, why = _of_numbers(found, how.called)
        if task == "regression":
            return task, why
        if strays := [each for each in strays if each not in how.renamed]:
            raise UserError(
                f"--task: {how.holds(rows, distinct[strays[0]][0])}, while all others are whole "
                "numbers: if the label is missing, leave it empty; if it is the name of a class, "
                "add --task single_label"
            )
    else:
        task, why = "single_label", "the labels are words"
        doubtful.refuse_words(rows, how, words)
    merged = {how.renamed.get(each, each) for each in distinct}
    if len(merged) > _SURELY_CLASSES and 2 * len(merged) > len(rows):
        raise UserError(
            f"--task: {how.holds(rows, 0)}, one of {len(merged):,} different labels in "
            f"{counted(len(rows), 'row')}: is --label_column the right column? If they are "
            f"classes, add --task single_label{_OR_NUMBERS * (not words)}"
        )
    if (units := [each for each in words if has_unit(each)]) and 2 * len(units) > len(distinct):
        note(
            f"'{how.called}' holds numbers with a unit, taken for classes: {labels.listed(units)}; "
            "if they are quantities, leave out the unit and add --task regression"
        )
    return task, why


def _of_lists(rows: Dataset, how: Reading, lists: Mapping[int, list[Any]]) -> tuple[Name, str]:
    """Return the task of labels that are lists, by their rows."""
    inner = [(row, each) for row, cell in lists.items() for each in cell]
    floats = [(row, each) for row, each in inner if isinstance(each, float)]
    if floats and not any(isinstance(each, str) for _, each in inner):
        are_whole = all(each.is_integer() for _, each in floats)
        raise UserError(
            f"--task: {how.holds(rows, floats[0][0])}, a list of numbers with a decimal point: "
            "if they are quantities, add --task regression; if each is for a label, write "
            f"{multi_labels.AS_COLUMNS}{'; if they name labels, --task multi_label' * are_whole}"
        )
    if inner and all(isinstance(each, int) and each in (0, 1) for _, each in inner):
        raise UserError(
            f"--task: {how.holds(rows, inner[0][0])}, a list of 0 and 1: if each is for a label, "
            f"write {multi_labels.AS_COLUMNS}; if they name labels, add --task multi_label; if "
            "they are quantities, --task regression"
        )
    shown = repr(rows[inner[0][0]][how.columns[0]]) if inner else "none"
    return "multi_label", f"the labels are lists, such as {shown}"


def _of_columns(rows: Dataset, how: Reading) -> tuple[Name, str]:
    several = f"the columns {', '.join(how.columns)}"
    values = {name: rows[name][:] for name in how.columns}
    numbers = {name: [numeric_names.number(each) for each in values[name]] for name in values}
    truths = {name: [multi_labels.truth(each) for each in values[name]] for name in values}
    if not any(None in each for each in truths.values()):
        return "multi_label", f"{several} hold 0 and 1"
    words = {
        (name, row): truths[name][row] is not None
        for name in values
        for row, number in enumerate(numbers[name])
        if number is None
    }
    if words:  # a truth value among them is wrong only beside numbers
        name, row = min(words, key=lambda each: words[each])
        raise UserError(
            f"--label_columns: {how.holds(rows, row, name)}: expected 0 and 1, or true and "
            "false, or numbers in all of these columns; one column of classes is --label_column"
        )
    distinct = sorted({each for found in numbers.values() for each in found if each is not None})
    if len(distinct) == 2:
        name = next(each for each in how.columns if distinct[0] in numbers[each])
        where = how.holds(rows, numbers[name].index(distinct[0]), name)
        raise UserError(
            f"--label_columns: {where}, and {several} hold {distinct[0]:g} and {distinct[1]:g} "
            "only: if these are labels, write 0 and 1 instead; if they are quantities, add "
            "--task regression"
        )
    strays = {
        name: [row for row, each in enumerate(found) if each is None]
        for name, found in truths.items()
    }
    if 2 * min(map(len, strays.values())) < len(rows):
        name = min((each for each in strays if strays[each]), key=lambda each: len(strays[each]))
        raise UserError(
            f"--label_columns: {how.holds(rows, strays[name][0], name)}, while others hold 0 or "
            "1: if these are labels, correct it and add --task multi_label; if they are "
            "quantities, add --task regression"
        )
    return "regression", f"{several} hold numbers"


def _of_numbers(values: list[float], called: str) -> tuple[Name, str]:
    """Return the task of labels that are these different numbers, in a column."""
    if fractions := [each for each in values if not each.is_integer()]:
        why = f"the labels are numbers with a fraction, such as {fractions[0]:g}"
        if FEWEST_ORDERED <= len(values) <= _SURELY_CLASSES:
            why += "; --task ordinal if they are grades"
        return "regression", why
    ordered = np.unique(values)
    gapless = ordered[0] in (0, 1) and ordered[-1] - ordered[0] == len(ordered) - 1
    if len(ordered) <= _SURELY_CLASSES or gapless:
        why = f"the labels are {len(ordered)} different whole numbers"
        if FEWEST_ORDERED <= len(ordered) <= _SURELY_CLASSES:
            why += "; --task ordinal if their order counts"
        return "single_label", why
    raise UserError(
        f"--task: '{called}' holds {len(ordered):,} different whole numbers, {ordered[0]:g} to "
        f"{ordered[-1]:g}: if they are classes, add --task single_label; if they are quantities, "
        "--task regression"
    )


def _all_by_name(dataset: DatasetDict, how: Reading) -> DatasetDict:
    return DatasetDict({split: _by_name(rows, split, how) for split, rows in dataset.items()})


def _classes(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    fractions = how.task == "ordinal"
    renamed, lacking = labels.mapped(
        dataset, how.renamed, how.called, how.places, fractions=fractions
    )
    found = labels.encode(renamed, how.names, note, how.called, how.places, fractions=fractions)
    return found, lacking


def _label_sets(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    if len(how.columns) > 1 or not is_set(dataset["train"]):  # whose names have an order
        dataset = _all_by_name(dataset, how)
    return multi_labels.encode(
        dataset,
        how.columns,
        names=how.names,
        renamed=how.renamed,
        separator=how.separator,
        shown=how.shown,
        places=how.places,
        note=note,
    )


def _ordered_classes(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    """Return the same, numbers in their order whatever that of the source is."""
    found, lacking = _classes(dataset, how, note)
    names = class_names(found["train"])
    if len(names) > _SURELY_CLASSES and numeric_names.has_fractions(names):
        raise UserError(
            f"--task ordinal: '{how.called}' holds {len(names):,} different numbers, some with a "
            f"fraction; of more than {_SURELY_CLASSES} such, use --task regression"
        )
    if numeric_names.are_numbers(names) and not numeric_names.in_order(names, how.names):
        found = labels.encode(found, sorted(names, key=float))
    return found, lacking


def _numbers(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    if how.renamed:
        raise UserError("--label_map: the labels are numbers, which have no other names")
    called = dict(zip(how.columns, how.shown, strict=True)) if how.shown else {}
    encoded = numbers.encoded(
        _all_by_name(dataset, how),
        how.columns,
        called,
        drop=how.drop,
        note=note,
        places=how.places,
    )
    return encoded, []


#: By the names of tasks.
ENCODERS: dict[
    str,
    Callable[[DatasetDict, Reading, Callable[[str], None]], tuple[DatasetDict, list[str]]],
] = {
    "single_label": _classes,
    "ordinal": _ordered_classes,
    "multi_label": _label_sets,
    "regression": _numbers,
}
