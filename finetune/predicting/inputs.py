"""Inputs of a prediction: a file, a folder of images, standard input or a data frame.

All but the standard input are a table that is read in chunks of consecutive rows, so that processes
share the chunks, and an interrupted prediction continues with the next one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
class Input:
    """Rows to predict.

    Attributes:
        name: As the user typed it.
        kind: The suffix of a file; ``-`` for standard input, ``frame``, or ``folder`` of images or
            a single one.
        columns: The names of its columns.
        total: The number of rows; None for standard input.
        rows: A table; of a frame the values of each column. Of standard input there are none.
        notes: Sentences about how a file is read.
    """

    name: str
    kind: str
    columns: Sequence[str]
    total: int | None = None
    rows: pa.Table | Mapping[str, list[Any]] = field(default_factory=dict)
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
            return cls(name, STANDARD_INPUT, columns)
        path, kind, notes = read.existing(name), "folder", list[str]()
        if path.is_dir() or images.is_image(path):
            names = images.below(path) if path.is_dir() else [path.name]
            table = pa.table({"file": pa.array(names, pa.string())})
        elif (kind := formats.suffix(path)) in read.READABLE:
            report = Report()
            table = read.read_file(path, options, report).data.table
            notes = report.sentences("info")
        if kind not in ("folder", *read.READABLE) or not len(table):
            raise UserError(
                f"cannot read {name}: expected a file ending in {', '.join(read.READABLE)}, an "
                f"image or a folder of images ({', '.join(images.SUFFIXES)}), or - for standard "
                "input"
            )
        return cls(str(path), kind, table.column_names, len(table), table, notes)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Input:
        """Return the rows of a data frame; missing values become None.

        Raises:
            UserError: If two columns have one name.
        """
        if repeated := frame.columns[frame.columns.duplicated()].tolist():
            raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
        values = frame.astype(object).where(frame.notna(), None).to_dict("list")
        return cls("the data", "frame", tuple(frame.columns), len(frame), values)

    def chunks(
        self, rank: int = 0, world_size: int = 1, complete: Container[int] = ()
    ) -> Iterator[tuple[int, pa.Table | Mapping[str, list[Any]]]]:
        """Yield the numbers and rows of the chunks of one process, in order.

        Args:
            rank: Of the process.
            world_size: The number of processes; each reads every n-th chunk.
            complete: The numbers of chunks to leave out.
        """
        if self.total is None:
            yield from enumerate(_standard_input(self.columns))
            return
        for number in range(rank, -(-self.total // CHUNK_ROWS), world_size):
            start = number * CHUNK_ROWS
            if number in complete:
                continue
            if isinstance(self.rows, pa.Table):
                yield number, self.rows.slice(start, CHUNK_ROWS)
            else:
                end = start + CHUNK_ROWS
                yield number, {name: values[start:end] for name, values in self.rows.items()}


def cells(rows: pa.Table | Mapping[str, list[Any]], column: str) -> list[Any]:
    """Return the values of a column; None where one is missing."""
    if not isinstance(rows, pa.Table):
        return rows[column]
    values: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        return [None if value is None else json.loads(value) for value in values]
    return values


def _standard_input(columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of lines as they arrive, so that an answer need not wait for a whole chunk."""
    rest, count, block = b"", 0, b"-"
    while block:
        block = os.read(sys.stdin.fileno(), _LONGEST_READ)
        *lines, rest = (rest + block).split(b"\n")
        rows = []
        for line in lines if block or not rest else [*lines, rest]:
            count += 1
            try:
                text = line.decode("utf-8-sig" if count == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise UserError(f"standard input, line {count}: not UTF-8") from error
            rows.append(text.split("\t") if len(columns) > 1 else [text])
            if len(rows[-1]) != len(columns):
                raise UserError(
                    f"standard input, line {count}: expected {len(columns)} texts separated by "
                    f"tabs ({', '.join(columns)}), found {len(rows[-1])}"
                )
        if rows:
            values = map(pa.array, zip(*rows, strict=True))
            yield pa.table(dict(zip(columns, values, strict=True)))
