"""Read ``.csv`` and ``.tsv`` files, and detect whether their quotation marks enclose fields."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune.data import headers
from finetune.data import lines as of_lines
from finetune.data.layout import NAMES, OTHERS, Layout, opened
from finetune.data.lines import Line
from finetune.errors import UserError, counted
from finetune.runtime import formats

_SEPARATED = "fields are separated by commas in a .csv and by tabs in a .tsv"
#: With so few line breaks in fields, an ambiguous file is read as quoted.
_FEW = 3
_LONGEST_FIELD = 2**24  # characters; anything longer is an unclosed quote
_NULL = re.compile(b"\0")
_SHOWN = 60  # characters

#: With which a formula begins, also written in full width.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001

Row = dict[str, Any]
#: The first and the last line of a row, and the row.
Placed = tuple[int, int, Row]
#: The first and the last line of a row, and what is in them: the line itself, or the fields.
Unparsed = tuple[int, int, Any]
#: Makes rows of what is in them.
Parse = Callable[[Iterable[Unparsed]], Iterator[Placed]]

_BLANK: tuple[Line, ...] = (b"\n", b"\r\n")


def quoting(path: Path, layout: Layout, wanted: str = "auto") -> tuple[str, str]:
    """Return how a file is quoted, and a sentence for the user if rows are not lines.

    If a quotation mark that begins a field is part of the text, it swallows the lines up to the
    next one. So rows are compared with lines: quotation marks are read as text if they do not pair
    up and every line has the same number of fields that way.

    Args:
        path: A ``.csv`` or ``.tsv``.
        layout: Its encoding and separator.
        wanted: One of :data:`~finetune.runtime.formats.QUOTING`.

    Returns:
        ``minimal`` or ``none``, and the sentence, empty if there is nothing to tell.

    Raises:
        UserError: if both readings are plausible, or ``wanted`` is none of them.
    """
    if wanted not in formats.QUOTING:
        raise UserError(f"--csv_quoting {wanted}: expected auto, minimal or none")
    if wanted != "auto":
        return wanted, ""
    with opened(path) as file:
        if not any(b'"' in block for block in iter(lambda: file.read(2**20), b"")):
            return "minimal", ""
    quotes, no_quotes = (replace(layout, quoting=each) for each in ("minimal", "none"))
    strictly = _count(path, quotes, strict=True)
    if not strictly.whole and _count(path, quotes, strict=True, doubled=True).whole:
        convert = rf"""sed 's/\\"/""/g' {shlex.quote(str(path))} > NEW{path.suffix}"""
        raise UserError(
            f'{path}, line {strictly.lines + 2}: quotation marks inside of texts are written \\", '
            'and a .csv doubles them, as in ""; export it like that'
            + f", or convert it: {convert}"
            * (not formats.compression(path))
        )
    quoted = strictly if strictly.whole else _count(path, quotes)
    if quoted.whole and quoted.rows == quoted.lines:
        first = strictly.lines + 2  # behind the header and the rows without a mistake
        return "minimal", "" if strictly.whole else (
            f"{path.name}, line {first}: text follows a closing quotation mark; such marks are "
            "left out (--csv_quoting none keeps all quotation marks as text)"
        )
    breaks = quoted.lines - quoted.rows
    spread = (
        f"{path.name}: {counted(quoted.rows, 'row')} in {quoted.lines:,} lines, as quoted fields "
        "contain line breaks"
    )
    literal = _count(path, no_quotes)
    if not literal.whole or any(name.startswith('"') for name in literal.header):
        return "minimal", spread if quoted.whole else ""
    alone = len(literal.header) == 1  # then any text parses, line by line
    strict = strictly.whole
    if alone and (strict or any(each in literal.header[0] for each in NAMES)):
        return "minimal", spread
    if strict and breaks <= _FEW:
        return "minimal", f"{spread}; --csv_quoting none for {counted(literal.rows, 'row')}"
    if strict or (quoted.whole and alone):
        raise UserError(
            f"{path}: quotation marks may enclose fields or be text; choose --csv_quoting minimal "
            f"({counted(quoted.rows, 'row')}) or --csv_quoting none ({counted(literal.rows, 'row')}"
            ", one per line)"
        )
    otherwise = f"leave {counted(quoted.rows, 'row')}" if quoted.whole else "not pair up"
    return "none", (
        f"{path.name}: read {counted(literal.rows, 'row')}, one per line, with quotation marks as "
        f"text; as quotes around fields they would {otherwise} (--csv_quoting minimal)"
    )


def lines_are_rows(path: Path, layout: Layout) -> bool:
    """Return whether each line of bytes is a row: there is no quotation mark, or they are text, and
    every carriage return is before a line feed.
    """
    if not of_lines.are_bytes(path, layout):
        return False
    with path.open("rb") as file:
        before = b""
        while block := file.read(2**20):
            if layout.quoting != "none" and b'"' in block:
                return False
            block = before + block
            before = b"\r" if block.endswith(b"\r") else b""
            if block.count(b"\r") - len(before) != block.count(b"\r\n"):
                return False
    return not before


def split(path: Path, layout: Layout, lines: Iterator[Line]) -> tuple[Iterator[Unparsed], Parse]:
    """Return the rows of a file as they are, and what makes dictionaries of some of them.

    Where each line is a row, they are lines, not even decoded; else the fields that ``csv`` reads.

    Args:
        path: The file.
        layout: How it is written.
        lines: Its own, see :func:`finetune.data.lines.split`.

    Raises:
        UserError: at once or later, if it is malformed, with the line.
    """
    decode = of_lines.decoder(lines, layout)
    rows = _fields(layout, False, path, map(decode, lines))
    end, header = _header(path, rows)
    if not layout.lines_are_rows:
        return rows, partial(_of_fields, layout, path, header)
    numbered = enumerate(lines, start=end + 1)  # of which the header has taken those before
    apart = ((n, n, line) for n, line in numbered if len(header) == 1 or line not in _BLANK)
    return apart, partial(_of_lines, layout, decode, path, header)


def records(layout: Layout, strict: bool, path: Path, lines: Iterable[str]) -> Iterator[Placed]:
    """Yield the rows of a file, with the column names of its first line; a missing value is None.

    Args:
        layout: Separator and quotation marks.
        strict: Whether to refuse text after the quotation mark that closes a field.
        path: The file, for messages.
        lines: The lines of the file.

    Raises:
        UserError: at a malformed row, with its line.
    """
    rows = _fields(layout, strict, path, lines)
    yield from _of_fields(layout, path, _header(path, rows)[1], rows)


def _header(path: Path, rows: Iterator[Unparsed]) -> tuple[int, list[str]]:
    """Take the first of the rows; return its last line and the names of the columns."""
    _, end, fields = next(rows, (0, 0, []))
    header = [name or f"Unnamed: {n}" for n, name in enumerate(fields)]
    refuse_repeated(path, header)
    return end, header


def _reader(layout: Layout, lines: Iterable[str], strict: bool = False) -> Any:
    return csv.reader(
        lines,
        delimiter=layout.separator,
        quoting=csv.QUOTE_NONE if layout.quoting == "none" else csv.QUOTE_MINIMAL,
        strict=strict,
    )


def _fields(layout: Layout, strict: bool, path: Path, lines: Iterable[str]) -> Iterator[Unparsed]:
    """Yield the fields of each row, the names of the columns first; as of :func:`records`."""
    ended = False

    def to_the_end() -> Iterator[str]:
        nonlocal ended
        yield from lines
        ended = True

    reader = _reader(layout, to_the_end(), strict)
    width = 0
    line = 1  # where the row begins
    try:
        for fields in reader:
            if ended:  # only a row that the end of the file cuts off comes after it
                raise csv.Error("the file ends in a quoted field")
            if line == 1 and _is_separator_line(fields):
                if len(fields) == 1:
                    raise UserError(
                        f"{path}, line 1: {fields[0]!r}: {_SEPARATED}; convert the file"
                    )
            elif fields or width == 1:
                width = width or len(fields)
                yield line, reader.line_num, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise _malformed(layout, path, line, error) from error


def _of_fields(
    layout: Layout, path: Path, header: Sequence[str], rows: Iterable[Unparsed]
) -> Iterator[Placed]:
    for line, last, fields in rows:
        yield line, last, _row(layout, path, line, header, fields)


def _of_lines(
    layout: Layout,
    decode: Callable[[Line], str],
    path: Path,
    header: Sequence[str],
    rows: Iterable[Unparsed],
) -> Iterator[Placed]:
    several, line = [*rows], 0
    fields = _reader(layout, (decode(each) for _, _, each in several))
    for line, _, _ in several:
        try:
            row = next(fields)
        except csv.Error as error:
            raise _malformed(layout, path, line, error) from error
        yield line, line, _row(layout, path, line, header, row)


def _row(
    layout: Layout, path: Path, line: int, header: Sequence[str], fields: Sequence[str]
) -> Row:
    fields = fields or [""]  # a blank line, of a single column
    if len(fields) != len(header):
        raise UserError(
            f"{path}, line {line}: expected {counted(len(header), 'field')} as in the "
            f"first line, found {len(fields)}{_how_to_mend(fields, header, layout)}"
        )
    return dict(zip(header, (field or None for field in fields), strict=True))


def _malformed(layout: Layout, path: Path, line: int, error: csv.Error) -> UserError:
    if str(error).startswith("field larger"):
        return UserError(
            f"{path}, line {line}: a field of more than {_LONGEST_FIELD:,} characters: if a "
            "quotation mark is never closed, --csv_quoting none reads them as text; if the text is "
            "so long, shorten it, or write the rows as .jsonl or .parquet"
        )
    literally = "; is a quote never closed? --csv_quoting none reads quotation marks as text"
    return UserError(f"{path}, line {line}: {error}{literally * (layout.quoting != 'none')}")


def _how_to_mend(fields: Sequence[str], header: Sequence[str], layout: Layout) -> str:
    """Return what a row with another number of fields than the first line needs."""
    if hint := separator_hint(header, fields):
        return hint
    if len(fields) < len(header):
        return ": is the line cut off, or a line break in a text without quotation marks around it?"
    name = NAMES.get(layout.separator, f"{layout.separator!r}")
    if layout.quoting == "none":
        return f": do texts hold {name}? Read with --csv_quoting none they cannot"
    mend = f": put a text that holds {name} in quotation marks"
    if len(header) == 1 and len(header[0].split()) > 1:
        mend += (
            f"; or if the first line, {header[0][:_SHOWN]!r}, is a title or a comment, remove what "
            "is above the names of the columns"
        )
    return mend


def _is_separator_line(fields: Sequence[str]) -> bool:
    """Return whether a row is ``sep=,``, which Excel reads: one field if it names another one."""
    return fields == ["sep=", ""] or (
        len(fields) == 1 and len(fields[0]) == 5 and fields[0].lower().startswith("sep=")
    )


def separator_hint(columns: Sequence[str], fields: Sequence[str] | None = None) -> str:
    """Return a hint if a single column, and ``fields`` of a row, look like several with another
    separator.
    """
    if len(columns) != 1:
        return ""
    for character in (*NAMES, *OTHERS):
        if character in columns[0] and (fields is None or character in "".join(fields)):
            name = NAMES.get(character, f"'{character}'")
            written = "tab" if character == "\t" else f"'{character}'"
            return f"; if fields are separated by {name}: --csv_separator {written}"
    return ""


def refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    """Refuse two columns of one name: rows, and what is written of them, have values by name.

    Raises:
        UserError: if there are.
    """
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{repeated[0]}': rename or remove one")


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Allow fields as long as any text; the limit is global to the process."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


@dataclass(frozen=True)
class _Count:
    """The rows of one way to read a file, the lines they take, and whether it reached the end."""

    rows: int
    lines: int
    whole: bool
    header: Sequence[str]


def _count(path: Path, layout: Layout, strict: bool = False, *, doubled: bool = False) -> _Count:
    """Count the rows of a file, as if quotation marks behind a backslash were ``doubled``."""
    rows = lines = 0
    row: Row = {}
    whole = True
    with opened(path) as binary, long_fields():
        file = io.TextIOWrapper(binary, encoding=layout.encoding, newline="")
        text = (line.removeprefix(of_lines.MARK) for line in file)
        if doubled:
            text = (line.replace('\\"', '""') for line in text)
        try:
            for first, last, row in records(layout, strict, path, text):  # noqa: B007
                rows, lines = rows + 1, lines + last - first + 1
        except UserError:
            whole = False
    return _Count(rows, lines, whole, list(row))


def harmless(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs, by the rule of OWASP; numbers stay as they are."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULAS):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def no_row(table: pa.Table) -> tuple[list[int], str] | None:
    """Return the rows of a table of text that are none, and why they are refused; None if there are
    no such rows.
    """
    if null := _null_byte(table):
        row, name = null
        return [row], (
            f"the column '{name}' holds a null byte, which is no text: is the file damaged? Export "
            "it again, or remove the byte"
        )
    if again := headers.again(table):
        return again, (
            "the names of the columns again: were files joined with their first lines? Remove "
            "every such line but the first"
        )
    return None


def _null_byte(table: pa.Table) -> tuple[int, str] | None:
    """Return the row and the column of a null byte in columns of text; None if there is none."""
    parts = (part.buffers()[2] for column in table.columns for part in column.chunks)
    if not any(_NULL.search(part) for part in parts if part is not None):
        return None
    for name, column in zip(table.column_names, table.columns, strict=True):
        for row, value in enumerate(column.to_pylist()):
            if "\0" in (value or ""):
                return row, name
    return None
