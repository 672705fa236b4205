"""Reads files of rows, for training, evaluation and prediction alike, a chunk of rows at a time.

A file is cut into the same chunks by whoever reads it and however often, so that processes can
divide them among themselves, and an interrupted prediction can go on.

A missing value is None. In ``.csv`` and ``.tsv`` files that is an empty field, quoted or not, and
nothing else: the words NA, null and None are text. In JSON lines it is null or an absent key, in
parquet a null: there an empty text is a value. Each line of a ``.txt`` file is a text, a blank line
an empty one, so that there is a prediction for every line. In the other formats a blank line is not
a row.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
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
_LONGEST_FIELD = 2**24  # characters; beyond, a quote was opened that nothing closes

Row = dict[str, Any]
Rows = list[Row]
#: Rows, and where in the input they end: bytes, or rows where they can be counted.
Read = tuple[Rows | pa.Table, int]
Reader = Callable[[Path], Iterator[Read]]


@dataclass(frozen=True)
class Chunk:
    """Some rows of the input.

    Attributes:
        number: Of the chunk, from 0.
        rows: As dictionaries, or as a table where the columns have types of their own.
        end: Where it ends in the input: bytes of a text, rows of anything else.
    """

    number: int
    rows: Rows | pa.Table
    end: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Their names, in the order in which they occur."""
        if not isinstance(self.rows, list):
            return list(self.rows.column_names)
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def values(self, column: str) -> list[Any]:
        """Return one column; None where a row has no such value."""
        if isinstance(self.rows, list):
            return [row.get(column) for row in self.rows]
        return list(self.rows.column(column).to_pylist())

    def table(self) -> pa.Table:
        """Return the rows with types, found out where there are none yet."""
        if not isinstance(self.rows, list):
            return self.rows
        return pa.table({name: self.values(name) for name in self.columns})

    def dictionaries(self) -> Rows:
        """Return the rows as Python's own values."""
        return self.rows if isinstance(self.rows, list) else list(self.rows.to_pylist())


def existing(name: str) -> Path:
    """Return the path of a file or a directory.

    Raises:
        UserError: if there is none; the nearest name beside it is suggested.
    """
    path = Path(name).expanduser()
    if not path.exists():
        there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, there)}")
    return path


def chunks(path: Path, reader: Reader | None = None) -> Iterator[Chunk]:
    """Read the rows of a file in their order.

    Args:
        path: A file whose suffix is one of :data:`READERS`, in upper or lower case.
        reader: For something other than a file, which may hold no rows.

    Raises:
        UserError: if the file is malformed, with the line; or if it holds no rows.
    """
    number = -1
    try:
        for number, (rows, end) in enumerate((reader or READERS[path.suffix.lower()])(path)):
            yield Chunk(number, rows, end)
    except UnicodeDecodeError as error:
        line = f"line {_line_not_utf8(path)}, " if path.is_file() else ""
        raise UserError(
            f"{path} is not UTF-8: {error.reason} ({line}byte {error.object[error.start]:#x}); "
            "convert it, as with: iconv -f latin1 -t utf-8"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if number < 0 and reader is None:
        raise UserError(f"{path} holds no rows")


def _of_text(
    parse: Callable[[Path, IO[str]], Iterator[Row]], newline: str, path: Path
) -> Iterator[Read]:
    """The rows that are parsed of a text file, a chunk at a time."""
    with path.open("rb") as binary:
        lines = io.TextIOWrapper(binary, encoding="utf-8-sig", newline=newline)
        rows = parse(path, lines)
        while some := _next(rows):
            yield some, binary.tell()


def _next(rows: Iterator[Row]) -> Rows:
    """Return the rows of a chunk, fields as long as a text may be; the limit is the process's."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return list(itertools.islice(rows, CHUNK_ROWS))
    finally:
        csv.field_size_limit(limit)


def _delimited(separator: str, path: Path) -> Iterator[Read]:
    """Every column is text."""
    for rows, end in _of_text(partial(_records, separator), "", path):
        schema = pa.schema([(name, pa.string()) for name in rows[0]])
        yield pa.Table.from_pylist(rows, schema=schema), end


def _records(separator: str, path: Path, lines: IO[str]) -> Iterator[Row]:
    ended = False

    def to_the_end() -> Iterator[str]:
        nonlocal ended
        yield from lines
        ended = True

    reader = csv.reader(to_the_end(), delimiter=separator)
    header: list[str] = []
    line = 1  # where the row begins
    try:
        for fields in reader:
            if ended:  # only a row that the end of the file cuts off comes after it
                raise csv.Error("the file ends in a quoted field")
            if fields and not header:
                header = [name or f"Unnamed: {n}" for n, name in enumerate(fields)]
                _refuse_repeated(path, header)
            elif fields:
                if len(fields) != len(header):
                    raise UserError(
                        f"{path}, line {line}: expected {len(header)} fields as in the first line, "
                        f"found {len(fields)}"
                    )
                yield dict(zip(header, (field or None for field in fields), strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: {error}; is a quote never closed?") from error


def _json_lines(path: Path, lines: IO[str]) -> Iterator[Row]:
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
        if "\\u" in line:
            refuse_half_characters(json.dumps(row, ensure_ascii=False), f"{path}, line {number}")
        yield row


def sliced(rows: Sequence[Any]) -> Iterator[Read]:
    """Return rows that are in memory, a chunk at a time."""
    for start in range(0, len(rows), CHUNK_ROWS):
        some = rows[start : start + CHUNK_ROWS]
        yield some, start + len(some)


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse a text that no encoding can write; ``place`` says where it stands.

    Raises:
        UserError: if it has a surrogate without the other one of its pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(
            f"{place}: {half} is half of a character, as where a text was cut in the middle of one"
        ) from error


def _lines(_: Path, lines: IO[str]) -> Iterator[Row]:
    return ({"text": line.removesuffix("\n").removesuffix("\r")} for line in lines)


def _parquet(path: Path) -> Iterator[Read]:
    end = 0
    with pq.ParquetFile(path) as file:
        _refuse_repeated(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=CHUNK_ROWS):
            if batch.num_rows:
                end += batch.num_rows
                yield pa.Table.from_batches([batch]), end


#: By the suffix of a file.
READERS: dict[str, Reader] = {
    ".csv": partial(_delimited, ","),
    ".tsv": partial(_delimited, "\t"),
    ".jsonl": partial(_of_text, _json_lines, "\n"),
    ".parquet": _parquet,
    ".txt": partial(_of_text, _lines, "\n"),
}


def _refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{repeated[0]}'")


def _line_not_utf8(path: Path) -> int:
    with path.open("rb") as lines:
        numbered = enumerate(lines, start=1)
        return next(n for n, line in numbered if line.decode(errors="ignore").encode() != line)
