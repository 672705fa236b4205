"""Rows that a person corrects: ``suspects.csv``, and what comes back from it.

A row is found again by the digest of its text or image, so that a file of another data set, or of
one that has changed, corrects nothing by mistake. Rows are corrected after the splits are made, so
that a corrected training has the test rows of the one before.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict

from finetune.data import arrow, delimited, digests, files, targets
from finetune.errors import UserError, counted, suggestion
from finetune.runtime.files import replacing

FILE = "suspects.csv"
#: What a person writes into the last column for a row that is to be left out.
DROP = "drop"
_KEYS = ("split", "id", "digest")
COLUMNS = (
    *("split", "id", "place", "text", "label", "suggested", "probability", "why", "new_label"),
    *("digest", "run"),
)
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a file of corrections did.

    Attributes:
        file: Its name, as typed.
        sha256: Of its content.
        relabelled: Rows with another label now, by split.
        excluded: Rows left out, by split.
        run: The run whose suspects they were, as the file names it; empty if it names none.
    """

    file: str
    sha256: str
    relabelled: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, int] = field(default_factory=dict)
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A row of a file: which row it is about, and what is to become of it."""

    place: str
    split: str
    id: str
    digest: str
    label: str | None
    new: str | None  # None: left out


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows for a person to correct in a spreadsheet, as UTF-8 with a mark.

    Args:
        path: Of the file; one that is there is replaced.
        rows: By :data:`COLUMNS`; what a row lacks is empty. No cell is run as a formula.
    """
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        out.writerows([delimited.harmless(row.get(name)) for name in COLUMNS] for row in rows)
    return path


def edited(path: Path) -> bool:
    """Return whether a person has written something into a file."""
    rows = (row for chunk in files.chunks(path) for row in chunk.dictionaries())
    return path.exists() and any((row.get("new_label") or "").strip() for row in rows)


def digests_of(rows: Dataset, column: str, numbers: np.ndarray | None = None) -> list[str]:
    """Return the digests by which rows are found again.

    Args:
        rows: With ``column``.
        column: What the model reads.
        numbers: Of the rows, all if None.
    """
    numbers = np.arange(len(rows)) if numbers is None else numbers
    if column != "text":
        return [f"x{each.tobytes().hex()}" for each in digests.digests(rows, column).exact[numbers]]
    return [digest_of(text) for text in arrow.column(rows.select(numbers), "text").to_pylist()]


def digest_of(text: str) -> str:
    """Return the digest of a text; a spreadsheet takes it for a word, not for a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def apply(
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
    *,
    relabel: Sequence[str],
    exclude: Sequence[str],
    note: Callable[[str], None],
) -> tuple[DatasetDict, list[Applied]]:
    """Return the splits with rows relabelled and left out as the files say, and what was done.

    Args:
        splits: Made of ``source``, with ``id``, ``label`` and ``column``.
        source: As it was read.
        column: What the model reads.
        relabel: Files with ``new_label``, of which rows without one stay as they are. Each begins
            with the labels that the one before it left.
        exclude: Files of rows that are left out.
        note: Called with a sentence about each file.

    Raises:
        UserError: if a file is not of these rows, names unknown labels, or corrects nothing.
    """
    done = []
    files_of = {"--relabel": relabel, "--exclude": exclude}
    for flag, name in ((flag, name) for flag, names in files_of.items() for name in names):
        wanted, run = _read(flag, name, splits["train"])
        places = _placed(flag, wanted, splits, source, column)
        found = _Counts()
        for number, each in enumerate(wanted):
            found.add(each, places.get(number))
        content = Path(name).expanduser().read_bytes()
        done.append(
            Applied(
                file=name,
                sha256=hashlib.sha256(content).hexdigest(),
                relabelled=found.relabelled,
                excluded=found.excluded,
                run=run,
            )
        )
        note(found.sentence(flag, name))
        news: dict[str, dict[int, str | None]] = {split: {} for split in splits}
        for number, (split, at) in places.items():
            news[split][at] = wanted[number].new
        splits = DatasetDict({split: _corrected(splits[split], news[split]) for split in news})
    return splits, done


def _read(flag: str, name: str, rows: Dataset) -> tuple[list[_Wanted], str]:
    """Return what a file wants, and the run whose suspects these are; empty if it names none.

    Raises:
        UserError: if it is not such a file, or wants nothing.
    """
    path, names = files.existing(name), targets.class_names(rows)
    layout, _ = files.inspected(path)
    found, run = list[_Wanted](), ""
    seen: dict[tuple[str, str], _Wanted] = {}
    for number, row in enumerate(
        row for chunk in files.chunks(path, layout=layout) for row in chunk.dictionaries()
    ):
        needed = [*_KEYS, *(["new_label"] if flag == "--relabel" else [])]
        if lacking := [each for each in needed if each not in row]:
            raise UserError(
                f"{flag} {name}: no column '{lacking[0]}' (columns: {', '.join(row)}); expected a "
                f"{FILE} of report or check, of which only 'new_label' is edited"
            )
        run = run or str(row.get("run") or "")
        place = f"{flag} {name}, {files.places(path, [number], layout)}"
        new = (row.get("new_label") or "").strip()
        if flag == "--relabel" and not new:
            continue
        if not row["digest"]:
            raise UserError(f"{place}: 'digest' must be as it was written: rows are found by it")
        leaves_out = flag == "--exclude" or (new == DROP and DROP not in names)
        each = _Wanted(
            place=place,
            split=str(row["split"]),
            id=str(row["id"]),
            digest=str(row["digest"]).strip(),
            label=row.get("label"),
            new=None if leaves_out else _label(place, new, rows, names),
        )
        other = seen.setdefault((each.split, each.id), each)
        if other.new != each.new:
            raise UserError(f"{place} and {other.place} want different things of one row")
        if other is each:
            found.append(each)
    if not found:
        raise UserError(
            f"{flag} {name}: no row has a 'new_label': write the right label there, or {DROP} to "
            "leave the row out; no other column is read for it"
        )
    return found, run


def _label(place: str, new: str, rows: Dataset, names: Sequence[str]) -> str:
    """Return the name of a label, or a number as it is written.

    Raises:
        UserError: if there is no such label.
    """
    if names:
        several = _several(new) if targets.is_set(rows) else [new]
        for each in several:
            if each not in names:
                raise UserError(
                    f"{place}: there is no label '{each}'{suggestion(each, list(names))} (labels: "
                    f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}); {DROP} leaves the "
                    "row out"
                )
        return new
    try:
        if math.isfinite(float(new)):
            return new
    except ValueError:
        pass
    raise UserError(f"{place}: expected a number in 'new_label', found {new!r}")


def _several(cell: str) -> list[str]:
    """Return the labels of a row that has several: a JSON list."""
    try:
        found = json.loads(cell)
    except ValueError:
        return [cell]
    return [str(each) for each in found] if isinstance(found, list) else [cell]


def _placed(
    flag: str,
    wanted: Sequence[_Wanted],
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
) -> dict[int, tuple[str, int]]:
    """Return the split of each row that is wanted and its number there, by its number in the file;
    without those that are in no split.

    Raises:
        UserError: if some are not in the data, or have another label there.
    """
    at = {
        (split if split in source else "train", str(row)): (split, number)
        for split, rows in splits.items()
        for number, row in enumerate(arrow.column(rows, "id").to_pylist())
    }
    found, lost = dict[int, tuple[str, int]](), list[int]()
    for number, each in enumerate(wanted):
        place = at.get((each.split, each.id))
        if place and digests_of(splits[place[0]], column, np.array([place[1]])) == [each.digest]:
            found[number] = place
        else:
            lost.append(number)
    if lost:
        there: dict[tuple[str, str], list[str]] = {}
        unmoved = set[tuple[str, str, str]]()
        for split in {wanted[number].split for number in lost} & source.keys():
            ids = arrow.column(source[split], "id").to_pylist()
            for row, digest in zip(ids, digests_of(source[split], column), strict=True):
                there.setdefault((split, digest), []).append(str(row))
                unmoved.add((split, str(row), digest))
        unknown = [n for n in lost if (wanted[n].split, wanted[n].digest) not in there]
        if unknown:
            shown = ", ".join(wanted[n].place.rpartition(", ")[2] for n in unknown[:_SHOWN])
            raise UserError(
                f"{wanted[0].place.rpartition(', ')[0]}: {counted(len(unknown), 'row')} of "
                f"{len(wanted):,} are not in the data: {shown}{', ...' * (len(unknown) > _SHOWN)}; "
                "is it the file of another data set? Else remove them from the file"
            )
        for number in lost:
            each = wanted[number]
            if (each.split, each.id, each.digest) in unmoved:
                continue  # left out before, as a duplicate of a row that stays, say
            for row in there[each.split, each.digest]:
                if place := at.get((each.split, row)):
                    found[number] = place
                    break
    for number, (split, row) in found.items():
        each, now = wanted[number], _shown(splits[split], row)
        if (
            flag == "--relabel"
            and each.label
            and now not in (each.label, each.label.removeprefix("'"), each.new)
        ):
            raise UserError(
                f"{each.place}: the label was '{each.label}' when the file was written and is "
                f"'{now}' now: has the data been corrected since?"
            )
    return found


def _shown(rows: Dataset, number: int) -> str:
    return shown(rows, rows[number]["label"])


def shown(rows: Dataset, label: Any) -> str:
    """Return how a label is written in the file."""
    names = targets.class_names(rows)
    if targets.is_set(rows):
        return json.dumps([names[each] for each in label], ensure_ascii=False)
    return names[label] if names else str(label)


class _Counts:
    """How many rows of each split a file changed."""

    def __init__(self) -> None:
        self.relabelled: dict[str, int] = {}
        self.excluded: dict[str, int] = {}
        self._nowhere = 0

    def add(self, wanted: _Wanted, place: tuple[str, int] | None) -> None:
        if place is None:
            self._nowhere += 1
        else:
            of = self.excluded if wanted.new is None else self.relabelled
            of[place[0]] = of.get(place[0], 0) + 1

    def sentence(self, flag: str, name: str) -> str:
        parts = [
            f"{verb} " + ", ".join(counted(count, f"{split} row") for split, count in of.items())
            for verb, of in (("relabelled", self.relabelled), ("left out", self.excluded))
            if of
        ]
        if self._nowhere:
            parts.append(f"{counted(self._nowhere, 'row')} of the file in no split")
        test = self.relabelled.get("test", 0) + self.excluded.get("test", 0)
        warned = ": its test scores are not those of the same test set any more" if test else ""
        return f"{flag} {name}: {'; '.join(parts)}{warned}"


def _corrected(rows: Dataset, wanted: Mapping[int, str | None]) -> Dataset:
    """Return rows with new labels, by their numbers; those of None are left out."""
    if not wanted:
        return rows
    names, feature = targets.class_names(rows), rows.features["label"]
    labels = arrow.column(rows, "label").to_pylist()
    for number, new in wanted.items():
        if new is None:
            continue
        if targets.is_set(rows):
            labels[number] = sorted(names.index(each) for each in _several(new))
        else:
            labels[number] = names.index(new) if names else float(new)
    kept = np.array([n for n in range(len(rows)) if n not in wanted or wanted[n] is not None])
    kind = arrow.column(rows, "label").type
    others = rows.remove_columns("label")
    changed = arrow.with_column(others, "label", pa.array(labels, kind), feature)
    return digests.select(changed, kept)
