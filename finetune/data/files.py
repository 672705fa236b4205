"""Read files of rows chunk by chunk, for training, evaluation and prediction alike.

A file is always cut into the same chunks, whichever process reads it, so that processes can divide
the chunks among themselves and an interrupted prediction can be resumed.

A missing value is None. In ``.csv`` and ``.tsv`` files it is an empty field, quoted or not, and
nothing else: the words NA, null and None are text. In JSON lines it is null or an absent key, in
parquet a null; there an empty text is a value. In a ``.txt`` file every line is a text, even if
blank, so that every line gets a prediction. In a ``.csv`` or ``.tsv`` of one column a blank line is
an empty field, elsewhere not a row.

How a file of text is compressed, encoded, separated and quoted, :mod:`finetune.data.layout` and
:mod:`finetune.data.delimited` find out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from finetune.data import bounds, charsets, columnar, delimited, json_documents, spreadsheet
from finetune.data.delimited import Placed, Row
from finetune.data.layout import USUAL, Layout, ReadOptions, detected, opened, two_encodings
from finetune.errors import UserError, suggestion
from finetune.runtime import formats
from finetune.runtime.formats import SEPARATORS

#: Enough rows to sort by length, few enough to hold in memory and to redo.
CHUNK_ROWS = 1024

Rows = list[Row]
#: Rows, and where in the input they end: bytes, or rows where they can be counted.
Read = tuple[Rows | pa.Table, int]
Reader = Callable[[Path], Iterator[Read]]
Parser = Callable[[Path, IO[str]], Iterator[Placed]]
#: Positions that a message names.
SHOWN_PLACES = 5
#: The formats that an option is for, and how to say that.
_READ_WITH = {
    "--csv_quoting": (tuple(SEPARATORS), "a .csv or .tsv file"),
    "--csv_separator": (tuple(SEPARATORS), "a .csv or .tsv file"),
    "--encoding": (formats.TEXTS, "a file of text"),
    "--sheet": ((formats.SPREADSHEET,), "a spreadsheet"),
}
_HINTS = {
    **dict.fromkeys((".xls", ".xlsb", ".ods"), "save it as .xlsx"),
    ".parquet.gz": "it is compressed: gunzip -k FILE",
    ".xz": "it is compressed: unxz -k FILE",
    **dict.fromkeys((".gz", ".bz2", ".zst"), "what is in it has to be in its name, as .csv.gz"),
    ".zip": "what is in it has to be in its name, as .csv.zip; or unzip it",
}


@dataclass(frozen=True)
class Chunk:
    """Some rows of the input.

    Attributes:
        number: Of the chunk, from 0.
        rows: As dictionaries, or as a table where the columns have types of their own.
        end: Where it ends in the input: bytes of a text, rows of anything else, also of a
            compressed text.
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
        """Return the rows as a table; the types of dictionaries are inferred."""
        if not isinstance(self.rows, list):
            return self.rows
        return pa.table({name: self.values(name) for name in self.columns})

    def dictionaries(self) -> Rows:
        """Return the rows as Python's own values."""
        return self.rows if isinstance(self.rows, list) else list(self.rows.to_pylist())


def existing(name: str) -> Path:
    """Return the path of a file or a directory.

    Raises:
        UserError: if it does not exist; the most similar name in its directory is suggested.
    """
    path = Path(name).expanduser()
    if not path.exists():
        there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, there)}")
    return path


def chunks(
    path: Path, reader: Reader | None = None, layout: Layout | None = None
) -> Iterator[Chunk]:
    """Read the rows of a file in order.

    Args:
        path: A file whose suffix is one of :data:`READERS`, in upper or lower case.
        reader: Reads an input that is not a file; it may have no rows.
        layout: Of a file of text, as :func:`inspected` returns it; None to detect it.

    Raises:
        UserError: if the file is malformed, with the line; or if it holds no rows.
    """
    number = -1
    if reader is None and layout is None:
        layout = inspected(path)[0]
    rows_of = reader or partial(READERS[formats.suffix(path)], layout or USUAL)
    with _explained(path):
        for number, (rows, end) in enumerate(rows_of(path)):
            yield Chunk(number, rows, end)
    if number < 0 and reader is None:
        raise UserError(f"{path} holds no rows")


def how_to_convert(path: Path) -> str:
    """Return a hint for a file of another format; empty if there is none."""
    hint = _HINTS.get(formats.suffix(path), "").replace("FILE", path.name)
    return hint and f"; {hint}"


def inspected(path: Path, options: ReadOptions | None = None) -> tuple[Layout, str]:
    """Return how a file is to be read, and a sentence for the user; empty if it is as usual.

    Args:
        path: A file of any format.
        options: What the user says of it.

    Raises:
        UserError: if an option is not for such a file, or it cannot be read.
    """
    options, suffix = options or ReadOptions(), formats.suffix(path)
    for flag, value in options.named.items():
        suffixes, expected = _READ_WITH[flag]
        if suffix not in suffixes:
            raise UserError(f"{flag} {value}: {path} is not {expected}")
    if suffix == formats.SPREADSHEET:
        with _explained(path):
            sheet, sentence = spreadsheet.chosen(path, options.sheet)
        return Layout(sheet=sheet), sentence
    if suffix not in formats.TEXTS:
        return USUAL, ""
    with _explained(path):
        layout, sentence = detected(path, options)
    if suffix not in SEPARATORS:
        return layout, sentence
    with _explained(path):
        quoting, of_quoting = delimited.quoting(path, layout, options.quoting)
    told = "; ".join(each for each in (sentence, of_quoting) if each)
    return replace(layout, quoting=quoting), told


def whole(path: Path, options: ReadOptions) -> str:
    """Return the text of a ``.txt`` file that is a single row.

    Raises:
        UserError: if it is no text.
    """
    with _explained(path):
        layout = detected(path, options)[0]
        with opened(path) as file:
            return file.read().decode(layout.encoding)


def places(path: Path, rows: Sequence[int], layout: Layout | None = None) -> str:
    """Return the positions of the first few of some rows in a file: ``lines 5, 9``.

    Args:
        path: A file; in a format without lines, rows are counted from 1.
        rows: Row numbers, from 0, sorted; at least one.
        layout: As :func:`inspected` returns it; the usual one if None.
    """
    noun, numbers = positions(path, rows[:SHOWN_PLACES], layout)
    return shown_places(noun, numbers) + ", ..." * (len(rows) > SHOWN_PLACES)


def positions(
    path: Path, rows: Sequence[int], layout: Layout | None = None
) -> tuple[str, list[int]]:
    """Return what a position is called, ``line`` or ``row``, and that of each of some rows.

    Args:
        path: As of :func:`places`.
        rows: Row numbers, from 0, in any order; the file is read once, up to the last.
        layout: As of :func:`places`.
    """
    layout = layout or Layout(separator=SEPARATORS.get(formats.suffix(path), ","))
    wanted, end = {*rows}, max(rows) + 1
    if parser := _parser(formats.suffix(path), layout):
        with _parsed(path, layout, *parser) as (placed, _), delimited.long_fields():
            some = enumerate(itertools.islice(placed, end))
            found = {row: first for row, (first, _, _) in some if row in wanted}
        return "line", [found[row] for row in rows]
    if layout.sheet:
        several = enumerate(itertools.islice(spreadsheet.rows(path, layout.sheet), end))
        found = {row: number for row, (number, _) in several if row in wanted}
        return "row", [found[row] for row in rows]
    return "row", [row + 1 for row in rows]


def shown_places(noun: str, numbers: Sequence[int]) -> str:
    """Return positions in words: ``lines 5, 9``."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a ``UserError``.

    Raises:
        UserError: with the line, where it is known.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_throughout(path, error) from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _not_throughout(path: Path, error: UnicodeDecodeError) -> UserError:
    """Return the refusal of a file that begins in an encoding and does not go on in it."""
    encoding, where = error.encoding.replace("_", "-"), ""
    if encoding == "utf-8" and (refusal := two_encodings(path)):
        return refusal
    if not encoding.startswith(("utf-16", "utf-32")):  # of which a byte is no end of a line
        with opened(path) as lines:
            numbered = enumerate(lines, start=1)
            is_right = partial(charsets.decodes, encoding=encoding)
            wrong = (f"line {n}, " for n, each in numbered if not is_right(each))
            where = next(wrong, "")
    return UserError(
        f"{path} is not {encoding} throughout: {error.reason} ({where}byte "
        f"{error.object[error.start]:#x}); --encoding NAME reads all of it in another, such as "
        f"{'cp1252' if encoding == 'utf-8' else 'utf-8'}; or correct that line"
    )


@contextlib.contextmanager
def _parsed(
    path: Path, layout: Layout, parse: Parser, newline: str
) -> Iterator[tuple[Iterator[Placed], IO[bytes]]]:
    """Open a text file; yield its parsed rows, and the binary file to tell the position."""
    with opened(path) as binary:
        lines = io.TextIOWrapper(binary, encoding=layout.encoding, newline=newline)
        yield parse(path, lines), binary


def _of_text(parse: Parser, newline: str, layout: Layout, path: Path) -> Iterator[Read]:
    """Yield the parsed rows of a text file, a chunk at a time."""
    is_compressed, rows = bool(formats.compression(path)), 0
    with _parsed(path, layout, parse, newline) as (placed, binary):
        while some := _next(placed):
            rows += len(some)
            yield some, rows if is_compressed else binary.tell()


def _next(placed: Iterator[Placed]) -> Rows:
    """Return the rows of a chunk."""
    with delimited.long_fields():
        return [row for _, _, row in itertools.islice(placed, CHUNK_ROWS)]


def _delimited(layout: Layout, path: Path) -> Iterator[Read]:
    """Yield tables whose columns are all text."""
    before = 0
    for rows, end in _of_text(partial(delimited.records, layout, False), "", layout, path):
        schema = pa.schema([(name, pa.string()) for name in rows[0]])
        table = pa.Table.from_pylist(rows, schema=schema)
        if null := delimited.null_byte(table):
            row, name = null
            raise UserError(
                f"{path}, {places(path, [before + row], layout)}: the column '{name}' holds a null "
                "byte, which is no text: is the file damaged? Export it again, or remove the byte"
            )
        before += len(rows)
        yield table, end


def _parser(suffix: str, layout: Layout) -> tuple[Parser, str] | None:
    """Return the parser of a format with lines and its line ending; None for other formats."""
    if suffix in SEPARATORS:
        return partial(delimited.records, layout, False), ""
    return _PARSERS.get(suffix)


def _json_lines(path: Path, lines: IO[str]) -> Iterator[Placed]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, number, json_object(line, f"{path}, line {number}")


def json_object(line: str, place: str) -> Row:
    """Return the row of a line of JSON lines; ``place`` is its position, for the messages.

    Raises:
        UserError: if it is no object.
    """
    bounds.refuse_deep(line, place)
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: {json_documents.explained(error)}") from error
    except ValueError as error:  # of Python's own limit
        most = f"{sys.get_int_max_str_digits():,}"
        raise UserError(
            f"{place}: an integer of more than {most} digits; write it as text, in quotation marks"
        ) from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected an object, found {line[:40]!r}")
    if "\\u" in line:
        bounds.refuse_half_characters(json.dumps(row, ensure_ascii=False), place)
    return row


def sliced(rows: Sequence[Any]) -> Iterator[Read]:
    """Return rows that are in memory, a chunk at a time."""
    for start in range(0, len(rows), CHUNK_ROWS):
        some = rows[start : start + CHUNK_ROWS]
        yield some, start + len(some)


def _lines(_: Path, lines: IO[str]) -> Iterator[Placed]:
    for number, line in enumerate(lines, start=1):
        yield number, number, {"text": line.removesuffix("\n").removesuffix("\r")}


def _json(layout: Layout, path: Path) -> Iterator[Read]:
    """Yield the rows of a JSON document; JSON lines may have that suffix, too."""
    with opened(path) as binary:
        lines = io.TextIOWrapper(binary, encoding=layout.encoding)
        first, second = (next((line for line in lines if line.strip()), "") for _ in range(2))
        if json_documents.is_object(first) and json_documents.is_object(second):
            parse, newline = _PARSERS[".jsonl"]
            yield from _of_text(parse, newline, layout, path)
            return
        text = first + second + lines.read()
    yield from sliced(json_documents.rows(text, path))


def _of_sheet(layout: Layout, path: Path) -> Iterator[Read]:
    """Yield the rows of a spreadsheet as tables whose columns are all text."""
    found, end = (row for _, row in spreadsheet.rows(path, layout.sheet)), 0
    while some := list(itertools.islice(found, CHUNK_ROWS)):
        end += len(some)
        schema = pa.schema([(name, pa.string()) for name in some[0]])
        yield pa.Table.from_pylist(some, schema=schema), end


_PARSERS: dict[str, tuple[Parser, str]] = {
    ".jsonl": (_json_lines, "\n"),
    ".ndjson": (_json_lines, "\n"),
    ".txt": (_lines, "\n"),
}
#: By the suffix of a file.
READERS: dict[str, Callable[[Layout, Path], Iterator[Read]]] = {
    ".csv": _delimited,
    ".tsv": _delimited,
    **{suffix: partial(_of_text, *parser) for suffix, parser in _PARSERS.items()},
    ".json": _json,
    ".parquet": lambda layout, path: columnar.parquet(path, CHUNK_ROWS),
    ".arrow": lambda layout, path: columnar.arrow(path, CHUNK_ROWS),
    ".feather": lambda layout, path: columnar.arrow(path, CHUNK_ROWS),
    formats.SPREADSHEET: _of_sheet,
}
#: Suffixes of formats that are read line by line.
WITH_LINES = (*SEPARATORS, *_PARSERS)
