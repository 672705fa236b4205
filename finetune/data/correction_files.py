"""``suspects.csv``: rows for a person to correct in a spreadsheet, and what comes back.

A line is about the rows of its split that have its content, by digest, and its label. So a file of
another data set, or of one that has changed, corrects nothing by mistake, and rows may move. Rows
of one split with the same content and label are corrected together.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, Value

from finetune.data import ROW, arrow, digests
from finetune.data.prediction_columns import PREFIX, free_name
from finetune.data.read import ReadOptions, read_file
from finetune.errors import UserError
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula

FILE = "suspects.csv"
COLUMNS = (
    *("split", "place", "text", "label", "suggested", "probability", "why", "new_label"),
    *("digest", "run"),
)
_NEEDED = ("split", "digest", "new_label")


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


class Line(NamedTuple):
    """A line of a file: of a row that had ``label``; what is missing or empty is ``""``."""

    split: str
    digest: str
    label: str
    new_label: str
    run: str


def read_suspects(path: Path) -> list[Line]:
    """Return the lines of a file.

    Raises:
        UserError: If it is no such file.
    """
    rows = read_file(path, ReadOptions())
    cells = []
    for name in Line._fields:
        column = _written_name(name, rows.column_names)
        if column in rows.column_names:
            values = ["" if cell is None else str(cell) for cell in rows[column][:]]
            cells.append(values if name == "label" else [value.strip() for value in values])
        elif name in _NEEDED:
            raise UserError(
                f"no column '{column}' (columns: {', '.join(rows.column_names)}); expected a "
                f"{FILE} of report or check, of which only 'new_label' is edited"
            )
        else:
            cells.append([""] * len(rows))
    return [Line(*line) for line in zip(*cells, strict=True)]


def has_new_labels(path: Path) -> bool:
    """Return whether a person has written something into a file.

    Raises:
        UserError: If it is no list of suspects.
    """
    return any(line.new_label for line in read_suspects(path))


def _written_name(name: str, columns: Collection[str]) -> str:
    """Return the column of a file that has the toolkit's values of ``name``."""
    while f"{PREFIX}{name}" in columns:
        name = f"{PREFIX}{name}"
    return name


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
    if column != "text":
        return [f"x{row.tobytes().hex()}" for row in digests.hash_rows(rows, column, numbers)]
    numbers = np.arange(len(rows)) if numbers is None else numbers
    result: dict[int, str] = {}
    for piece, texts in arrow.pieces(rows, "text", numbers):
        result.update(zip(piece.tolist(), map(text_digest, texts.to_pylist()), strict=True))
    return [result[number] for number in numbers.tolist()]
