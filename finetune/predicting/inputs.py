"""Inputs of a prediction: a file, a folder of images, standard input or a data frame.

All but the standard input are a table that is cut into chunks by row number, so that processes
divide the chunks among themselves, and an interrupted prediction goes on with the next one.
"""

from __future__ import annotations

import codecs
import itertools
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from finetune.data import image_files, images, read
from finetune.data.read_json import parse_line
from finetune.data.read_text import ReadOptions
from finetune.errors import Report, UserError
from finetune.runtime import formats

if TYPE_CHECKING:
    import pandas as pd

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
_MORE_MAY_COME = 0.05  # seconds
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
        options: What the user said about a file.
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
            options: What the user said about a file.
            columns: Those of the standard input.

        Raises:
            UserError: If it cannot be read or has no rows.
        """
        if name == STANDARD_INPUT:
            return cls(name, STANDARD_INPUT, columns, None)
        path = read.existing(name)
        if path.is_dir() or image_files.is_image(path):
            names = image_files.below(path) if path.is_dir() else [path.name]
            if not names:
                raise UserError(f"{name} holds no images ({', '.join(images.SUFFIXES)})")
            return cls(str(path), "folder", ["file"], pa.table({"file": pa.array(names)}))
        if formats.suffix(path) not in read.READABLE:
            raise UserError(
                f"cannot read {name}: expected a file ending in {', '.join(read.READABLE)}, an "
                f"image or a folder of images ({', '.join(images.SUFFIXES)}), or - for standard "
                "input"
            )
        report = Report()
        rows = read.read_file(path, options, report)
        notes = report.sentences("info")
        table = rows.data.table
        return cls(str(path), formats.suffix(path), rows.column_names, table, options, notes)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Input:
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
        """How many rows it has; None of the standard input, which has not ended."""
        return None if self.rows is None else len(Chunk(0, 0, self.rows))

    def chunks(self, rank: int = 0, world_size: int = 1) -> Iterator[Chunk]:
        """Yield the chunks of one process, in order.

        Args:
            rank: Of the process.
            world_size: The number of processes; each reads every n-th chunk.
        """
        if self.rows is None:
            start = 0
            for number, lines in enumerate(_standard_input(self.columns)):
                columns = [list(column) for column in zip(*lines, strict=True)]
                yield Chunk(number, start, dict(zip(self.columns, columns, strict=True)))
                start += len(lines)
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


def _standard_input(columns: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
    """Yield lines as they arrive, so that an answer need not wait for a whole chunk."""
    source, rest, numbers = sys.stdin.buffer.fileno(), b"", itertools.count(1)
    parse = _line_parser(columns)
    rows: list[Sequence[Any]] = []
    is_first = True
    while block := os.read(source, _LONGEST_READ):
        *lines, rest = (rest + block).split(b"\n")
        if is_first and lines:
            lines[0], is_first = lines[0].removeprefix(codecs.BOM_UTF8), False
        rows += [parse(line, next(numbers)) for line in lines]
        while len(rows) >= CHUNK_ROWS:
            yield rows[:CHUNK_ROWS]
            del rows[:CHUNK_ROWS]
        if rows and not select.select([source], [], [], _MORE_MAY_COME)[0]:
            yield rows
            rows = []
    if rest:
        rows.append(parse(rest.removeprefix(codecs.BOM_UTF8), next(numbers)))
    if rows:
        yield rows


def _line_parser(columns: Sequence[str]) -> Callable[[bytes, int], Sequence[Any]]:
    """Return what reads the texts of a line: a single one, several separated by tabs, or an object
    with these keys if the first line is one.
    """
    is_json: bool | None = None

    def parse(line: bytes, number: int) -> Sequence[Any]:
        nonlocal is_json
        place = f"standard input, line {number}"
        try:
            text = line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{place}: not UTF-8 ({error.reason}); convert it, e.g. iconv -f latin1 -t utf-8"
            ) from error
        if len(columns) == 1:
            return [text]
        if is_json is None:
            is_json = text.startswith("{")
        if is_json:
            row = parse_line(text, place)
            if missing := [name for name in columns if name not in row]:
                raise UserError(f"{place}: no '{missing[0]}' (keys: {', '.join(row) or 'none'})")
            return [row[name] for name in columns]
        texts = text.split("\t")
        if len(texts) != len(columns):
            raise UserError(
                f"{place}: expected {len(columns)} texts separated by tabs "
                f"({', '.join(columns)}), found {len(texts)}; or JSON lines with these keys"
            )
        return texts

    return parse
