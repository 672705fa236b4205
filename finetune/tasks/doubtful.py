"""Words that may be several labels, or a number, where one of them is the label of a row."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from datasets import ClassLabel

from finetune.data import arrow, multi_labels
from finetune.data.cells import about_comma, printed, separated
from finetune.data.several import joined
from finetune.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.tasks.reading import Reading

OR_CLASS = "if it is the name of a class, add --task single_label"


def refuse_words(rows: Dataset, how: Reading, words: Mapping[str, int]) -> None:
    """Refuse labels that may be several in a cell, or numbers with a comma; by their first rows."""
    words = {each: row for each, row in words.items() if each not in how.renamed}
    if several := _printed(words):
        word, form = several
        raise UserError(
            f"--task: {how.holds(rows, words[word])}, {form}: for several labels, "
            f"{multi_labels.AS_JSON}; {OR_CLASS}"
        )
    commas = [(each, why) for each in words if (why := about_comma(each))]
    if 2 * len(commas) > len(words):
        each, why = commas[0]
        raise UserError(
            f"--task: {how.holds(rows, words[each])}, which --task regression does not read "
            f"({why}); for several labels, add --label_separator ','; {OR_CLASS}"
        )
    if several := separated(list(words)):
        sign, each = several
        raise UserError(
            f"--task: {how.holds(rows, words[each])}: if these are several labels, add "
            f"--label_separator '{sign}'; {OR_CLASS}"
        )


def refuse_thousands(rows: Dataset, how: Reading, distinct: Mapping[str, tuple[int, Any]]) -> None:
    """Refuse numbers whose point may separate thousands, ``1.300`` beside ``101``: each that has a
    point has three digits after it, and the others are less than 1,000.

    Args:
        rows: Of training.
        how: They are read.
        distinct: The different labels, all numbers, with the first row of each and its value.

    Raises:
        UserError: with the first row that has a point.
    """
    written = {each: row for each, (row, value) in distinct.items() if isinstance(value, str)}
    pointed = [each for each in written if re.fullmatch(r"\d{1,3}\.\d{3}", each.strip())]
    whole = [each for each in written if re.fullmatch(r"\d{1,3}", each.strip())]
    if not (pointed and whole) or len(pointed) + len(whole) < len(distinct):
        return
    if max(map(float, whole)) <= 1 and max(map(float, pointed)) <= 1:  # scores from 0 to 1
        return
    first = max(pointed, key=float)
    raise UserError(
        f"--task: {how.holds(rows, written[first])}, while others are like "
        f"{max(whole, key=float)!r}: if the point separates thousands, leave it out in the data; "
        "if these are fractions, add --task regression"
    )


def refuse_several(rows: Dataset, how: Reading, why: str) -> None:
    """Refuse labels that may be several in a cell, where a row has one.

    Args:
        rows: Of training, with ``label``, none missing.
        how: They are read.
        why: A row has one, for the message.

    Raises:
        UserError: with the first such row, and how to say that it is the name of a class.
    """
    if isinstance(rows.features["label"], ClassLabel):
        return
    values, _ = arrow.distinct(rows, "label")
    words = {
        value: row
        for row, value in values.items()
        if isinstance(value, str) and value not in how.renamed
    }
    several, (word, form) = separated(list(words)), _printed(words) or ("", "")
    if several and not word:
        word, form = several[1], f"which looks like several labels with '{several[0]}' between them"
    if word:
        raise UserError(
            f"--label_column: {how.holds(rows, words[word])}, {form}: {why}; if it is the name "
            f"of a class, add --label_map {shlex.quote(joined([f'{word}=NAME']))}"
        )


def _printed(words: Iterable[str]) -> tuple[str, str] | None:
    """Return the first text that is several values in another form than JSON, and which form."""
    return next(((each, form) for each in words if (form := printed(each))), None)
