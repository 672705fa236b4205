"""Which classes have an order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.data import labels, numeric_names, targets
from finetune.data.several import joined
from finetune.data.targets import class_names
from finetune.errors import UserError, counted

if TYPE_CHECKING:
    from datasets import DatasetDict

#: An order of fewer classes tells nothing.
FEWEST_ORDERED = 3
#: Names with a number that orders them, and not such as ``<10``.
_NUMBERED = re.compile(r"[^<>\u2264\u2265]*\d")


def refuse_unordered(
    dataset: DatasetDict,
    given: Sequence[str],
    known: Sequence[str],
    called: str = "label",
    places: labels.Places = labels.row_numbers,
) -> None:
    """Refuse classes whose order is not known.

    Args:
        dataset: Its ``label`` is a ``ClassLabel``.
        given: Classes of ``--label_order``; may be none.
        known: Of the recipe, in their order; may be none.
        called: What the user calls the column.
        places: Returns the positions of rows of a split, by their ``id``.

    Raises:
        UserError: if there are others or fewer, or only two; of words among numbers with the first
            such row.
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
        if idle := [each for each in given if each not in names]:
            raise UserError(
                f"--label_order {joined(given)}: no row has the class {labels.listed(idle)} "
                f"(the classes: {labels.listed(names)})"
            )
    elif not numeric_names.in_order(names, known):
        if 2 * sum(_NUMBERED.match(name) is not None for name in names) > len(names):
            likely = sorted(names, key=_naturally)
            listed = joined(likely[:5]) + ",..." * (len(names) > 5)
        else:  # an order by letters would be taken over, and is none
            listed = "LOWEST,...,HIGHEST"
        order = f"--label_order {shlex.quote(listed)}"
        words = [each for each in names if not numeric_names.are_numbers([each])]
        if 2 * len(words) < len(names) and (first := _first_of(dataset, words, places)):
            raise UserError(
                f"--task ordinal: {called!r} holds {first}, while {len(names) - len(words):,} of "
                f"{len(names):,} classes are numbers: correct it, leave it empty if it is missing, "
                f"or add {order}, from the lowest to the highest"
            )
        raise UserError(
            f"--task ordinal: the order of the classes {labels.listed(names)} is not known; add "
            f"{order}, from the lowest to the highest"
        )


def _naturally(name: str) -> tuple[Any, ...]:
    """Return a key that sorts numbers, also those in words, as numbers: ``grade 10`` is last."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return (*numeric_names.natural(name)[:2], [int(p) if n % 2 else p for n, p in enumerate(parts)])


def _first_of(dataset: DatasetDict, names: Sequence[str], places: labels.Places) -> str:
    """Return the class of the first row that has one of these, and where it is; empty if none."""
    for split, rows in dataset.items():
        theirs, column = class_names(rows), targets.values(rows)
        wanted = {number for number, name in enumerate(theirs) if name in names}
        row = next((row for row, each in enumerate(column) if each in wanted), None)
        if row is not None:
            return f"{theirs[column[row]]!r} ({labels.place(rows, split, places, row)})"
    return ""
