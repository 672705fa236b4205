"""Read ``.csv``, ``.tsv`` and ``.txt`` files: detect separator and quoting, refuse bad rows.

One parser, Python's ``csv``, both checks and reads a file, so that the two cannot disagree. Arrow's
reader is twice as fast, but merges rows after a quote that is never closed and has no line numbers.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from finetune.data.read_bytes import encoding_of, example_word, open_bytes
from finetune.errors import UserError, counted
from finetune.runtime import formats

#: Rows and characters that are converted at once.
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 10_000, 2**24
#: Separators that are detected, and what they are called.
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: A file is judged by so many bytes of its beginning, and its separator by so many rows of it.
_BEGINNING, _ROWS_JUDGED = 2**20, 200
#: With so few line breaks in fields, a file of two plausible readings is taken as quoted.
_FEW_BREAKS = 3
_LONGEST_FIELD = 2**24  # characters; what is longer is a quote that is never closed


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the user said about a file; the rest is detected.

    Attributes:
        quoting: ``auto``, ``minimal`` (quotation marks enclose fields) or ``none`` (they are text).
        separator: Of the fields of a ``.csv`` or ``.tsv``; None to detect it.
        encoding: The name of a Python codec; None to detect it.
        sheet: Of a spreadsheet; None for the first that has rows.
    """

    quoting: str = "auto"
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @property
    def flags(self) -> dict[str, str]:
        """The options that are set, by flag."""
        values = {
            "--csv_quoting": None if self.quoting == "auto" else self.quoting,
            "--csv_separator": self.separator,
            "--encoding": self.encoding,
            "--sheet": self.sheet,
        }
        return {flag: value for flag, value in values.items() if value is not None}


@dataclass(frozen=True)
class Dialect:
    """How a file of text is read: ``quoting`` is ``minimal`` or ``none``."""

    encoding: str = "utf-8-sig"
    separator: str = ","
    quoting: str = "minimal"


class Record(NamedTuple):
    """A row of a ``.csv`` or ``.tsv``, with its first and last line, from 1."""

    first_line: int
    last_line: int
    fields: list[str]


def detect(path: Path, options: ReadOptions) -> tuple[Dialect, list[str]]:
    """Return how a file of text is read, and the facts about what is not usual.

    Raises:
        UserError: If it is no text, is malformed in every reading, or has two plausible readings.
    """
    encoding = encoding_of(path, options.encoding)
    with open_bytes(path) as file:
        beginning = file.read(_BEGINNING)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(beginning)
    choices: list[str] = []
    facts: list[str] = []
    if options.encoding is None and encoding != "utf-8-sig":
        choices.append(f"{encoding}{example_word(text)} (--encoding)")
    quoting = options.quoting
    separator = usual = formats.SEPARATORS.get(formats.suffix(path), "")
    if usual and options.separator is not None:
        separator = {"tab": "\t", "\\t": "\t"}.get(options.separator.lower(), options.separator)
        if len(separator) != 1 or separator in '"\r\n':
            raise UserError(
                f"--csv_separator {options.separator}: expected one character such as ';' or '|', "
                "or tab"
            )
    elif usual:
        separator = _detect_separator(text, usual, len(beginning) < _BEGINNING)
        if separator != usual:
            name = SEPARATOR_NAMES.get(separator, repr(separator))
            choices.append(f"fields separated by {name} (--csv_separator)")
    if usual and quoting == "auto":
        quoting, facts = _detect_quoting(path, Dialect(encoding, separator))
    choice = [f"read as {', '.join(choices)}"] if choices else []
    return Dialect(encoding, separator, quoting), choice + facts


def _detect_separator(text: str, usual: str, is_whole: bool) -> str:
    """Return the separator of fields: the usual one if all rows have as many fields by it.

    Another one is chosen only if it is the only one by which all rows have as many fields, and more
    than one.
    """
    first = text.lstrip("\ufeff").partition("\n")[0].strip("\r")
    if len(first) == 5 and first.lower().startswith("sep="):  # which Excel reads and writes
        return first[4]
    possible = []
    for separator in SEPARATOR_NAMES:
        widths: list[int] = []
        with contextlib.suppress(csv.Error):
            for fields in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
                widths += [len(fields)] if fields else []
                if len(widths) > _ROWS_JUDGED:
                    break
        judged = set(widths if is_whole else widths[:-1])  # the last one may be cut off
        if len(judged) == 1 and judged != {1}:
            possible.append(separator)
    return possible[0] if len(possible) == 1 and usual not in possible else usual


class _Lines:
    """The lines of a file for ``csv``.

    Attributes:
        has_ended: Whether all of them have been read.
        rows: How many are rows if quotation marks are text, without the names of the columns;
            counted if there is a ``separator``.
        width: Fields of the first of them.
        is_plausible: Whether all lines have as many fields in that reading, and no name of a column
            begins with a quotation mark.
    """

    def __init__(
        self, path: Path, binary: IO[bytes], encoding: str, separator: str | None = None
    ) -> None:
        self._path, self._separator = path, separator
        self._lines = io.TextIOWrapper(binary, encoding, newline="")
        self.has_ended, self.is_plausible = False, True
        self.rows = self.width = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, start=1):
            if "\0" in line:
                raise UserError(
                    f"{self._path}, line {number}: a null byte, which is no text: is the file "
                    "damaged? Export it again, or remove the byte"
                )
            if self._separator:
                self._count(line, self._separator)
            yield line
        self.has_ended = True

    def _count(self, line: str, separator: str) -> None:
        if self.width == 0:
            if line.strip("\r\n") and not line.lower().startswith("sep="):
                cells = line.split(separator)
                self.width = len(cells)
                self.is_plausible = not any(cell.startswith('"') for cell in cells)
        elif self.width == 1 or line.strip("\r\n"):
            self.rows += 1
            self.is_plausible &= line.count(separator) + 1 == self.width


def _detect_quoting(path: Path, dialect: Dialect) -> tuple[str, list[str]]:
    """Return whether quotation marks enclose fields, ``minimal``, or are text, ``none``.

    A mark that is text but begins a field swallows the lines up to the next one, so rows are
    compared with lines. If both readings are plausible and differ, the user has to choose.
    """
    row_count = line_count = 0
    error = None
    with open_bytes(path) as binary:
        lines = _Lines(path, binary, dialect.encoding, dialect.separator)
        feed = iter(lines)
        try:
            rows = _records(path, dialect, lines, feed, is_strict=True)
            next(rows, None)
            for first_line, last_line, _ in rows:
                row_count += 1
                line_count += last_line - first_line + 1
        except UserError as first_error:
            error = first_error
            with contextlib.suppress(UserError):
                for _ in feed:  # so that all lines are counted
                    pass
    literal_rows, is_column = counted(lines.rows, "row"), lines.width == 1
    if error is not None:
        if is_column or not lines.is_plausible:  # the lines of one column say nothing
            raise error
        reason = str(error).removeprefix(f"{path}, ").partition(":")[0]
        return "none", [
            f"read {literal_rows}, one per line, with quotation marks as text, as quotes around "
            f"fields do not pair up ({reason}; --csv_quoting minimal)"
        ]
    if row_count == line_count:
        return "minimal", []
    row_text = counted(row_count, "row")
    fact = f"{row_text} in {line_count:,} lines, as quoted fields contain line breaks"
    if not lines.is_plausible:
        return "minimal", [fact]
    if is_column or line_count - row_count <= _FEW_BREAKS:
        return "minimal", [f"{fact} (--csv_quoting none for {literal_rows})"]
    raise UserError(
        f"{path}: quotation marks may enclose fields or be text; choose --csv_quoting minimal "
        f"({row_text}) or --csv_quoting none ({literal_rows}, one per line)"
    )


def records(path: Path, dialect: Dialect) -> Iterator[Record]:
    """Yield the rows of a ``.csv`` or ``.tsv``, the names of the columns first.

    Raises:
        UserError: At a malformed row, with its line.
    """
    with open_bytes(path) as binary:
        lines = _Lines(path, binary, dialect.encoding)
        yield from _records(path, dialect, lines, lines)


def _records(
    path: Path, dialect: Dialect, lines: _Lines, feed: Iterable[str], is_strict: bool = False
) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    is_quoted = dialect.quoting != "none"
    reader = csv.reader(
        feed,
        delimiter=dialect.separator,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        strict=is_strict,
    )
    header: list[str] = []
    width, line = 0, 1
    try:
        for fields in reader:
            if lines.has_ended:  # only a row that the end of the file cuts off comes after it
                raise csv.Error("unexpected end of data")
            if width and len(fields) == width and fields != header:
                yield Record(line, reader.line_num, fields)
            elif line == 1 and re.fullmatch("sep=.?", "".join(fields), re.IGNORECASE):
                pass  # which Excel reads and writes
            elif not header and fields:
                header = [name or f"Unnamed: {number}" for number, name in enumerate(fields)]
                refuse_repeated(path, header)
                width = len(header)
                yield Record(line, reader.line_num, header)
            elif fields == header and width > 1:
                raise UserError(
                    f"{path}, line {line}: the names of the columns again: were files joined with "
                    "their first lines? Remove every such line but the first"
                )
            elif width == 1 and len(fields) < 2:
                yield Record(line, reader.line_num, fields or [""])
            elif fields:
                name = SEPARATOR_NAMES.get(dialect.separator, repr(dialect.separator))
                raise UserError(
                    f"{path}, line {line}: expected {counted(width, 'field')} as in the first "
                    f"line, found {len(fields)}: fields are separated by {name} "
                    "(--csv_separator); a text with separators or line breaks needs quotation "
                    'marks around it, and those in it doubled, as in ""'
                )
            line = reader.line_num + 1
    except csv.Error as error:
        message = str(error)
        if "expected after" in message:
            message = "text follows a closing quotation mark: double the marks inside of texts, or "
            message += "choose --csv_quoting none (they are text) or minimal (they are left out)"
        elif "end of data" in message and is_quoted:
            message = "a quotation mark opens a field and is never closed: --csv_quoting none "
            message += "reads quotation marks as text"
        elif message.startswith("field larger"):
            message = f"a field of more than {_LONGEST_FIELD:,} characters: is a quotation mark "
            message += "never closed (--csv_quoting none)? If not, write the rows as .parquet"
        raise UserError(f"{path}, line {line}: {message}") from error


def refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    """Refuse two columns of one name: values are read and written by name.

    Raises:
        UserError: If there are.
    """
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{repeated[0]}': rename or remove one")


def tables(path: Path, dialect: Dialect) -> Iterator[pa.Table]:
    """Yield the rows of a ``.csv`` or ``.tsv``; every column is text, an empty field a null."""
    rows = (record.fields for record in records(path, dialect))
    header = next(rows, [])
    schema = pa.schema([(name, pa.string()) for name in header])
    for batch in batches(rows):
        columns = [[field or None for field in column] for column in zip(*batch, strict=True)]
        yield pa.table([pa.array(column, pa.string()) for column in columns], schema=schema)


def line_tables(path: Path, encoding: str) -> Iterator[pa.Table]:
    """Yield the lines of a ``.txt`` as the column ``text``; a blank line is an empty text."""
    with open_bytes(path) as binary:
        text = io.TextIOWrapper(binary, encoding, newline="\n")
        for batch in batches([line.removesuffix("\n").removesuffix("\r")] for line in text):
            yield pa.table({"text": pa.array([line for (line,) in batch], pa.string())})


def batches(rows: Iterable[Any], size: Callable[[Any], int] | None = None) -> Iterator[list[Any]]:
    """Yield lists of rows, of so many at most and about so many characters.

    Args:
        rows: Lists of texts, unless there is ``size``.
        size: Returns about how many characters a row has.
    """
    batch: list[Any] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += size(row) if size else sum(map(len, row))
        if len(batch) >= ROWS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
