"""``suspects.csv``, the rows for a person to correct, and ``--relabel`` and ``--exclude``.

A line is about the rows of its split that have its content, by digest, and its label. So a file of
another data set, or of one that has changed, corrects nothing by mistake, and rows may move. Rows
of one split with the same content and label are corrected together, after the splits are made, so
that a corrected training has the test rows of the one before.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, List

from finetune.data import ROW, arrow, digests, targets
from finetune.data.labels import list_names, parse_list, parse_number
from finetune.data.prediction_columns import PREFIX, free_name
from finetune.data.read import existing, read_file
from finetune.data.read_text import ReadOptions
from finetune.data.sources import Source
from finetune.errors import Report, UserError, counted
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula

FILE = "suspects.csv"
COLUMNS = (
    *("split", "place", "text", "label", "suggested", "probability", "why"),
    *("new_label", "digest"),
)
#: What a person writes into ``new_label`` for a row that is to be left out.
DROP = "drop"
_UNCHANGED = object()  # the label that a line without a new one asks for

#: A row: its split of the source, and its number there.
Row = tuple[str, int]
#: Split, digest, label and new label of a line of a file; what is missing is ``""``.
Line = tuple[str, str, str, str]


def write_suspects(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Path:
    """Write rows for a person to correct, for Excel: UTF-8 with a mark, no formulas.

    A row has :data:`COLUMNS`, and the cells of the user's own ``columns`` in a mapping ``user``.
    """
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(free_name(name, columns) for name in COLUMNS), *columns])
        for row in rows:
            user = row.get("user", {})
            cells = [*(row.get(name) for name in COLUMNS), *(user.get(name) for name in columns)]
            writer.writerow([escape_formula(cell) for cell in cells])
    return path


def read_suspects(path: Path) -> list[Line]:
    """Return the lines of a file.

    Raises:
        UserError: If it is no such file.
    """
    rows = read_file(path, ReadOptions()).rows
    cells = []
    for name in ("split", "digest", "label", "new_label"):
        column = name
        while f"{PREFIX}{column}" in rows.column_names:  # the user has a column of that name
            column = f"{PREFIX}{column}"
        if column not in rows.column_names:
            raise UserError(
                f"no column '{column}' (columns: {', '.join(rows.column_names)}); expected a "
                f"{FILE} of report or check, of which only 'new_label' is edited"
            )
        texts = ["" if value is None else str(value) for value in rows[column][:]]
        cells.append(texts if name == "label" else [text.strip() for text in texts])
    return [*zip(*cells, strict=True)]


def has_new_labels(path: Path) -> bool:
    """Return whether a person has written into a file, which has to be a list of suspects."""
    return any(new_label for *_, new_label in read_suspects(path))


def text_digest(text: str) -> str:
    """Return the digest of a text; a spreadsheet takes it for a word, not for a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def row_digests(rows: Dataset, column: str) -> list[str]:
    """Return the digests by which rows are found again; ``column`` is what the model reads."""
    if column != "text":
        return [f"x{digest.hex()}" for digest in digests.hash_rows(rows, column).to_pylist()]
    return [
        text_digest(text) for batch in arrow.batches(rows, column) for text in batch.to_pylist()
    ]


def label_text(rows: Dataset, label: Any) -> str:
    """Return how a label is written in the file."""
    names = targets.class_names(rows)
    if targets.is_set(rows):
        return json.dumps([names[number] for number in label], ensure_ascii=False)
    return names[label] if names else str(label)


def apply(
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
    *,
    relabel: Sequence[str],
    exclude: Sequence[str],
    report: Report,
) -> tuple[DatasetDict, list[dict[str, Any]]]:
    """Return the splits with rows relabelled and left out as the files say, and what was done.

    Of each file are returned ``file``, ``sha256``, and the rows ``relabelled`` and ``excluded``
    by split.

    The splits are made of ``source``, and the model reads ``column``. A file begins with the labels
    that the one before it left.

    Raises:
        UserError: If a file is not of these rows, names unknown labels, or is ambiguous.
    """
    files = []
    flags = [("--relabel", name) for name in relabel] + [("--exclude", name) for name in exclude]
    for flag, name in flags:
        path = existing(name)
        try:
            lines = read_suspects(path)
        except UserError as error:
            raise UserError(f"{flag} {name}: {error}") from error
        if flag == "--relabel" and not any(new_label for *_, new_label in lines):
            raise UserError(f"{flag} {name}: no row has a 'new_label' (a label, or {DROP})")
        files.append((flag, path, lines))
    listed = {digest for _, _, lines in files for _, digest, _, _ in lines}
    index: dict[tuple[str, str], list[Row]] = defaultdict(list)  # by split and digest
    labels: dict[Row, Any] = {}  # as in the data, or as corrected by a file; None: left out
    for split, rows in source.items():
        numbers, values = arrow.column(rows, ROW).to_pylist(), targets.values(rows)
        for place, digest in enumerate(row_digests(rows, column)):
            if digest in listed:
                index[split, digest].append((split, numbers[place]))
                labels[split, numbers[place]] = values[place]
    keys = {
        split: [
            (split if split in source else "train", n) for n in targets.source_rows(rows).tolist()
        ]
        for split, rows in splits.items()
    }
    split_of = {row: split for split, members in keys.items() for row in members if row in labels}
    applied = []
    for (flag, name), (_, path, lines) in zip(flags, files, strict=True):
        changes = _find_changes(flag, path, lines, index, labels, source["train"])
        labels |= changes
        used = {row: label for row, label in changes.items() if row in split_of}
        relabelled = Counter(split_of[row] for row, label in used.items() if label is not None)
        excluded = Counter(split_of[row] for row, label in used.items() if label is None)
        texts = [
            ", ".join(counted(count, f"{split} row") for split, count in counter.items()) or "none"
            for counter in (relabelled, excluded)
        ]
        text = f"{flag} {name}: relabelled {texts[0]}; left out {texts[1]}"
        if unused := len(changes) - len(used):
            text += f"; {counted(unused, 'row')} of the file in no split, such as duplicates"
        if "test" in relabelled | excluded:
            text += ": its test scores are not those of the same test set any more"
        report.info(text, name="corrections")
        facts = {"file": name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        applied.append({**facts, "relabelled": dict(relabelled), "excluded": dict(excluded)})
    corrected = DatasetDict()
    for split, rows in splits.items():
        old = targets.values(rows)
        new = [labels.get(row, label) for row, label in zip(keys[split], old, strict=True)]
        if new != old:
            places = [place for place, label in enumerate(new) if label is not None]
            labels_left = [new[place] for place in places]
            feature = rows.features["label"]
            rows = rows.remove_columns("label").select(places)
            rows = rows.add_column("label", labels_left, feature=feature)
        corrected[split] = rows
    return corrected, applied


def _find_changes(
    flag: str,
    path: Path,
    lines: Sequence[Line],
    index: Mapping[tuple[str, str], Sequence[Row]],
    labels: Mapping[Row, Any],
    train: Dataset,
) -> dict[Row, Any]:
    """Return the rows to change with their new label, None to leave them out."""
    mistakes, lost, requests = list[str](), list[int](), dict[Row, tuple[Any, int]]()

    def locate(*numbers: int) -> str:
        return f"{flag} {path}, {Source(str(path)).locate('train', numbers)}"

    for number, (split, digest, label, cell) in enumerate(lines):
        rows = [row for row in index.get((split, digest), ()) if labels[row] is not None]
        texts = {row: label_text(train, labels[row]) for row in rows}
        is_only = not label.strip() and len({*texts.values()}) == 1
        matches = [row for row in rows if is_only or texts[row] == label]
        matches = matches or [
            row for row in rows if _normalize_label(texts[row]) == _normalize_label(label)
        ]
        try:
            new_label = _parse_label(cell, train) if flag == "--relabel" else None
        except UserError as error:
            mistakes.append(f"{locate(number)}: {error}")
            continue
        if rows and not matches:
            mistakes.append(
                f"{locate(number)}: 'label' is '{label}', and the data has "
                f"{', '.join(map(repr, sorted({*texts.values()})))} for this row: it must say "
                "which row is meant; only 'new_label' is edited"
            )
        if (split, digest) not in index and new_label is not _UNCHANGED:
            lost.append(number)
        for row in matches:
            request, other = requests.setdefault(row, (new_label, number))
            if request != new_label:
                mistakes.append(
                    f"{locate(other, number)} are about rows of the same content and label: give "
                    "them the same 'new_label', or remove a line"
                )
    if lost:
        mistakes.append(
            f"{locate(*lost)}: {len(lost):,} of {len(lines):,} rows are not in the data, by "
            "'split' and 'digest'; remove them, or give the file of this data set"
        )
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))
    return {row: label for row, (label, _) in requests.items() if label is not _UNCHANGED}


def _normalize_label(label: str) -> str:
    """Return a label without what a spreadsheet changes: case, blanks, the digits of a number."""
    text = label.strip().removeprefix("'").casefold()
    number = parse_number(text)
    return text if number is None else f"{number:.12g}"


def _parse_label(cell: str, rows: Dataset) -> Any:
    """Return the label that a cell asks for, as the data has it; None to leave the row out."""
    names, feature = targets.class_names(rows), rows.features["label"]
    if not cell:
        return _UNCHANGED
    if cell == DROP and DROP not in names:
        return None
    is_list = isinstance(feature, List)
    parsed = parse_list(cell) if is_list else None
    values = [cell] if parsed is None else parsed
    if names:
        numbers = {escape_formula(name): number for number, name in enumerate(names)}
        numbers |= {name: number for number, name in enumerate(names)}
        if unknown := [str(label) for label in values if str(label) not in numbers]:
            raise UserError(
                f"there is no label '{unknown[0]}' (labels: {list_names(names)}); {DROP} leaves "
                "the row out"
            )
        labels: list[Any] = sorted({numbers[str(label)] for label in values})
    else:
        length = feature.length if is_list else 1
        labels = [n for n in map(parse_number, values) if n is not None and math.isfinite(n)]
        if not len(values) == len(labels) == length:
            expected = f"a JSON list of {length} numbers" if is_list else "a number"
            raise UserError(f"expected {expected} in 'new_label', found {cell!r}")
    return labels if is_list else labels[0]
