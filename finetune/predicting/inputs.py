"""Reads what is to be predicted, a chunk of rows at a time, with every column as it is.

A file is cut into the same chunks by whoever reads it and however often, so that processes can
divide them among themselves, and an interrupted prediction can go on.
"""

from __future__ import annotations

import csv
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import UserError, suggestion

#: Enough rows to sort by length, few enough to hold in memory and to be done again.
CHUNK_ROWS = 1024
STANDARD_INPUT = "-"
_LONGEST_FIELD = 2**24  # characters; beyond, a quote was opened that nothing closes
_MORE_MAY_COME = 0.05  # seconds
_LONGEST_READ = 2**16  # bytes

Rows = list[dict[str, Any]]
#: Rows, and where in the input they end: bytes, or rows where they can be counted.
Read = tuple[Rows | pa.Table, int]


@dataclass(frozen=True)
class Chunk:
    """Some rows of the input.

    Attributes:
        number: Of the chunk, from 0.
        rows: As dictionaries, or as a table where the columns have types of their own.
        end: Where it ends in the input, in the units of :attr:`Input.total`.
    """

    number: int
    rows: Rows | pa.Table
    end: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, column: str) -> list[Any]:
        """One column; None where a row has no such value."""
        if isinstance(self.rows, list):
            return [row.get(column) for row in self.rows]
        return list(self.rows.column(column).to_pylist())

    def table(self) -> pa.Table:
        """The rows with types, found out where there are none yet."""
        rows = self.rows
        if not isinstance(rows, list):
            return rows
        return pa.table({name: self.values(name) for name in _keys(rows)})

    def dictionaries(self) -> Rows:
        """The rows as Python's own values."""
        return self.rows if isinstance(self.rows, list) else list(self.rows.to_pylist())


@dataclass(frozen=True)
class Input:
    """A file, a folder of pictures or the standard input.

    Attributes:
        name: As the user gave it.
        kind: The suffix of the file; ``-`` for the standard input, ``folder`` for pictures.
        columns: Those of its rows; in JSON lines, those of the first chunk.
        total: Its size: bytes of a text, rows of any other; None if it cannot be known.
    """

    name: str
    kind: str
    columns: Sequence[str]
    total: int | None

    @classmethod
    def open(cls, name: str) -> Input:
        """What ``name`` names, with the first chunk read.

        Raises:
            UserError: if it cannot be read, or holds no row.
        """
        if name == STANDARD_INPUT:
            return cls(name, STANDARD_INPUT, ("text",), None)
        path = Path(name).expanduser()
        kind = "folder" if path.is_dir() else path.suffix.lower()
        if not path.exists():
            there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
            raise UserError(f"no such file or directory: {name}{suggestion(path.name, there)}")
        if kind not in _READERS:
            known = ", ".join(each for each in _READERS if each.startswith("."))
            raise UserError(
                f"cannot read {name}: expected a file that ends in {known}, a folder of "
                f"{', '.join(_PICTURES)}, or - for the standard input"
            )
        first = next(cls(str(path), kind, (), None).chunks(), None)
        if first is None:
            held = f"no {' or '.join(_PICTURES)}" if kind == "folder" else "no rows"
            raise UserError(f"{name} holds {held}")
        rows = first.rows
        columns = _keys(rows) if isinstance(rows, list) else rows.column_names
        return cls(str(path), kind, columns, _total(path, kind))

    def chunks(self) -> Iterator[Chunk]:
        """The rows in their order.

        Raises:
            UserError: where the input is malformed, with the place.
        """
        try:
            for number, (rows, end) in enumerate(_READERS[self.kind](Path(self.name))):
                yield Chunk(number, rows, end)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.name} is not UTF-8: {error.reason} (byte {error.object[error.start]:#x}); "
                "convert it, as with: iconv -f latin1 -t utf-8"
            ) from error
        except pa.ArrowInvalid as error:
            raise UserError(f"cannot read {self.name}: {error}") from error


def _keys(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _total(path: Path, kind: str) -> int:
    if kind == ".parquet":
        return int(pq.ParquetFile(path).metadata.num_rows)
    return len(_files_of(path)) if kind == "folder" else path.stat().st_size


# ---- a reader for each kind ----------------------------------------------------------------------


def _delimited(separator: str, path: Path) -> Iterator[Read]:
    """Every column is text. An empty field is an empty text, not a missing one."""
    with path.open("rb") as binary, _as_text(binary, "") as lines:
        csv.field_size_limit(_LONGEST_FIELD)
        reader = csv.reader(lines, delimiter=separator)
        rows: Rows = []
        try:
            header = next(reader, [])
            if twice := [name for name in header if header.count(name) > 1]:
                raise UserError(f"{path}: two columns are called '{twice[0]}'")
            for fields in reader:
                if not fields:  # a blank line
                    continue
                if len(fields) != len(header):
                    raise UserError(
                        f"{path}, line {reader.line_num}: expected {len(header)} fields as in the "
                        f"first line, found {len(fields)}"
                    )
                rows.append(dict(zip(header, fields, strict=True)))
                if len(rows) == CHUNK_ROWS:
                    yield rows, binary.tell()
                    rows = []
        except csv.Error as error:
            raise UserError(
                f"{path}, line {reader.line_num}: {error}; is a quote never closed?"
            ) from error
        if rows:
            yield rows, binary.tell()


def _json_lines(path: Path) -> Iterator[Read]:
    with path.open("rb") as binary, _as_text(binary, "\n") as lines:
        rows: Rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: {error.msg} (character {error.pos + 1})"
                ) from error
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: expected an object, found {line[:40]!r}")
            rows.append(row)
            if len(rows) == CHUNK_ROWS:
                yield rows, binary.tell()
                rows = []
        if rows:
            yield rows, binary.tell()


def _lines(path: Path) -> Iterator[Read]:
    """Each line is a text; a blank one is an empty text."""
    with path.open("rb") as binary, _as_text(binary, "\n") as lines:
        rows: Rows = []
        for line in lines:
            rows.append({"text": line.removesuffix("\n").removesuffix("\r")})
            if len(rows) == CHUNK_ROWS:
                yield rows, binary.tell()
                rows = []
        if rows:
            yield rows, binary.tell()


def _standard_input(_: Path) -> Iterator[Read]:
    """Its lines as they come: an answer does not wait for a whole chunk to be written."""
    source, read, rest = sys.stdin.buffer.fileno(), 0, b""
    rows: Rows = []
    while block := os.read(source, _LONGEST_READ):
        read += len(block)
        *whole, rest = (rest + block).split(b"\n")
        rows += [{"text": _line(each)} for each in whole]
        while len(rows) >= CHUNK_ROWS:
            yield rows[:CHUNK_ROWS], read
            del rows[:CHUNK_ROWS]
        if rows and not select.select([source], [], [], _MORE_MAY_COME)[0]:
            yield rows, read
            rows = []
    if rest:
        rows.append({"text": _line(rest)})
    if rows:
        yield rows, read


def _parquet(path: Path) -> Iterator[Read]:
    end = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=CHUNK_ROWS):
            if batch.num_rows:
                end += batch.num_rows
                yield pa.Table.from_batches([batch]), end


_PICTURES = (".png", ".jpg", ".jpeg")


def _files_of(folder: Path) -> list[str]:
    return sorted(
        each.name
        for each in folder.iterdir()
        if each.suffix.lower() in _PICTURES and each.is_file()
    )


def _pictures(folder: Path) -> Iterator[Read]:
    """The names of the files, sorted; they are opened as they are predicted."""
    names = _files_of(folder)
    for start in range(0, len(names), CHUNK_ROWS):
        some = names[start : start + CHUNK_ROWS]
        yield [{"file": name} for name in some], start + len(some)


_READERS: dict[str, Callable[[Path], Iterator[Read]]] = {
    ".csv": partial(_delimited, ","),
    ".tsv": partial(_delimited, "\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
    ".txt": _lines,
    STANDARD_INPUT: _standard_input,
    "folder": _pictures,
}


def _as_text(binary: IO[bytes], newline: str) -> IO[str]:
    import io

    return io.TextIOWrapper(binary, encoding="utf-8-sig", newline=newline)


def _line(line: bytes) -> str:
    return line.decode("utf-8").removesuffix("\r")
