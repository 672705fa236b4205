"""Inputs of a prediction: a file, a folder of images, standard input or a data frame."""

from __future__ import annotations

import codecs
import itertools
import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from finetune.data import files, image_files, images, json_documents
from finetune.data.delimited import Row
from finetune.data.files import Chunk, Mine, Read, Reader, Rows
from finetune.data.layout import USUAL, Layout, ReadOptions, not_utf8
from finetune.errors import UserError
from finetune.predicting import shares
from finetune.runtime import formats

if TYPE_CHECKING:
    import pandas as pd

STANDARD_INPUT = "-"
_MORE_MAY_COME = 0.05  # seconds
_LONGEST_READ = 2**16  # bytes


@dataclass(frozen=True)
class Input:
    """Rows to predict.

    Attributes:
        name: As the user gave it.
        kind: The suffix of a file; ``-`` for standard input, ``frame``, or ``folder`` of images or
            a single one.
        columns: Those of its rows; in JSON lines, those of the first chunk.
        total: Its size: bytes of a text format, else rows; None if unknown.
        reader: Reads an input that is not a file.
        layout: How a file of text is written.
        note: A sentence for the user; may be empty.
        row_groups: The rows of each row group of a Parquet file.
    """

    name: str
    kind: str
    columns: Sequence[str]
    total: int | None
    reader: Reader | None = None
    layout: Layout = USUAL
    note: str = ""
    row_groups: Sequence[int] = ()

    @property
    def counted(self) -> bool:
        """Whether :attr:`total` is a number of rows."""
        return self.kind in (".parquet", "folder", "frame")

    @classmethod
    def open(
        cls, name: str, options: ReadOptions | None = None, columns: Sequence[str] = ("text",)
    ) -> Input:
        """Open an input and read its first chunk.

        Args:
            name: A file, a folder, an image or ``-``.
            options: What the user says of a file.
            columns: Those of the standard input.

        Raises:
            UserError: if it cannot be read or has no rows.
        """
        if name == STANDARD_INPUT:
            return cls(name, STANDARD_INPUT, columns, None, partial(_standard_input, columns))
        path = files.existing(name)
        kind = "folder" if path.is_dir() or image_files.is_image(path) else formats.suffix(path)
        if kind not in (*files.READERS, "folder"):
            raise UserError(
                f"cannot read {name}: expected a file ending in {', '.join(files.READERS)}, an "
                f"image or a folder of images ({', '.join(images.SUFFIXES)}), or - for standard "
                "input"
                f"{files.how_to_convert(path)}"
            )
        reader = _pictures if kind == "folder" else None
        layout, note = (USUAL, "") if reader else files.inspected(path, options)
        first = next(files.chunks(path, reader, layout), None)
        if first is None:
            raise UserError(f"{name} holds no images ({', '.join(images.SUFFIXES)})")
        row_groups: list[int] = []
        if kind == "folder":
            total: int | None = len(_files_of(path))
        elif kind == ".parquet":
            about = pq.read_metadata(path)
            row_groups = [about.row_group(n).num_rows for n in range(about.num_row_groups)]
            total = about.num_rows
        else:  # of a compressed file, or of one that is read as a whole, it is not known
            is_streamed = kind in files.WITH_LINES and not formats.compression(path)
            total = path.stat().st_size if is_streamed else None
        return cls(str(path), kind, first.columns, total, reader, layout, note, row_groups)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Input:
        """Return the rows of a data frame; missing values become None.

        Raises:
            UserError: if two columns have one name.
        """
        if twice := frame.columns[frame.columns.duplicated()].tolist():
            raise UserError(f"the data has two columns named {twice[0]!r}: rename one")
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        columns = tuple(frame.columns)
        return cls("the data", "frame", columns, len(frame), lambda _: files.sliced(rows))

    def chunks(self, mine: Mine = lambda number: True) -> Iterator[Chunk]:
        """Read the rows in their order; the chunks that are not ``mine`` are counted, not parsed.

        Raises:
            UserError: if the input is malformed, with the position.
        """
        return files.chunks(Path(self.name), self.reader, self.layout, mine)

    def share(self, rank: int, world_size: int) -> Mine:
        """Return which chunks are for a process, see :func:`~finetune.predicting.shares.dealt`."""
        return shares.dealt(rank, world_size, self.row_groups)

    def place(self, row: int) -> str:
        """Return the position of a row, from 0: ``line 5`` in text formats, else ``row 4``."""
        path = Path(self.name) if self.kind in files.READERS else Path()
        return files.places(path, [row], self.layout)


def _standard_input(columns: Sequence[str], _: Path) -> Iterator[Read]:
    """Yield lines as they arrive, so that an answer need not wait for a whole chunk."""
    row_of = _row if len(columns) == 1 else _Parts(columns)
    source, read, rest, lines = sys.stdin.buffer.fileno(), 0, b"", itertools.count(1)
    rows: Rows = []
    while block := os.read(source, _LONGEST_READ):
        if not read:
            block = block.removeprefix(codecs.BOM_UTF8)
        read += len(block)
        *whole, rest = (rest + block).split(b"\n")
        rows += [row_of(line, next(lines)) for line in whole]
        while len(rows) >= files.CHUNK_ROWS:
            yield rows[: files.CHUNK_ROWS], read
            del rows[: files.CHUNK_ROWS]
        if rows and not select.select([source], [], [], _MORE_MAY_COME)[0]:
            yield rows, read
            rows = []
    if rest:
        rows.append(row_of(rest, next(lines)))
    if rows:
        yield rows, read


def _row(line: bytes, number: int) -> Row:
    try:
        return {"text": line.decode("utf-8").removesuffix("\r")}
    except UnicodeDecodeError as error:
        raise not_utf8("standard input", number, error) from error


class _Parts:
    """Reads several texts a line: separated by tabs, or JSON lines if the first line is an object.

    Args:
        columns: The names of the texts, keys of the objects.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._reads_json: bool | None = None

    def __call__(self, line: bytes, number: int) -> Row:
        text, place = _row(line, number)["text"], f"standard input, line {number}"
        if self._reads_json is None:
            self._reads_json = _is_object(text)
        if self._reads_json:
            row = json_documents.of_line(text, place)
            if lacking := [name for name in self._columns if name not in row]:
                there = ", ".join(row) or "none"
                raise UserError(f"{place}: no '{lacking[0]}' (keys: {there})")
            return {name: row[name] for name in self._columns}
        parts = text.split("\t")
        if len(parts) != len(self._columns):
            raise UserError(
                f"{place}: expected {len(self._columns)} texts separated by tabs "
                f"({', '.join(self._columns)}), found {len(parts)}; or JSON lines with these keys"
            )
        return dict(zip(self._columns, parts, strict=True))


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (json.JSONDecodeError, RecursionError):
        return False


def _pictures(folder: Path) -> Iterator[Read]:
    """Return the names of the files below, sorted; they are opened as they are predicted."""
    return files.sliced([{"file": name} for name in _files_of(folder)])


def _files_of(folder: Path) -> list[str]:
    """Return the names of the images anywhere below a folder; of an image its own."""
    return image_files.below(folder) if folder.is_dir() else [folder.name]
