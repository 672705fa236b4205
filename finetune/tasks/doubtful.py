"""Words that may be several labels, or a number, where one of them is the label of a row."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

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
