"""Inputs of a prediction: a file, a folder of images, standard input or a data frame.

All but the standard input are a table that is read in chunks of consecutive rows, so that processes
share the chunks, and an interrupted prediction continues with the next one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

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
#: Rows of an input: of a frame the values of each column.
Rows: TypeAlias = "pa.Table | Mapping[str, list[Any]]"


def open_table(name: str, options: ReadOptions, report: Report) -> tuple[str, pa.Table]:
    """Return the suffix of a file, or ``folder`` (of images, or a single one), and its rows.

    Args:
        name: A file, which is read into the cache, a folder or an image.
        options: How to read a file.
        report: Gets how a file was read.

    Raises:
        UserError: If it cannot be read or has no rows.
    """
    path = read.existing(name)
    kind, table = formats.suffix(path), None
    if path.is_dir() or images.is_image(path):
        kind, names = "folder", images.below(path) if path.is_dir() else [path.name]
        table = pa.table({"file": pa.array(names, pa.string())})
    elif kind in read.READABLE:
        table = read.read_file(path, options, report).data.table
    if not table:
        raise UserError(
            f"cannot read {name}: expected a file ending in {', '.join(read.READABLE)}, an image "
            f"or a folder of images ({', '.join(images.SUFFIXES)}), or - for standard input"
        )
    return kind, table


def frame_values(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the values of each column of a data frame; missing values become None.

    Raises:
        UserError: If two columns have one name.
    """
    if repeated := frame.columns[frame.columns.duplicated()].tolist():
        raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
    values = frame.astype(object).where(frame.notna(), None)
    return {column: values[column].tolist() for column in frame.columns}


def cells(rows: Rows, column: str) -> list[Any]:
    """Return the values of a column; None where one is missing."""
    if isinstance(rows, Mapping):
        return rows[column]
    values: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        return [None if value is None else json.loads(value) for value in values]
    return values


def read_lines(columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the lines of the standard input as they arrive: an answer need not wait for others."""
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
