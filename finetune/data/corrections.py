"""Rows that a person corrects: ``suspects.csv``, and what comes back from it.

A row is found again by the digest of its text or image, so that a file of another data set, or of
one that has changed, corrects nothing by mistake. Rows are corrected after the splits are made, so
that a corrected training has the test rows of the one before.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict

from finetune.data import ROW, arrow, digests, targets
from finetune.data.correction_files import (
    File,
    Wanted,
    digest_of,
    edited_texts,
    is_edited,
    may_be_edited,
    several,
)
from finetune.data.read import ReadOptions, read_file
from finetune.errors import UserError, counted
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula

COLUMNS = (
    *("split", "id", "place", "text", "label", "suggested", "probability", "why", "new_label"),
    *("digest", "run"),
)


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


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows for a person to correct in a spreadsheet, as UTF-8 with a mark.

    Args:
        path: Of the file; one that is there is replaced.
        rows: By :data:`COLUMNS`; what a row lacks is empty. No cell is run as a formula.
    """
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        out.writerows([escape_formula(row.get(name)) for name in COLUMNS] for row in rows)
    return path


def edited(path: Path) -> bool:
    """Return whether a person has written something into a file."""
    rows = read_file(path, ReadOptions())
    return "new_label" in rows.column_names and any(
        (value or "").strip() for value in rows["new_label"]
    )


def digests_of(rows: Dataset, column: str, numbers: np.ndarray | None = None) -> np.ndarray:
    """Return the digests by which rows are found again, shape ``(rows,)``, of objects.

    Args:
        rows: With ``column``.
        column: What the model reads.
        numbers: Of the rows that are needed; the others have None. All if None.
    """
    found = np.full(len(rows), None, dtype=object)
    for some, prints in _digests(rows, column, None if numbers is None else np.unique(numbers)):
        found[some] = prints
    return found


def _digests(
    rows: Dataset, column: str, wanted: np.ndarray | None
) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield the numbers of some rows and their digests."""
    if column != "text":
        numbers = np.arange(len(rows)) if wanted is None else wanted
        exact = digests.digests(rows, column, numbers).exact
        yield numbers, [f"x{exact[each].tobytes().hex()}" for each in numbers]
        return
    for some, texts in arrow.pieces(rows, "text", wanted):
        yield some, [digest_of(text) for text in texts.to_pylist()]


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
    done, before, relabelled = [], splits, set[tuple[str, str]]()
    files_of = {"--relabel": relabel, "--exclude": exclude}
    for flag, name in ((flag, name) for flag, names in files_of.items() for name in names):
        file = File(flag, name)
        wanted, run = file.wanted(splits["train"])
        places = _placed(file, wanted, splits, source, column)
        _refuse_two_wishes(file, wanted, places)
        _refuse_edited_labels(file, [before, splits], source, column)
        if column == "text" and (asked := [*filter(may_be_edited, (*wanted, *file.untouched))]):
            there = _places(splits, source, ((each.split, each.id) for each in asked))
            if edited := edited_texts(asked, there, splits):
                told = f"{flag} {name}: {file.place(*edited)}"
                note(f"{told}: 'text' was edited, which changes nothing in the data")
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
        ids = _ids(splits, places)
        if flag == "--exclude" and (both := len(relabelled & {*ids.values()})):
            note(
                f"{flag} {name}: {counted(both, 'row')} of these {'are' if both > 1 else 'is'} in "
                "a file of --relabel too, with a new label: left out nevertheless"
            )
        elif flag == "--relabel":
            relabelled |= {ids[n] for n in places if wanted[n].new is not None}
        news: dict[str, dict[int, str | None]] = {split: {} for split in splits}
        for number, (split, at) in places.items():
            news[split][at] = wanted[number].new
        splits = DatasetDict({split: _corrected(splits[split], news[split]) for split in news})
    return splits, done


def _ids(splits: DatasetDict, places: Mapping[int, tuple[str, int]]) -> dict[int, tuple[str, str]]:
    """Return the split and the ``id`` of rows, by what they are the places of."""
    ids = {split: arrow.column(rows, ROW) for split, rows in splits.items()}
    return {n: (split, str(ids[split][at].as_py())) for n, (split, at) in places.items()}


def _refuse_two_wishes(
    file: File, wanted: Sequence[Wanted], places: Mapping[int, tuple[str, int]]
) -> None:
    """Refuse two rows of a file that are one row of the data, and want different things of it."""
    first: dict[tuple[str, int], Wanted] = {}
    for number, place in places.items():
        each, other = wanted[number], first.setdefault(place, wanted[number])
        if each.new != other.new:
            raise UserError(
                f"{file.called}, {file.place(other.number)} and {file.place(each.number)} want "
                "different things of one row"
            )


def _refuse_edited_labels(
    file: File, states: Sequence[DatasetDict], source: DatasetDict, column: str
) -> None:
    """Refuse rows without a new label whose label is not that of the data.

    Args:
        file: Its rows were read.
        states: The splits before all corrections, and before those of this file.
        source: As it was read.
        column: What the model reads.
    """
    asked = file.untouched
    edited = {n for n, each in enumerate(asked) if each.label}
    for splits in states:
        at = _places(splits, source, ((asked[n].split, asked[n].id) for n in edited))
        found = {n: at[key] for n in edited if (key := (asked[n].split, asked[n].id)) in at}
        edited &= found.keys()
        for split, rows in splits.items():
            here = {n: number for n, (name, number) in found.items() if name == split}
            there = digests_of(rows, column, np.array([*here.values()], dtype=np.int64))
            labels = arrow.column(rows, "label")
            edited -= {
                n
                for n, number in here.items()
                if there[number] != asked[n].digest
                or not is_edited(asked[n].label, shown(rows, labels[number].as_py()))
            }
    if edited:
        places = file.place(*(asked[n].number for n in sorted(edited)))
        raise UserError(
            f"{file.called}: {places}: 'label' is not the label in the data, and 'new_label' is "
            "empty: edit new_label, not label"
        )


def _placed(
    file: File,
    wanted: Sequence[Wanted],
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
) -> dict[int, tuple[str, int]]:
    """Return the split of each row that is wanted and its number there, by its number among them;
    without those that are in no split.

    Raises:
        UserError: if some are not in the data, or have another label there.
    """
    at = _places(splits, source, ((each.split, each.id) for each in wanted))
    found = {n: at[each.split, each.id] for n, each in enumerate(wanted)
             if (each.split, each.id) in at}  # fmt: skip
    for split, rows in splits.items():
        numbers = np.array([at for name, at in found.values() if name == split], dtype=np.int64)
        there = digests_of(rows, column, numbers)
        for n in [n for n, (name, _) in found.items() if name == split]:
            if there[found[n][1]] != wanted[n].digest:
                del found[n]
    if lost := [n for n in range(len(wanted)) if n not in found]:
        found |= _elsewhere(file, wanted, lost, splits, source, column)
    if file.flag == "--relabel":
        labels = {split: arrow.column(rows, "label") for split, rows in splits.items()}
        for n, (split, number) in found.items():
            each, now = wanted[n], shown(splits[split], labels[split][number].as_py())
            if each.label and now not in (each.label, each.label.removeprefix("'"), each.new):
                raise UserError(
                    f"{file.called}, {file.place(each.number)}: the label was '{each.label}' when "
                    f"the file was written and is '{now}' now: has the data been corrected since?"
                )
    return found


def _places(
    splits: DatasetDict, source: DatasetDict, wanted: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, int]]:
    """Return the split of rows and their numbers there, by the split of the source and the ``id``;
    without those that are in no split.
    """
    ids: dict[str, list[str]] = {}
    for name, row in wanted:
        ids.setdefault(name, []).append(row)
    found = {}
    for split, rows in splits.items():
        name = split if split in source else "train"
        for row, number in arrow.numbers_of(rows, ROW, ids.get(name, [])).items():
            found[name, row] = split, number
    return found


def _unmoved(
    wanted: Sequence[Wanted], lost: Sequence[int], source: DatasetDict, column: str
) -> set[int]:
    """Return those that are where they were in the source, and were left out of the splits."""
    at = _places(source, source, ((wanted[n].split, wanted[n].id) for n in lost))
    found: set[int] = set()
    for split, rows in source.items():
        own = [(n, at.get((split, wanted[n].id))) for n in lost if wanted[n].split == split]
        numbers = {n: place[1] for n, place in own if place is not None}
        there = digests_of(rows, column, np.array([*numbers.values()], dtype=np.int64))
        found |= {n for n, number in numbers.items() if there[number] == wanted[n].digest}
    return found


def _elsewhere(
    file: File,
    wanted: Sequence[Wanted],
    lost: Sequence[int],
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
) -> dict[int, tuple[str, int]]:
    """Return where rows are that moved in the source since the file was written; without those that
    no split has, duplicates of a row that stays, say.

    Raises:
        UserError: if some are not in the source.
    """
    stayed = _unmoved(wanted, lost, source, column)
    if not (lost := [n for n in lost if n not in stayed]):
        return {}  # so that no row has to be looked for
    there: dict[tuple[str, str], list[str]] = {}
    for split in {wanted[n].split for n in lost} & source.keys():
        sought, rows = {wanted[n].digest for n in lost if wanted[n].split == split}, source[split]
        for some, digests_here in _digests(rows, column, None):
            hits = [place for place, each in enumerate(digests_here) if each in sought]
            ids = rows.select(some[hits])[ROW] if hits else ()
            for row, place in zip(ids, hits, strict=True):
                there.setdefault((split, digests_here[place]), []).append(str(row))
    if unknown := [n for n in lost if (wanted[n].split, wanted[n].digest) not in there]:
        lines = file.place(*(wanted[n].number for n in unknown))
        raise UserError(
            f"{file.called}: {counted(len(unknown), 'row')} of {len(wanted):,} are not in the "
            f"data: {lines}; is it the file of another data set? Else remove them from the file"
        )
    at = _places(splits, source, ((split, row) for (split, _), ids in there.items() for row in ids))
    found = {}
    for n in lost:
        each = wanted[n]
        rows = there[each.split, each.digest]
        places = [at[each.split, row] for row in rows if (each.split, row) in at]
        if places and each.id not in rows:
            found[n] = places[0]
    return found


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

    def add(self, wanted: Wanted, place: tuple[str, int] | None) -> None:
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
            nothing = (
                ", so that nothing changes: contradictory and repeated rows are left out before; "
                "correct the data itself"
            )
            where = f"{counted(self._nowhere, 'row')} of the file in no split"
            parts.append(where if parts else where + nothing)
        test = self.relabelled.get("test", 0) + self.excluded.get("test", 0)
        warned = ": its test scores are not those of the same test set any more" if test else ""
        return f"{flag} {name}: {'; '.join(parts)}{warned}"


def _corrected(rows: Dataset, wanted: Mapping[int, str | None]) -> Dataset:
    """Return rows with new labels, by their numbers; those of None are left out."""
    if not wanted:
        return rows
    names, feature = targets.class_names(rows), rows.features["label"]
    labels, news = arrow.column(rows, "label"), list[Any]()
    places = np.arange(len(rows))  # in the labels there were, followed by the new ones
    for number, new in wanted.items():
        if new is None:
            continue
        places[number] = len(rows) + len(news)
        if targets.is_set(rows):
            news.append(sorted(names.index(each) for each in several(new)))
        else:
            news.append(names.index(new) if names else float(new))
    both = pa.chunked_array([*labels.chunks, pa.array(news, labels.type)], labels.type)
    others = rows.remove_columns("label")
    values = both.take(pa.array(places)).combine_chunks()
    changed = arrow.with_column(others, "label", values, feature)
    left_out = [number for number, new in wanted.items() if new is None]
    return digests.select(changed, np.delete(np.arange(len(rows)), left_out))
