"""Which task a column of labels is, and its labels in the form that the task has.

What decides are the training rows; what is doubtful is asked, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from datasets import ClassLabel, List

from finetune.data import labels, multi_labels, numbers
from finetune.data.several import joined
from finetune.data.targets import class_names
from finetune.errors import UserError, counted

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Name = Literal["single_label", "multi_label", "regression", "ordinal"]
#: What ``--task`` takes beside these.
AUTO = "auto"
#: So many different whole numbers can be anything; more of them are classes if they are numbered
#: without a gap, from 0 or 1.
_SURELY_CLASSES = 20
#: An order of fewer classes tells nothing.
FEWEST_ORDERED = 3


def _rows(split: str, rows: Sequence[int]) -> str:
    return f"row{'s' * (len(rows) > 1)} {', '.join(str(each + 1) for each in rows[:5])}"


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
    places: Callable[[str, Sequence[int]], str] = _rows


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


def decided(rows: Dataset, how: Reading) -> tuple[Name, str]:
    """Return the name of the task that the labels of training rows are, none missing, and why.

    Raises:
        UserError: if they could be several.
    """
    if how.ordered:
        return "ordinal", "--label_order says the order of the classes"
    if len(how.columns) > 1:
        return _of_columns(rows, how)
    if how.separator:
        return "multi_label", f"the labels are separated by {how.separator!r}"
    feature, values = rows.features[how.columns[0]], rows[how.columns[0]][:]
    if isinstance(feature, ClassLabel):
        return "single_label", "the labels are classes"
    shown = next((repr(each) for each in values if each not in (None, [])), "none")
    if isinstance(feature, List):
        inner = {type(each) for row in values if row for each in row}
        if float in inner:
            return "regression", f"the labels are lists of numbers, such as {shown}"
        return "multi_label", f"the labels are lists, such as {shown}"
    distinct = {str(each): each for each in values}
    if set(distinct) <= set(how.names):
        return "single_label", "the labels are the classes of the recipe"
    lists = [
        each
        for each in distinct.values()
        if isinstance(each, list) or (isinstance(each, str) and labels.is_list(each))
    ]
    # where most are lists, or one surely is, it is said where the others are
    if 2 * len(lists) > len(distinct) or any(isinstance(each, list) for each in lists):
        return "multi_label", f"the labels are lists, such as {lists[0]!r}"
    if any(isinstance(each, (bool, dict)) for each in distinct.values()):
        return "single_label", "the labels are classes"
    parsed = {shown: labels.number(each) for shown, each in distinct.items()}
    words = [shown for shown, each in parsed.items() if each is None]
    found = [each for each in parsed.values() if each is not None]
    if words and any(not each.is_integer() for each in found) and len(words) < len(found):
        raise UserError(
            f"--task: {len(found):,} of {len(parsed):,} different labels are numbers, such as "
            f"{found[0]:g}, and {len(words):,} {'is' if len(words) == 1 else 'are'} not, such as "
            f"{words[0]!r}: if they are quantities, --task regression says where the others are; "
            "if they are classes, add --task single_label"
        )
    return ("single_label", "the labels are words") if words else _of_numbers(found)


def _of_columns(rows: Dataset, how: Reading) -> tuple[Name, str]:
    several = f"the columns {', '.join(how.columns)}"
    values = {
        name: [labels.number(each) for each in rows[name][:]] for name in how.columns
    }  # None: no number
    other = next((name for name, each in values.items() if None in each), None)
    if other is None:
        if set().union(*values.values()) <= {0.0, 1.0}:
            return "multi_label", f"{several} hold 0 and 1"
        return "regression", f"{several} hold numbers"
    row = values[other].index(None)
    place = how.places("train", [rows[row]["id"] if "id" in rows.column_names else row])
    raise UserError(
        f"--label_columns: '{other}' holds {rows[row][other]!r} (train data, {place}): expected 0 "
        "and 1, or numbers; one column of classes is given by --label_column"
    )


def _of_numbers(values: list[float]) -> tuple[Name, str]:
    """Return the task of labels that are these different numbers."""
    if fractions := [each for each in values if not each.is_integer() and math.isfinite(each)]:
        return "regression", f"the labels are numbers with a fraction, such as {fractions[0]:g}"
    ordered = np.unique(values)
    gapless = ordered[0] in (0, 1) and ordered[-1] - ordered[0] == len(ordered) - 1
    if len(ordered) <= _SURELY_CLASSES or gapless:
        why = f"the labels are {len(ordered)} different whole numbers"
        if FEWEST_ORDERED <= len(ordered) <= _SURELY_CLASSES:
            why += "; --task ordinal if their order counts"
        return "single_label", why
    raise UserError(
        f"--task: the labels are {len(ordered):,} different whole numbers, {ordered[0]:g} to "
        f"{ordered[-1]:g}: if they are classes, add --task single_label; if they are quantities, "
        "--task regression"
    )


def _classes(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    renamed, lacking = labels.mapped(dataset, how.renamed)
    return labels.encode(renamed, how.names, note), lacking


def _label_sets(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    return multi_labels.encode(
        dataset,
        how.columns,
        names=how.names,
        renamed=how.renamed,
        separator=how.separator,
        shown=how.shown,
        places=how.places,
    )


def _ordered_classes(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    """Return the same, numbers in their order whatever that of the source is."""
    found, lacking = _classes(dataset, how, note)
    names = class_names(found["train"])
    if labels.are_numbers(names) and not labels.in_order(names, how.names):
        found = labels.encode(found, sorted(names, key=float))
    return found, lacking


def refuse_unordered(dataset: DatasetDict, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse classes whose order is not known.

    Args:
        dataset: Its ``label`` is a ``ClassLabel``.
        given: Classes of ``--label_order``; may be none.
        known: Of the recipe, in their order; may be none.

    Raises:
        UserError: if there are others, or only two.
    """
    names = class_names(dataset["train"])
    if len(names) < FEWEST_ORDERED:
        raise UserError(
            f"--task ordinal: the labels are {counted(len(names), 'class')}, and an order says "
            f"something of {FEWEST_ORDERED} or more; use --task single_label"
        )
    if given:
        if unknown := [each for each in names if each not in given]:
            raise UserError(
                f"--label_order {joined(given)}: the labels are also {labels.listed(unknown)}"
            )
    elif not labels.in_order(names, known):
        raise UserError(
            f"--task ordinal: the order of the classes {labels.listed(names)} is not known; add "
            f"--label_order {joined(names[:5])}{',...' * (len(names) > 5)}, from the lowest to "
            "the highest"
        )


def _numbers(
    dataset: DatasetDict, how: Reading, note: Callable[[str], None]
) -> tuple[DatasetDict, list[str]]:
    if how.renamed:
        raise UserError("--label_map: the labels are numbers, which have no other names")
    called = dict(zip(how.columns, how.shown, strict=True)) if how.shown else {}
    encoded = numbers.encoded(
        dataset, how.columns, called, drop=how.drop, note=note, places=how.places
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
