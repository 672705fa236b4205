"""Correct labels and leave out rows as ``--relabel`` and ``--exclude`` say.

Rows are corrected after the splits are made, so that a corrected training has the test rows of the
one before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, List

from finetune.data import arrow, targets
from finetune.data.correction_files import (
    DROP,
    CorrectionFile,
    Line,
    is_same_label,
    label_list,
    row_digests,
)
from finetune.data.splits import select_rows
from finetune.errors import Report, UserError, counted, suggestion

#: Of a line of ``--relabel`` without a new label; no label is empty.
_UNCHANGED = ""


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
    files = [
        CorrectionFile(flag, name)
        for flag, names in (("--relabel", relabel), ("--exclude", exclude))
        for name in names
    ]
    digests = {line.digest for file in files for line in file.lines}
    index = _index_rows(splits, source, column, digests)
    applied, changed = [], dict[tuple[str, int], _Row]()
    for file in files:
        requests, absent = _find_requests(file, index, splits["train"], source, column)
        done = Applied(
            file=file.name,
            sha256=file.sha256,
            run=next((line.run for line in file.lines if line.run), ""),
        )
        for row, new in requests:
            counts = done.excluded if new is None else done.relabelled
            counts[row.split] = counts.get(row.split, 0) + 1
            row.label, row.is_left_out = new or row.label, new is None
            changed[row.split, row.number] = row
        report.info(_sentence(file, done, len(absent)), name="corrections")
        applied.append(done)
    corrected = {
        split: _change_rows(rows, [row for row in changed.values() if row.split == split])
        for split, rows in splits.items()
    }
    return DatasetDict(corrected), applied


def label_text(rows: Dataset, label: Any) -> str:
    """Return how a label is written in the file."""
    names = targets.class_names(rows)
    if targets.is_set(rows):
        return json.dumps([names[number] for number in label], ensure_ascii=False)
    return names[label] if names else str(label)


@dataclass
class _Row:
    """A row of a split: its number there, its label as :func:`label_text`, before and now."""

    split: str
    number: int
    original: str
    label: str
    is_left_out: bool = False


_Index = dict[tuple[str, str], list[_Row]]


def _index_rows(
    splits: DatasetDict, source: DatasetDict, column: str, wanted: Collection[str]
) -> _Index:
    """Return the rows with one of some digests, by the split of the source and the digest."""
    index: _Index = {}
    for split, rows in splits.items() if wanted else ():
        digests = row_digests(rows, column)
        numbers = [number for number, digest in enumerate(digests) if digest in wanted]
        labels = arrow.column(rows, "label").take(pa.array(numbers, pa.int64())).to_pylist()
        for number, label in zip(numbers, labels, strict=True):
            key = split if split in source else "train", digests[number]
            text = label_text(rows, label)
            index.setdefault(key, []).append(_Row(split, number, text, text))
    return index


def _find_requests(
    file: CorrectionFile, index: _Index, train: Dataset, source: DatasetDict, column: str
) -> tuple[list[tuple[_Row, str | None]], list[Line]]:
    """Return the rows to change with their new label, None to leave them out; and the lines about
    rows that are in no split, contradictions say.

    Raises:
        UserError: With all mistakes of the file.
    """
    mistakes: list[str] = []
    requests: dict[tuple[str, int], tuple[_Row, str | None, Line]] = {}
    absent: list[Line] = []
    for line in file.lines:
        rows = [row for row in index.get((line.split, line.digest), []) if not row.is_left_out]
        try:
            new = _requested_label(file, line, train)
            matches = _matching_rows(file, line, rows, new)
        except UserError as error:
            mistakes.append(f"{file.title}, {file.place(line)}: {error}")
            continue
        if not rows and new != _UNCHANGED:
            absent.append(line)
        for row in matches:
            _, earlier, other = requests.setdefault((row.split, row.number), (row, new, line))
            if earlier != new:
                mistakes.append(
                    f"{file.title}, {file.place(other, line)} want different things of one row: "
                    "rows of the same content and label are corrected together; give both the same "
                    "'new_label', or remove a line"
                )
    if lost := _lines_of_no_row(absent, source, column):
        mistakes.append(
            f"{file.title}: {counted(len(lost), 'row')} of {len(file.lines):,} are not in the "
            f"data: {file.place(*lost)}; is it the file of another data set? Else remove them from "
            "the file"
        )
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))
    return [(row, new) for row, new, _ in requests.values() if new != _UNCHANGED], absent


def _lines_of_no_row(lines: Sequence[Line], source: DatasetDict, column: str) -> list[Line]:
    """Return the lines whose content the source does not have in their split."""
    prints = {
        split: {*row_digests(source[split], column)} if split in source else set[str]()
        for split in {line.split for line in lines}
    }
    return [line for line in lines if line.digest not in prints[line.split]]


def _requested_label(file: CorrectionFile, line: Line, rows: Dataset) -> str | None:
    """Return the label that a line asks for, as :func:`label_text` writes it; None to leave the row
    out.

    Raises:
        UserError: If there is no such label, or if the line has lost its digest.
    """
    names, cell = targets.class_names(rows), line.new_label
    if file.flag == "--relabel" and not cell:
        return _UNCHANGED
    if not line.digest:
        raise UserError("'digest' must be as it was written: rows are found by it")
    if file.flag == "--exclude" or (cell == DROP and DROP not in names):
        return None
    if names:
        if cell not in names:
            cell = cell.removeprefix("'")  # which escapes "=" and the like
        labels = label_list(cell) if targets.is_set(rows) else [cell]
        for label in labels:
            if label not in names:
                raise UserError(
                    f"there is no label '{label}'{suggestion(label, names)} (labels: "
                    f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}); {DROP} leaves the row "
                    "out"
                )
        if not targets.is_set(rows):
            return cell
        return json.dumps(sorted({*labels}, key=names.index), ensure_ascii=False)
    feature = rows.features["label"]
    numbers = label_list(cell) if isinstance(feature, List) else [cell]
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    length = feature.length if isinstance(feature, List) else 1
    if len(values) != length or not all(map(math.isfinite, values)):
        expected = "a number" if length == 1 else f"a JSON list of {length} numbers"
        raise UserError(f"expected {expected} in 'new_label', found {cell!r}")
    return str(values) if isinstance(feature, List) else cell


def _matching_rows(
    file: CorrectionFile, line: Line, rows: Sequence[_Row], new: str | None
) -> Sequence[_Row]:
    """Return the rows that a line is about, of those that have its content.

    Raises:
        UserError: If its label is not that of the data.
    """
    if not rows:
        return rows
    labels = {row.label for row in rows}
    if not line.label.strip():
        if len(labels) > 1:
            raise UserError(
                f"the data has {counted(len(rows), 'row')} with this content and different labels: "
                "'label' must say which is meant"
            )
        return rows
    # a file before this one may have changed labels that this one only shows
    shows_only = file.flag == "--exclude" or new == _UNCHANGED
    matches = [
        row
        for row in rows
        if is_same_label(line.label, row.label)
        or (shows_only and is_same_label(line.label, row.original))
    ]
    if not matches and new:  # corrected in the data itself since
        matches = [row for row in rows if is_same_label(new, row.label)]
    if matches or (file.flag == "--exclude" and len(labels) == 1):
        return matches or rows
    if new == _UNCHANGED:
        raise UserError(
            "'label' is not the label in the data, and 'new_label' is empty: edit new_label, not "
            "label"
        )
    raise UserError(
        f"the label was '{line.label}' when the file was written and is '{rows[0].label}' now: "
        "has the data been corrected since?"
    )


def _sentence(file: CorrectionFile, done: Applied, left_out_before: int) -> str:
    parts = [
        f"{verb} " + ", ".join(counted(count, f"{split} row") for split, count in counts.items())
        for verb, counts in (("relabelled", done.relabelled), ("left out", done.excluded))
        if counts
    ]
    if left_out_before:
        nothing = (
            ", so that nothing changes: contradictory and repeated rows are left out before; "
            "correct the data itself"
        )
        absent = f"{counted(left_out_before, 'row')} of the file in no split"
        parts.append(absent if parts else absent + nothing)
    is_test_changed = "test" in {**done.relabelled, **done.excluded}
    warning = ": its test scores are not those of the same test set any more"
    return f"{file.title}: {'; '.join(parts)}{warning * is_test_changed}"


def _change_rows(rows: Dataset, changed: Sequence[_Row]) -> Dataset:
    """Return rows with the new labels, without those that are left out."""
    names, feature = targets.class_names(rows), rows.features["label"]
    relabelled = [row for row in changed if row.label != row.original]
    if relabelled:
        labels: list[Any] = []
        for row in relabelled:
            if targets.is_set(rows):
                labels.append([names.index(name) for name in label_list(row.label)])
            elif names:
                labels.append(names.index(row.label))
            else:
                is_list = isinstance(feature, List)
                labels.append(json.loads(row.label) if is_list else float(row.label))
        old = arrow.column(rows, "label")
        places = np.arange(len(rows))  # in the old labels, followed by the new ones
        places[[row.number for row in relabelled]] = len(rows) + np.arange(len(relabelled))
        both = pa.chunked_array([*old.chunks, pa.array(labels, old.type)], old.type)
        values = both.take(pa.array(places)).combine_chunks()
        rows = arrow.with_column(rows.remove_columns("label"), "label", values, feature)
    left_out = [row.number for row in changed if row.is_left_out]
    return select_rows(rows, np.delete(np.arange(len(rows)), left_out))
