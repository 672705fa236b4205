"""Correct labels and leave out rows as ``--relabel`` and ``--exclude`` say.

Rows are corrected after the splits are made, so that a corrected training has the test rows of the
one before.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, List

from finetune.data import arrow, targets
from finetune.data.correction_files import Line, read_suspects, row_digests
from finetune.data.read import existing
from finetune.data.sources import Source
from finetune.data.splits import select_rows
from finetune.errors import Report, UserError, counted, suggestion
from finetune.runtime.formats import escape_formula

#: What a person writes into ``new_label`` for a row that is to be left out.
DROP = "drop"
#: Of a line of ``--relabel`` without a new label.
_UNCHANGED = object()
_SHOWN = 10


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


def apply(
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
    *,
    relabel: Sequence[str],
    exclude: Sequence[str],
    report: Report,
) -> tuple[DatasetDict, list[Applied]]:
    """Return the splits with rows relabelled and left out as the files say, and what was done.

    Args:
        splits: Made of ``source``, with ``label`` and ``column``.
        source: As it was read.
        column: What the model reads.
        relabel: Files with ``new_label``, of which rows without one stay as they are. Each begins
            with the labels that the one before it left.
        exclude: Files of rows that are left out.
        report: Gets a fact about each file.

    Raises:
        UserError: If a file is not of these rows, names unknown labels, or is ambiguous; with all
            its mistakes.
    """
    named = [("--relabel", name) for name in relabel] + [("--exclude", name) for name in exclude]
    files = [_CorrectionFile(flag, name) for flag, name in named]
    digests = {line.digest for file in files for line in file.lines}
    index = _index_rows(splits, source, column, digests)
    applied, changed = [], dict[_Row, None]()
    for file in files:
        requests, absent = _find_requests(file, index, source, column)
        done = Applied(
            file=file.name,
            sha256=hashlib.sha256(file.path.read_bytes()).hexdigest(),
            run=next((line.run for line in file.lines if line.run), ""),
        )
        for row, label in requests.items():
            counts = done.excluded if label is None else done.relabelled
            counts[row.split] = counts.get(row.split, 0) + 1
            row.label, row.is_left_out = row.label if label is None else label, label is None
            changed[row] = None
        report.info(f"{file.title}: {_describe(done, absent)}", name="corrections")
        applied.append(done)
    corrected = {
        split: _change_rows(rows, [row for row in changed if row.split == split])
        for split, rows in splits.items()
    }
    return DatasetDict(corrected), applied


def label_text(rows: Dataset, label: Any) -> str:
    """Return how a label is written in the file."""
    names = targets.class_names(rows)
    if targets.is_set(rows):
        return json.dumps([names[number] for number in label], ensure_ascii=False)
    return names[label] if names else str(label)


@dataclass(eq=False)
class _Row:
    """A row of a split: its number there, and its label in the data, before and now."""

    split: str
    number: int
    original: Any
    label: Any
    is_left_out: bool = False


_Index = dict[tuple[str, str], list[_Row]]


def _index_rows(
    splits: DatasetDict, source: DatasetDict, column: str, digests: Collection[str]
) -> _Index:
    """Return the rows with one of some digests, by the split of the source and the digest."""
    index: _Index = defaultdict(list)
    for split, rows in splits.items():
        labels = arrow.column(rows, "label")
        for number, digest in enumerate(row_digests(rows, column)):
            if digest in digests:
                label = labels[number].as_py()
                key = split if split in source else "train", digest
                index[key].append(_Row(split, number, label, label))
    return index


class _CorrectionFile:
    """A file of corrections: its lines, as :func:`read_suspects` returns them."""

    def __init__(self, flag: str, name: str) -> None:
        self.flag, self.name, self.title, self.path = flag, name, f"{flag} {name}", existing(name)
        try:
            self.lines = read_suspects(self.path)
        except UserError as error:
            raise UserError(f"{self.title}: {error}") from error
        if flag == "--relabel" and not any(line.new_label for line in self.lines):
            raise UserError(
                f"{self.title}: no row has a 'new_label': write the right label there, or {DROP} "
                "to leave the row out; no other column is read for it"
            )

    def place(self, *lines: int) -> str:
        return Source(str(self.path)).locate("train", lines)


def _find_requests(
    file: _CorrectionFile, index: _Index, source: DatasetDict, column: str
) -> tuple[dict[_Row, Any], int]:
    """Return the rows to change with their new label, None to leave them out; and how many lines
    are about rows that are in no split, such as contradictions.

    Raises:
        UserError: With all mistakes of the file.
    """
    mistakes, absent, requests = list[str](), list[int](), dict[_Row, tuple[Any, int]]()
    for number, line in enumerate(file.lines):
        rows = [row for row in index.get((line.split, line.digest), []) if not row.is_left_out]
        try:
            label = _parse_label(file.flag, line, source["train"])
            matches = _matching_rows(line.label, rows, source["train"])
        except UserError as error:
            mistakes.append(f"{file.title}, {file.place(number)}: {error}")
            continue
        if not rows and label is not _UNCHANGED:
            absent.append(number)
        for row in matches:
            earlier, other = requests.setdefault(row, (label, number))
            if earlier != label:
                mistakes.append(
                    f"{file.title}, {file.place(other, number)} want different things of one row: "
                    "rows of the same content and label are corrected together; give both the same "
                    "'new_label', or remove a line"
                )
    digests = {
        split: {*row_digests(source[split], column)} if split in source else set[str]()
        for split in {file.lines[number].split for number in absent}
    }
    lost = [n for n in absent if file.lines[n].digest not in digests[file.lines[n].split]]
    if lost:
        mistakes.append(
            f"{file.title}: {counted(len(lost), 'row')} of {len(file.lines):,} are not in the "
            f"data: {file.place(*lost)}; is it the file of another data set? Else remove "
            "them from the file"
        )
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))
    changes = {row: label for row, (label, _) in requests.items() if label is not _UNCHANGED}
    return changes, len(absent)


def _parse_label(flag: str, line: Line, rows: Dataset) -> Any:
    """Return the label that a line asks for, as the data has it; None to leave the row out.

    Raises:
        UserError: If there is no such label, or if the line has lost its digest.
    """
    names, feature, cell = targets.class_names(rows), rows.features["label"], line.new_label
    if flag == "--relabel" and not cell:
        return _UNCHANGED
    if not line.digest:
        raise UserError("'digest' must be as it was written: rows are found by it")
    if flag == "--exclude" or (cell == DROP and DROP not in names):
        return None
    try:
        values = json.loads(cell) if isinstance(feature, List) else [cell]
    except ValueError:
        values = [cell]
    values = values if isinstance(values, list) else [values]
    if names:
        spellings = {escape_formula(name): name for name in names} | {name: name for name in names}
        for label in map(str, values):
            if label not in spellings:
                raise UserError(
                    f"there is no label '{label}'{suggestion(label, names)} (labels: "
                    f"{', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}); {DROP} leaves "
                    "the row out"
                )
        classes = sorted({names.index(spellings[str(label)]) for label in values})
        return classes if targets.is_set(rows) else classes[0]
    length = feature.length if isinstance(feature, List) else 1
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != length or not all(map(math.isfinite, numbers)):
        expected = "a number" if length == 1 else f"a JSON list of {length} numbers"
        raise UserError(f"expected {expected} in 'new_label', found {cell!r}")
    return numbers if isinstance(feature, List) else numbers[0]


def _matching_rows(cell: str, rows: Sequence[_Row], train: Dataset) -> Sequence[_Row]:
    """Return those of some rows of one content that have the label of a line, now or in the data.

    Raises:
        UserError: If none has, or if the line names no label and the rows have several.
    """
    labels = {row: label_text(train, row.label) for row in rows}
    originals = {row: label_text(train, row.original) for row in rows}
    if not cell.strip() and len({*labels.values()}) == 1:
        return rows
    for texts, is_same in itertools.product((labels, originals), (str.__eq__, _is_same_label)):
        if matches := [row for row in rows if is_same(cell, texts[row])]:
            return matches
    if rows:
        names = ", ".join(f"'{text}'" for text in dict.fromkeys(labels.values()))
        raise UserError(
            f"'label' is '{cell}', and the data has {names} for this row: it must say which row is "
            "meant, as it was written; only 'new_label' is edited"
        )
    return []


def _is_same_label(cell: str, label: str) -> bool:
    """Return whether a cell is a label of the data, however a spreadsheet writes that."""
    cell, label = (text.strip().removeprefix("'").casefold() for text in (cell, label))
    try:
        return cell == label or math.isclose(float(cell), float(label), rel_tol=1e-6)
    except ValueError:
        return False


def _describe(done: Applied, absent: int) -> str:
    parts = [
        f"{verb} " + ", ".join(counted(count, f"{split} row") for split, count in counts.items())
        for verb, counts in (("relabelled", done.relabelled), ("left out", done.excluded))
        if counts
    ]
    if absent:
        parts.append(f"{counted(absent, 'row')} of the file in no split, which changes nothing")
    is_test_changed = "test" in {**done.relabelled, **done.excluded}
    warning = ": its test scores are not those of the same test set any more"
    return f"{'; '.join(parts)}{warning * is_test_changed}"


def _change_rows(rows: Dataset, changed: Sequence[_Row]) -> Dataset:
    """Return rows with the new labels, without those that are left out."""
    if any(row.label != row.original for row in changed):
        feature, labels = rows.features["label"], arrow.column(rows, "label")
        values = labels.to_pylist()
        for row in changed:
            values[row.number] = row.label
        new = pa.array(values, labels.type)
        rows = arrow.with_column(rows.remove_columns("label"), "label", new, feature)
    left_out = [row.number for row in changed if row.is_left_out]
    return select_rows(rows, np.delete(np.arange(len(rows)), left_out))
