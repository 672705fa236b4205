"""Bring the labels of any source to one ``ClassLabel``, in a deterministic order."""

from __future__ import annotations

import functools
import math
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, Json, Value

from finetune.data import ROW, alike, arrow, placeholders, targets
from finetune.data.cells import list_in
from finetune.data.numeric_names import exact, has_fractions, natural
from finetune.data.several import joined_pairs, pairs_in
from finetune.data.targets import class_names
from finetune.errors import UserError, counted

_STRAY = 0.05  # labels of at most this share of the rows can be strays
#: From a split and the row number of rows to where they are, for messages.
Places = Callable[[str, Sequence[int]], str]


def listed(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and the number of others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + more


def row_numbers(split: str, rows: Sequence[int]) -> str:
    """Return the numbers of rows, from 1: their places where no file is known."""
    return f"row{'s' * (len(rows) > 1)} {', '.join(str(each + 1) for each in rows[:5])}"


def place(rows: Dataset, split: str, places: Places, row: int) -> str:
    """Return where a row is, by its number among ``rows``: ``test data, line 7``."""
    number = int(rows[row][ROW]) if ROW in rows.column_names else row
    return ", ".join(filter(None, (f"{split} data", places(split, [number]))))


def encode(
    dataset: DatasetDict,
    names: Sequence[str],
    note: Callable[[str], None] = lambda sentence: None,
    called: str = "label",
    places: Places = row_numbers,
    *,
    fractions: bool = False,
) -> DatasetDict:
    """Return ``dataset`` with its ``label``, none missing, as one ``ClassLabel`` for all splits.

    If all labels are among the ``names`` of the recipe, the classes take their order; otherwise
    they are sorted, numbers as numbers. Numbers are not given other names: ``1`` is called ``1``.

    Args:
        dataset: Splits with ``label``.
        names: Those of the recipe; may be empty.
        note: Called with a sentence if the values are not the names of the classes.
        called: What the user calls the column.
        places: Returns the positions of rows of a split, by their row number.
        fractions: Whether numbers with a fraction can be classes.

    Raises:
        UserError: if the labels are lists, numbers with a fraction, or 1 and "1" in one split; it
            names the column and the first such row.
    """
    read = _all_read(dataset, called, places, fractions)
    for sentence in dict.fromkeys(filter(None, map(_naming, dataset.values()))):
        note(sentence)
    present = _present(read)
    theirs = class_names(dataset["train"])
    if present <= set(names):
        ordered = [name for name in names if name in present or set(theirs) == set(names)]
    else:
        ordered = theirs + sorted(present - set(theirs), key=natural)
    return DatasetDict(
        {split: _with_label(rows, ordered, read[split]) for split, rows in dataset.items()}
    )


def mapping(text: str) -> dict[str, str]:
    """Return the names that ``--label_map`` gives, by the labels they stand for.

    Raises:
        UserError: if it is not ``LABEL=NAME,LABEL=NAME``.
    """
    found: dict[str, str] = {}
    for part, label, name in pairs_in(text):
        if not (label and name):
            raise UserError(f"--label_map {text}: expected LABEL=NAME,LABEL=NAME, found '{part}'")
        if label in found:
            raise UserError(f"--label_map {text}: '{label}' is given two names")
        found[label] = name
    return found


def mapped(
    dataset: DatasetDict,
    names: Mapping[str, str],
    called: str = "label",
    places: Places = row_numbers,
    *,
    fractions: bool = False,
) -> tuple[DatasetDict, list[str]]:
    """Return ``dataset`` with other names for some labels, and those of ``names`` it lacks; the
    rest as in :func:`encode`.

    Args:
        dataset: Splits with ``label``, none missing.
        names: The new names, by the labels.
        called: What the data calls the column.
        places: Returns the positions of rows of a split, by their row number.
        fractions: Whether numbers with a fraction can be classes.
    """
    if not names:
        return dataset, []
    read = _all_read(dataset, called, places, fractions)
    renamed = {}
    for split, rows in dataset.items():
        words = pa.array([names.get(name, name) for name in read[split].names], pa.string())
        column = words.take(pa.array(read[split].codes))
        rest = rows.remove_columns("label")
        renamed[split] = arrow.with_column(rest, "label", column, Value("string"))
    return DatasetDict(renamed), sorted(names.keys() - _present(read))


def refuse_unmapped(unmapped: Sequence[str], dataset: DatasetDict) -> None:
    """Refuse names in ``--label_map`` that the data to train on lacks; other data may lack them.

    Raises:
        UserError: with the labels there are.
    """
    if unmapped:
        raise UserError(
            f"--label_map: no label {listed(unmapped)} in the data (labels: "
            f"{listed(class_names(dataset['train']))})"
        )


def remarks(dataset: DatasetDict, *, renames: bool = False) -> list[str]:
    """Return sentences about classes that look like mistakes, with advice; none are merged.

    Args:
        dataset: Splits with one common feature ``label``.
        renames: Whether there is ``--label_map``.
    """
    if not (names := class_names(dataset["train"])):
        return []
    counts: Counter[int] = Counter()
    for rows in dataset.values():
        counts.update(targets.counts(rows))
    present = {names[label]: count for label, count in counts.items() if 0 <= label < len(names)}
    written: dict[Decimal | str, list[str]] = {}
    for name in sorted(present):
        written.setdefault(exact(alike.meant(name)), []).append(name)
    found = _missing(present, drops=renames)
    if codes := placeholders.codes(sorted(present)):
        found.append(
            f"a class is called {_with_rows(codes, present)}, unlike the others: if it stands for "
            "a missing label, leave the field empty in the data"
        )
    if several := [each for each in written.values() if len(each) > 1]:
        shown = "; ".join(" and ".join(map(_shown, each)) for each in several[:5])
        found.append(
            f"similar labels kept as separate classes: {shown}{', ...' * (len(several) > 5)}; "
            "to merge them, make them identical in the data"
            + (_merging(several, present) if renames else "")
        )
    numbers = {name for name in present if not natural(name)[0]}  # not words
    for strays, usual in ((numbers, "words"), (set(present) - numbers, "numbers")):
        rows = sum(present[name] for name in strays)
        if 0 < rows <= _STRAY * sum(present.values()):
            found.append(
                f"labels are {usual} except in {counted(rows, 'row')}: {listed(sorted(strays))}; "
                "if these are mistakes, correct them in the data"
            )
    if single := sorted(name for name, count in present.items() if count == 1):
        found.append(
            f"{len(single)} class{'es' * (len(single) > 1)} with a single row: {listed(single)}; "
            "one row cannot serve both training and evaluation: add rows, or remove such classes"
        )
    return found


def _missing(counts: Mapping[str, int], *, drops: bool) -> list[str]:
    """Return a sentence if classes have names that stand for a missing label.

    Args:
        counts: The rows of each class, by its name.
        drops: Whether there is ``--drop_invalid``.
    """
    names = [name for name in sorted(counts) if placeholders.is_no_class(name)]
    if not names or len(names) == len(counts):
        return []
    shown = _with_rows(names, counts)
    how = " (--drop_invalid leaves such rows out)" if drops else ""
    return [
        f"{'a class is' if len(names) == 1 else 'classes are'} called {shown}: if these labels are "
        f"missing, leave the field empty{how}"
    ]


def _with_rows(names: Sequence[str], counts: Mapping[str, int]) -> str:
    return ", ".join(f"'{name}' ({counted(counts[name], 'row')})" for name in names)


def _merging(ways: Sequence[Sequence[str]], counts: Mapping[str, int]) -> str:
    """Return the option that merges names into the most frequent of each; empty if it cannot be
    typed.
    """
    most = {tuple(each): max(each, key=lambda name: counts[name]) for each in ways}
    pairs = [(name, to) for each, to in most.items() for name in each if name != to]
    written = joined_pairs(pairs)
    try:
        is_read = mapping(written) == dict(pairs) and written.isascii() and written.isprintable()
    except UserError:
        is_read = False
    return f", or --label_map {shlex.quote(written)}" if is_read else ""


def _shown(name: str) -> str:
    """Return a quoted name, escaped if that is the only way to tell it from another one."""
    usual = unicodedata.is_normalized("NFC", name) and alike.EMOJI not in name
    return repr(name) if usual else ascii(name)


def refusal_of_lists(value: Any, place: str = "") -> str:
    """Return why lists and objects are refused as labels, to follow "holds"."""
    if isinstance(value, dict):
        return f"objects, such as {value!r}{place}: expected one label per row"
    return (
        f"lists, such as {value!r}{place}: several labels per row are --task multi_label; expected "
        "one label per row"
    )


def refusal_of_number(value: int, names: Sequence[str], called: str, place: str) -> str:
    """Return why a number is refused that is beyond the names of a ``ClassLabel``."""
    return (
        f"--label_column: '{called}' holds {value} ({place}), but its type has names for 0 to "
        f"{len(names) - 1} only ({listed(names)}): correct the value, or add its name to the "
        "ClassLabel of the column"
    )


def renumbered(rows: Dataset, names: Sequence[str], place: Callable[[int], str]) -> Dataset:
    """Return ``rows`` with labels renumbered to the class indices of a model.

    Args:
        rows: Of other data.
        names: Of the classes of the model.
        place: Returns where a row is in its source, by its row number.

    Raises:
        UserError: if there are labels that the model does not know.
    """
    read = _read(rows, "label", place, has_fractions(names))
    if not read.present <= set(names):
        refuse_unknown(rows, [[read.names[code]] for code in read.codes.tolist()], names, place)
    return _with_label(rows, names, read)


def refuse_unknown(
    rows: Dataset, cells: list[list[str]], names: Sequence[str], place: Callable[[int], str]
) -> None:
    """Refuse labels of rows, by name, that a model does not know; see :func:`renumbered`.

    Args:
        rows: With row number.
        cells: The labels of each row.
        names: Those that the model knows.
        place: Returns the position of a row, by its row number.

    Raises:
        UserError: with those there are, and where the first is.
    """
    unknown = {each for cell in cells for each in cell} - set(names)
    if unknown:
        row = next(row for row, cell in enumerate(cells) if not unknown.isdisjoint(cell))
        first = place(int(rows[row][ROW]))
        raise UserError(
            "the data has labels that the model does not know: "
            f"{listed(sorted(unknown, key=natural))}{first and ', first in '}{first} (it knows: "
            f"{listed(names)})"
        )


@dataclass(frozen=True)
class _Labels:
    """The labels of rows: the different names, and the place among them of each row's."""

    names: Sequence[str]
    codes: np.ndarray

    @property
    def present(self) -> set[str]:
        """The names that occur."""
        return {self.names[code] for code in np.unique(self.codes).tolist()}


def _present(read: Mapping[str, _Labels]) -> set[str]:
    """Return the names that occur in any split."""
    return set().union(*(each.present for each in read.values()))


def _with_label(rows: Dataset, names: Sequence[str], read: _Labels) -> Dataset:
    """Return ``rows`` with the labels as read, encoded by their index in ``names``."""
    label = ClassLabel(names=list(names))
    if rows.features["label"] == label:
        return rows
    index = {name: number for number, name in enumerate(names)}
    numbers = np.array([index.get(name, -1) for name in read.names], dtype=np.int64)[read.codes]
    return arrow.with_column(rows.remove_columns("label"), "label", pa.array(numbers), label)


def _all_read(
    dataset: DatasetDict, called: str, places: Places, fractions: bool
) -> dict[str, _Labels]:
    return {
        split: _read(rows, called, functools.partial(place, rows, split, places), fractions)
        for split, rows in dataset.items()
    }


def _read(rows: Dataset, called: str, where: Callable[[int], str], fractions: bool) -> _Labels:
    """Return the class of each row by its name; refuse values that are no classes."""
    feature = rows.features["label"]
    if isinstance(feature, ClassLabel):
        numbers = np.asarray(arrow.column(rows, "label").to_numpy(), dtype=np.int64)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(feature.names)))
        if len(wrong):
            row = int(wrong[0])
            raise UserError(refusal_of_number(int(numbers[row]), feature.names, called, where(row)))
        return _Labels(feature.names, numbers)
    values, codes = arrow.distinct(rows, "label")
    names = {row: name_of(value) for row, value in values.items()}
    known: dict[str, Any] = {}

    def refuse(what: str) -> None:
        raise UserError(f"--label_column: '{called}' holds {what}")

    for row, name in names.items():
        value, other = values[row], known.setdefault(name, values[row])
        if type(other) is not type(value):
            refuse(
                f"both {other!r} and {value!r} ({where(row)}): expected one type; write one class "
                "in one way"
            )
        if value in (math.inf, -math.inf):
            refuse(f"{value} ({where(row)}): expected classes")
        if isinstance(value, dict) or list_in(value) is not None:
            refuse(refusal_of_lists(value, f" ({where(row)})"))
    numbered = {row: natural(name)[1] for row, name in names.items() if not natural(name)[0]}
    floats = any(isinstance(value, float) for value in known.values())
    if not fractions and (floats or len(numbered) == len(names)):
        for row, value in numbered.items():
            if not value.is_integer():
                refuse(
                    f"numbers with a fraction ({values[row]}), first in {where(row)}: expected "
                    "classes; is --label_column the right column?"
                )
    return _Labels(list(names.values()), codes)


def name_of(value: Any) -> str:
    """Return what a label is called: 1.0 is ``1``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _naming(rows: Dataset) -> str:
    """Return a sentence if labels are neither words nor whole numbers; else an empty one."""
    feature = rows.features["label"]
    kind = "json" if isinstance(feature, Json) else str(feature.dtype).rstrip("0123456789")
    return {
        "bool": "labels are booleans: the classes are called 'False' and 'True'",
        "float": "labels are floating-point numbers: the class of 1.0 is called '1'",
        "json": "labels are of several types: true is called 'True', 1 is called '1'",
    }.get(kind, "")
