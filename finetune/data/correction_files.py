"""``suspects.csv``: rows for a person to correct in a spreadsheet, and what comes back.

A line is about the rows of its split that have its content, by digest, and its label. So a file of
another data set, or of one that has changed, corrects nothing by mistake, and rows may move. Rows
of one split with the same content and label are corrected together.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Value

from finetune.data import ROW, arrow, digests
from finetune.data.prediction_columns import PREFIX, free_name
from finetune.data.read import ReadOptions, existing, read_file
from finetune.data.sources import Source
from finetune.errors import UserError
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula

FILE = "suspects.csv"
#: What a person writes into ``new_label`` for a row that is to be left out.
DROP = "drop"
COLUMNS = (
    *("split", "place", "text", "label", "suggested", "probability", "why", "new_label"),
    *("digest", "run"),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a file of corrections.

    Attributes:
        number: From 0.
        split: The split of the source that the row was in.
        digest: Of what the model reads of it.
        label: The label that it had; empty where the file does not say.
        new_label: As written; empty where nothing is to change.
        run: The run whose suspects these are; may be empty.
    """

    number: int
    split: str
    digest: str
    label: str
    new_label: str
    run: str


def write_suspects(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Path:
    """Write rows for a person to correct, as UTF-8 with a mark, so that Excel reads it.

    Args:
        path: Of the file; one that is there is replaced.
        rows: By :data:`COLUMNS`, and the user's own columns in a mapping ``user``; what a row lacks
            is empty. No cell is run as a formula.
        columns: The names of the user's own columns.
    """
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(free_name(name, columns) for name in COLUMNS), *columns])
        for row in rows:
            user = row.get("user", {})
            cells = [*(row.get(name) for name in COLUMNS), *(user.get(name) for name in columns)]
            writer.writerow([escape_formula(cell) for cell in cells])
    return path


def user_columns(rows: Dataset) -> list[str]:
    """Return the columns of raw rows that are the user's own and fit into a cell."""
    toolkit = {ROW, "label", "text", digests.TEXTS}
    return [
        name
        for name, feature in rows.features.items()
        if name not in toolkit and isinstance(feature, Value) and "binary" not in feature.dtype
    ]


def has_new_labels(path: Path) -> bool:
    """Return whether a person has written something into a file."""
    return any((row.get("new_label") or "").strip() for row in _read_rows(path))


class CorrectionFile:
    """A file of corrections.

    Args:
        flag: The option that names it.
        name: As typed.

    Attributes:
        title: Flag and name, for messages.
        lines: Of the file.

    Raises:
        UserError: If it is no such file.
    """

    def __init__(self, flag: str, name: str) -> None:
        self.flag, self.name, self.title = flag, name, f"{flag} {name}"
        self._path = existing(name)
        if self._path.is_dir():
            raise UserError(f"{self.title} is a directory; name {Path(name) / FILE}")
        rows = _read_rows(self._path)
        columns = rows[0].keys() if rows else ()
        needed = ["split", "digest", *(["new_label"] if flag == "--relabel" else [])]
        if missing := [name for name in needed if name not in columns]:
            raise UserError(
                f"{self.title}: no column '{missing[0]}' (columns: {', '.join(columns)}); "
                f"expected a {FILE} of report or check, of which only 'new_label' is edited"
            )
        names = {name: _written_name(name, columns) for name in COLUMNS}
        self.lines = []
        for number, row in enumerate(rows):
            cells = {name: str(row.get(names[name]) or "") for name in COLUMNS}
            self.lines.append(
                Line(
                    number=number,
                    split=cells["split"],
                    digest=cells["digest"].strip(),
                    label=cells["label"],
                    new_label=cells["new_label"].strip(),
                    run=cells["run"],
                )
            )
        if flag == "--relabel" and not any(line.new_label for line in self.lines):
            raise UserError(
                f"{self.title}: no row has a 'new_label': write the right label there, or {DROP} "
                "to leave the row out; no other column is read for it"
            )

    @property
    def sha256(self) -> str:
        """Of the content of the file."""
        return hashlib.sha256(self._path.read_bytes()).hexdigest()

    def place(self, *lines: Line) -> str:
        """Return where lines are in the file, for messages."""
        return Source(str(self._path)).locate("train", sorted(line.number for line in lines))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    return list(read_file(path, ReadOptions()))


def _written_name(name: str, columns: Collection[str]) -> str:
    """Return the column of a file that has the toolkit's values of ``name``."""
    while f"{PREFIX}{name}" in columns:
        name = f"{PREFIX}{name}"
    return name


def is_same_label(cell: str, label: str) -> bool:
    """Return whether a cell is a label of the data, however a spreadsheet writes that.

    Args:
        cell: Of the file.
        label: As :func:`finetune.data.corrections.label_text` writes it.
    """
    written, expected = (
        sorted(name.strip().removeprefix("'").casefold() for name in label_list(text))
        for text in (cell, label)
    )
    if written == expected or len(written) != 1 or len(expected) != 1:
        return written == expected
    try:
        return math.isclose(float(written[0]), float(expected[0]), rel_tol=1e-6)
    except ValueError:
        return False


def label_list(cell: str) -> list[str]:
    """Return the labels in a cell: those of a JSON list, or the cell itself."""
    try:
        values = json.loads(cell)
    except ValueError:
        return [cell]
    return [str(value) for value in values] if isinstance(values, list) else [cell]


def text_digest(text: str) -> str:
    """Return the digest of a text; a spreadsheet takes it for a word, not for a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def row_digests(rows: Dataset, column: str, numbers: np.ndarray | None = None) -> list[str]:
    """Return the digests by which rows are found again, of ``numbers``, or of all rows in order.

    Args:
        rows: With ``column``.
        column: What the model reads.
        numbers: Row numbers, each once.
    """
    wanted = np.arange(len(rows)) if numbers is None else np.asarray(numbers, dtype=np.int64)
    if column != "text":
        return [f"x{row.tobytes().hex()}" for row in digests.digests(rows, column, wanted).exact]
    found: dict[int, str] = {}
    for piece, texts in arrow.pieces(rows, "text", wanted):
        found.update(zip(piece.tolist(), map(text_digest, texts.to_pylist()), strict=True))
    return [found[number] for number in wanted.tolist()]
