"""Inputs of a prediction: a file, a folder of images, standard input or a data frame.

All but the standard input are a table that is read in chunks of consecutive rows, so that processes
share the chunks, and an interrupted prediction continues with the next one.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from finetune.data import images, read
from finetune.data.read_text import ReadOptions
from finetune.errors import Report, UserError
from finetune.runtime import formats

if TYPE_CHECKING:
    import pandas as pd

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
_LONGEST_READ = 2**16  # bytes


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of an input.

    Attributes:
        number: Of the chunk, from 0.
        start: The number of its first row.
        rows: As a table; of a frame or standard input, the values of each column.
    """

    number: int
    start: int
    rows: pa.Table | Mapping[str, list[Any]]

    def __len__(self) -> int:
        if isinstance(self.rows, pa.Table):
            return int(self.rows.num_rows)
        return len(next(iter(self.rows.values()), []))

    def values(self, column: str) -> list[Any]:
        """Return the values of a column; None where one is missing."""
        if not isinstance(self.rows, pa.Table):
            return self.rows[column]
        cells: list[Any] = self.rows.column(column).to_pylist()
        if self.rows.schema.field(column).type == pa.json_():
            return [None if cell is None else json.loads(cell) for cell in cells]
        return cells


@dataclass(frozen=True)
class Input:
    """Rows to predict.

    Attributes:
        name: As the user typed it.
        kind: The suffix of a file; ``-`` for standard input, ``frame``, or ``folder`` of images or
            a single one.
        columns: The names of its columns.
        rows: All rows, as :class:`Chunk` has some of them; None for standard input.
        options: How a file is read.
        notes: Sentences about how a file is read.
    """

    name: str
    kind: str
    columns: Sequence[str]
    rows: pa.Table | Mapping[str, list[Any]] | None
    options: ReadOptions = field(default_factory=ReadOptions)
    notes: Sequence[str] = ()

    @classmethod
    def open(cls, name: str, options: ReadOptions, columns: Sequence[str] = ("text",)) -> Input:
        """Open an input; a file is read into the cache.

        Args:
            name: A file, a folder, an image or ``-``.
            options: How to read a file.
            columns: Those of the standard input.

        Raises:
            UserError: If it cannot be read or has no rows.
        """
        if name == STANDARD_INPUT:
            return cls(name, STANDARD_INPUT, columns, None)
        path = read.existing(name)
        if path.is_dir() or images.is_image(path):
            names = images.below(path) if path.is_dir() else [path.name]
            if not names:
                raise UserError(
                    f"{name} holds no images ({', '.join(images.SUFFIXES)}); predict reads one "
                    "table at a time"
                )
            return cls(str(path), "folder", ["file"], pa.table({"file": pa.array(names)}))
        if formats.suffix(path) not in read.READABLE:
            raise UserError(
                f"cannot read {name}: expected a file ending in {', '.join(read.READABLE)}, an "
                f"image or a folder of images ({', '.join(images.SUFFIXES)}), or - for standard "
                "input"
            )
        report = Report()
        table = read.read_file(path, options, report).data.table
        notes = report.sentences("info")
        return cls(str(path), formats.suffix(path), table.column_names, table, options, notes)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Input:
        """Return the rows of a data frame; missing values become None.

        Raises:
            UserError: If two columns have one name.
        """
        if repeated := frame.columns[frame.columns.duplicated()].tolist():
            raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
        values = frame.astype(object).where(frame.notna(), None).to_dict("list")
        return cls("the data", "frame", tuple(frame.columns), values)

    @property
    def total(self) -> int | None:
        """The number of rows; None for standard input."""
        return None if self.rows is None else len(Chunk(0, 0, self.rows))

    def chunks(self, rank: int = 0, world_size: int = 1) -> Iterator[Chunk]:
        """Yield the chunks of one process, in order.

        Args:
            rank: Of the process.
            world_size: The number of processes; each reads every n-th chunk.
        """
        if self.rows is None:
            start = 0
            for number, rows in enumerate(_standard_input(self.columns)):
                yield Chunk(number, start, rows)
                start += len(rows[self.columns[0]])
            return
        for number in range(rank, -(-(self.total or 0) // CHUNK_ROWS), world_size):
            start = number * CHUNK_ROWS
            if isinstance(self.rows, pa.Table):
                yield Chunk(number, start, self.rows.slice(start, CHUNK_ROWS))
            else:
                end = start + CHUNK_ROWS
                rows = {name: values[start:end] for name, values in self.rows.items()}
                yield Chunk(number, start, rows)

    def place(self, row: int) -> str:
        """Return where a row is, from 0: ``line 5`` in a file with lines, else ``row 5``."""
        noun, number = "line" if self.kind == STANDARD_INPUT else "row", row + 1
        if self.kind in read.READABLE:
            noun, (number,) = read.line_numbers(Path(self.name), [row], self.options)
        return f"{noun} {number}"


def _standard_input(columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield the rows of lines as they arrive, so that an answer need not wait for a whole chunk."""
    descriptor, decoder = sys.stdin.buffer.fileno(), codecs.getincrementaldecoder("utf-8-sig")()
    rest, count, block = "", 0, b"-"
    while block:
        block = os.read(descriptor, _LONGEST_READ)
        try:
            *lines, rest = (rest + decoder.decode(block, final=not block)).split("\n")
        except UnicodeDecodeError as error:
            number = count + error.object[: error.start].count(b"\n") + 1
            raise UserError(f"standard input, line {number}: not UTF-8") from error
        if not block and rest:
            lines.append(rest)
        rows = [[line.removesuffix("\r")] for line in lines]
        if len(columns) > 1:
            rows = [line.split("\t") for (line,) in rows]
        for number, row in enumerate(rows, count + 1):
            if len(row) != len(columns):
                raise UserError(
                    f"standard input, line {number}: expected {len(columns)} texts separated by "
                    f"tabs ({', '.join(columns)}), found {len(row)}"
                )
        count += len(rows)
        if rows:
            yield dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
