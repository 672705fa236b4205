"""A reader for each kind of input: chunks of rows, and where in the input each ends."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import UserError

#: Enough rows to sort by length, few enough to hold in memory and to be done again.
CHUNK_ROWS = 1024
STANDARD_INPUT = "-"
_LONGEST_FIELD = 2**24  # characters; beyond, a quote was opened that nothing closes
_MORE_MAY_COME = 0.05  # seconds
_LONGEST_READ = 2**16  # bytes

Row = dict[str, Any]
Rows = list[Row]
#: Rows, and where in the input they end: bytes, or rows where they can be counted.
Read = tuple[Rows | pa.Table, int]


def _of_text(
    parse: Callable[[Path, IO[str]], Iterator[Row]], newline: str, path: Path
) -> Iterator[Read]:
    """The rows that are parsed of a text file, a chunk at a time."""
    with path.open("rb") as binary, _as_text(binary, newline) as lines:
        rows = parse(path, lines)
        while some := list(itertools.islice(rows, CHUNK_ROWS)):
            yield some, binary.tell()


def _delimited(separator: str, path: Path, lines: IO[str]) -> Iterator[Row]:
    """Every column is text. An empty field is an empty text, not a missing one."""
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(lines, delimiter=separator)
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
            yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: {error}; is a quote never closed?"
        ) from error


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


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse what no encoding can write.

    Args:
        text: To be checked.
        place: Where it stands, for the message.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(
            f"{place}: {half} is half of a character, as where a text was cut in the middle of one"
        ) from error


def _lines(path: Path, lines: IO[str]) -> Iterator[Row]:
    """Each line is a text; a blank one is an empty text."""
    for line in lines:
        yield {"text": line.removesuffix("\n").removesuffix("\r")}


def _standard_input(_: Path) -> Iterator[Read]:
    """Its lines as they come: an answer does not wait for a whole chunk to be written."""
    source, read, rest = sys.stdin.buffer.fileno(), 0, b""
    rows: Rows = []
    while block := os.read(source, _LONGEST_READ):
        if not read:
            block = block.removeprefix(codecs.BOM_UTF8)
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


PICTURES = (".png", ".jpg", ".jpeg")


def files_of(folder: Path) -> list[str]:
    """The names of the pictures in a folder, sorted."""
    return sorted(
        each.name for each in folder.iterdir() if each.suffix.lower() in PICTURES and each.is_file()
    )


def _pictures(folder: Path) -> Iterator[Read]:
    """The names of the files, sorted; they are opened as they are predicted."""
    names = files_of(folder)
    for start in range(0, len(names), CHUNK_ROWS):
        some = names[start : start + CHUNK_ROWS]
        yield [{"file": name} for name in some], start + len(some)


READERS: dict[str, Callable[[Path], Iterator[Read]]] = {
    ".csv": partial(_of_text, partial(_delimited, ","), ""),
    ".tsv": partial(_of_text, partial(_delimited, "\t"), ""),
    ".jsonl": partial(_of_text, _json_lines, "\n"),
    ".parquet": _parquet,
    ".txt": partial(_of_text, _lines, "\n"),
    STANDARD_INPUT: _standard_input,
    "folder": _pictures,
}


def _as_text(binary: IO[bytes], newline: str) -> IO[str]:
    return io.TextIOWrapper(binary, encoding="utf-8-sig", newline=newline)


def _line(line: bytes) -> str:
    return line.decode("utf-8").removesuffix("\r")
