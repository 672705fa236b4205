"""Read files of text: decompress them, detect encoding, separator and quoting, refuse bad rows.

One parser, Python's ``csv``, both checks and reads a file, so that the two cannot disagree. Arrow's
reader is twice as fast, but merges rows after a quote that is never closed and has no line numbers.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from finetune.errors import UserError, counted, suggestion
from finetune.runtime import formats

#: Separators that are detected, and what they are called.
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: Rows and characters that are converted at once.
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 10_000, 2**24
_TYPED_SEPARATORS = {"tab": "\t", "\\t": "\t"}
#: A file is judged by so many bytes of its beginning, and its separator by so many rows of it.
_BEGINNING, _ROWS_JUDGED = 2**20, 200
#: With so few line breaks in fields, a file of two plausible readings is taken as quoted.
_FEW_BREAKS = 3
_LONGEST_FIELD = 2**24  # characters; what is longer is a quote that is never closed
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: A character of UTF-8, but for those whose bytes are a letter and a sign of Windows-1252 as well.
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xc5\xce-\xde\xe0-\xf4][\x80-\xbf]")
#: So many of them in one line are no text of another encoding by chance.
_SURELY_UTF8 = 4
#: The share of letters beyond ASCII from which on a text is in another alphabet than the Latin one.
_OTHER_ALPHABET = 0.3
#: Letters of Windows-1250 that Windows-1252 reads as signs inside of words.
_CENTRAL_EUROPEAN = re.compile(r"[a-z][\xb9\xb3\xbf\xbe\xbc\xa3\xa5][a-z]", re.I)
#: Bytes that Windows-1252 leaves undefined.
_UNDEFINED = b"\x81\x8d\x8f\x90\x9d"
_WORD_BEYOND_ASCII = re.compile(r"\w{0,20}[^\W\x00-\x7f]\w{0,20}")
_COMMON_ENCODINGS = ("utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "shift_jis")


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


class _TextAfterQuoteError(UserError):
    """Text follows the quotation mark that closes a field: only a strict reading refuses that."""


def detect(path: Path, options: ReadOptions) -> tuple[Dialect, list[str]]:
    """Return how a file of text is read, and the facts about what is not usual.

    Raises:
        UserError: If it is no text, is malformed in every reading, or has two plausible readings.
    """
    encoding = encoding_of(path, options)
    choices: list[str] = []
    facts: list[str] = []
    with open_bytes(path) as file:
        beginning = file.read(_BEGINNING)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(beginning)
    if options.encoding is None and encoding != "utf-8-sig":
        word = _WORD_BEYOND_ASCII.search(text)
        choices.append(f"{encoding}{f', as in {word[0]!r}' if word else ''} (--encoding)")
    usual = formats.SEPARATORS.get(formats.suffix(path))
    dialect = Dialect(encoding, usual or ",")
    if usual is not None:
        if options.separator is not None:
            dialect = replace(dialect, separator=parse_separator(options.separator))
        else:
            is_whole = len(beginning) < _BEGINNING
            dialect = replace(dialect, separator=_detect_separator(text, usual, is_whole))
        if options.separator is None and dialect.separator != usual:
            name = SEPARATOR_NAMES.get(dialect.separator, repr(dialect.separator))
            choices.append(f"fields separated by {name} (--csv_separator)")
        if options.quoting == "auto":
            quoting, facts = _detect_quoting(path, dialect)
            dialect = replace(dialect, quoting=quoting)
        else:
            dialect = replace(dialect, quoting=options.quoting)
    return dialect, [*([f"read as {', '.join(choices)}"] if choices else []), *facts]


def encoding_of(path: Path, options: ReadOptions) -> str:
    """Return the encoding of a file: what the user said, a byte order mark, UTF-8, or a guess.

    Raises:
        UserError: If the user's is no encoding; if the file is no text, or in two encodings.
    """
    if options.encoding is not None:
        try:
            name = codecs.lookup(options.encoding).name
            "".encode(name)
        except (LookupError, UnicodeError) as error:
            raise UserError(
                f"--encoding {options.encoding}: expected an encoding such as utf-8, utf-16, "
                f"cp1252 or latin-1{suggestion(options.encoding, _COMMON_ENCODINGS)}"
            ) from error
        return "utf-8-sig" if name == "utf-8" else name
    with open_bytes(path) as file:
        beginning = block = file.read(_BEGINNING)
        for mark, name in _BYTE_ORDER_MARKS:
            if beginning.startswith(mark):
                return name
        if wide := _utf16_without_mark(beginning):
            return wide
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block:
                decoder.decode(block)
                block = file.read(_BEGINNING)
            decoder.decode(b"", final=True)
            return "utf-8-sig"
        except UnicodeDecodeError:
            pass
    encoding = _guess_encoding(path, beginning)
    _refuse_two_encodings(path, encoding)
    return encoding


def _utf16_without_mark(beginning: bytes) -> str | None:
    """Every second byte of Latin text in UTF-16 is null."""
    shares = [beginning[start::2].count(0) / max(1, len(beginning) // 2) for start in (0, 1)]
    for name, (letters, nulls) in (("utf-16-le", shares), ("utf-16-be", shares[::-1])):
        if nulls > 0.4 and letters < 0.05:
            return name
    return None


def _guess_encoding(path: Path, beginning: bytes) -> str:
    """Return the encoding of bytes that are not UTF-8; guesses of Latin text are poor."""
    control = sum(beginning.count(bytes([code])) for code in (*range(9), *range(14, 32)))
    if control > 0.01 * len(beginning):
        new = formats.renamed(path)
        hint = f"rename it to {new}" if new else "is the suffix right?"
        raise UserError(f"{path} is no text: it has bytes that no encoding of text has; {hint}")
    letters = [code for code in beginning if code >= 0x80 or chr(code).isalpha()]
    if sum(code >= 0x80 for code in letters) > _OTHER_ALPHABET * len(letters):
        import charset_normalizer

        if guess := charset_normalizer.from_bytes(beginning).best():
            return guess.encoding
    if any(code in beginning for code in _UNDEFINED):
        return "latin-1"
    return "cp1250" if _CENTRAL_EUROPEAN.search(beginning.decode("cp1252")) else "cp1252"


def _refuse_two_encodings(path: Path, encoding: str) -> None:
    """Refuse a file that holds lines in UTF-8 beside others that are not.

    Few such lines are texts that were misread before they were written, ``Ã©`` for ``é``.
    """
    utf8: list[tuple[int, str]] = []
    other: list[tuple[int, int]] = []
    sure = 0
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isascii():
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                other.append((number, line[error.start]))
                continue
            characters = len(_UTF8_CHARACTER.findall(line))
            sure += characters >= _SURELY_UTF8
            if characters:
                utf8.append((number, text))
    is_western = encoding in ("cp1252", "cp1250", "latin-1")
    many = len(utf8) >= min(3, len(other)) and len(utf8) > 0.02 * (len(utf8) + len(other))
    if other and ((is_western and many) or sure >= len(other)):
        (line_number, text), (other_number, byte) = utf8[0], other[0]
        word = _WORD_BEYOND_ASCII.search(text)
        raise UserError(
            f"{path} is in two encodings: line {line_number} is utf-8"
            f"{f' ({word[0]!r})' if word else ''}, line {other_number} is not (byte {byte:#x}); "
            "convert the lines that are not, or --encoding NAME reads all of it in one encoding, "
            "such as cp1252"
        )


def undecodable(path: Path, error: UnicodeDecodeError) -> UserError:
    """Return the refusal of a file that is not throughout in the encoding that was named."""
    place = ""
    if not error.encoding.startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
        with open_bytes(path) as lines:  # in which a line feed is always a byte of its own
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode(error.encoding)
                except UnicodeDecodeError:
                    place = f"line {number}, "
                    break
    return UserError(
        f"{path} is not {error.encoding} throughout: {error.reason} ({place}byte "
        f"{error.object[error.start]:#x}); --encoding NAME reads all of it in another encoding"
    )


def parse_separator(word: str) -> str:
    """Return the separator that a user typed: one character, or ``tab``.

    Raises:
        UserError: If it is neither.
    """
    separator = _TYPED_SEPARATORS.get(word.lower(), word)
    if len(separator) != 1 or separator in '"\r\n':
        raise UserError(
            f"--csv_separator {word}: expected one character such as ';' or '|', or tab"
        )
    return separator


def _detect_separator(text: str, usual: str, is_whole: bool) -> str:
    """Return the separator of fields: the usual one if all rows have as many fields by it.

    Another one is chosen only if it is the only one by which all rows have as many fields, and more
    than one.
    """
    first = text.lstrip("\ufeff").partition("\n")[0].strip("\r")
    if len(first) == 5 and first.lower().startswith("sep="):  # which Excel reads and writes
        return first[4]
    widths = _widths(text, usual, is_whole)
    if len(widths) == 1 and widths != {1}:
        return usual
    others = [separator for separator in SEPARATOR_NAMES if separator != usual]
    even = [
        separator
        for separator in others
        if len(widths := _widths(text, separator, is_whole)) == 1 and widths != {1}
    ]
    return even[0] if len(even) == 1 else usual


def _widths(text: str, separator: str, is_whole: bool) -> set[int]:
    """Return how many fields the first rows have; the last one may be cut off."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):
        for fields in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if fields:
                widths.append(len(fields))
            if len(widths) > _ROWS_JUDGED:
                break
    return set(widths if is_whole else widths[:-1])


def separator_hint(columns: Sequence[str]) -> str:
    """Return what to type if a single column looks like several with another separator."""
    if len(columns) == 1:
        for character in (*SEPARATOR_NAMES, *"^~:"):
            if character in columns[0]:
                name = SEPARATOR_NAMES.get(character, f"'{character}'")
                typed = "tab" if character == "\t" else f"'{character}'"
                return f"; if fields are separated by {name}: --csv_separator {typed}"
    return ""


class _Lines:
    """The lines of a file for ``csv``."""

    def __init__(self, path: Path, binary: IO[bytes], encoding: str) -> None:
        self._path = path
        self._lines = io.TextIOWrapper(binary, encoding, newline="")
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, start=1):
            if "\0" in line:
                raise UserError(
                    f"{self._path}, line {number}: a null byte, which is no text: is the file "
                    "damaged? Export it again, or remove the byte"
                )
            yield line
        self.has_ended = True


class _LiteralCount:
    """Counts rows as if quotation marks were text: each line is one."""

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self.has_quotes, self.is_even = False, True
        self.width = self.rows = 0

    def count(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines as they are, and count them."""
        separator = self._separator
        for line in lines:
            if self.width and (self.width == 1 or not line.isspace() or separator in line):
                self.rows += 1
                self.is_even = self.is_even and line.count(separator) + 1 == self.width
            elif line.strip("\r\n") and not line.lower().startswith("sep="):
                cells = line.split(separator)
                self.width = len(cells)
                self.is_even = not any(cell.startswith('"') for cell in cells)
            self.has_quotes = self.has_quotes or '"' in line
            yield line


@dataclass(frozen=True)
class _Scan:
    """What one reading of a file finds: its rows and their lines, or why it cannot be right."""

    rows: int
    lines: int
    error: UserError | None
    literal: _LiteralCount


def _detect_quoting(path: Path, dialect: Dialect) -> tuple[str, list[str]]:
    """Return whether quotation marks enclose fields, ``minimal``, or are text, ``none``.

    A mark that is text but begins a field swallows the lines up to the next one, so rows are
    compared with lines. If both readings are plausible and differ, the user has to choose.
    """
    strict = quoted = _scan(path, dialect, is_strict=True)
    facts: list[str] = []
    if isinstance(strict.error, _TextAfterQuoteError):
        quoted = _scan(path, dialect, is_strict=False)
        facts = [f"{strict.error}; such marks are left out (--csv_quoting none keeps them)"]
    literal = quoted.literal
    if not literal.has_quotes and quoted.error is not None:
        raise quoted.error
    if quoted.error is None and quoted.rows == quoted.lines:
        return "minimal", facts
    spread = f"{counted(quoted.rows, 'row')} in {quoted.lines:,} lines: quoted fields have line "
    if not literal.is_even:
        if quoted.error is not None:
            raise quoted.error
        return "minimal", [*facts, f"{spread}breaks"]
    if strict.error is None and (literal.width == 1 or quoted.lines - quoted.rows <= _FEW_BREAKS):
        return "minimal", [f"{spread}breaks (--csv_quoting none for {literal.rows:,} rows)"]
    if strict.error is None or (quoted.error is None and literal.width == 1):
        raise UserError(
            f"{path}: quotation marks may enclose fields or be text; choose --csv_quoting minimal "
            f"({counted(quoted.rows, 'row')}) or --csv_quoting none "
            f"({counted(literal.rows, 'row')}, one per line)"
        )
    reason = "not pair up" if quoted.error else f"leave {counted(quoted.rows, 'row')}"
    return "none", [
        f"read {counted(literal.rows, 'row')}, one per line, with quotation marks as text; as "
        f"quotes around fields they would {reason} (--csv_quoting minimal)"
    ]


def _scan(path: Path, dialect: Dialect, *, is_strict: bool) -> _Scan:
    rows = lines = 0
    error = None
    literal = _LiteralCount(dialect.separator)
    with open_bytes(path) as binary:
        source = _Lines(path, binary, dialect.encoding)
        feed = literal.count(source)
        try:
            for first_line, last_line, _ in _records(path, dialect, source, feed, is_strict):
                rows, lines = rows + 1, lines + last_line - first_line + 1
        except UserError as refusal:
            error = refusal
            with contextlib.suppress(UserError):
                for _ in feed:  # so that all lines are counted
                    pass
    header = 1 if rows else 0
    return _Scan(rows - header, lines - header, error, literal)


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
    literally = dialect.quoting == "none"
    reader = csv.reader(
        feed,
        delimiter=dialect.separator,
        quoting=csv.QUOTE_NONE if literally else csv.QUOTE_MINIMAL,
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
            elif line == 1 and fields and _names_separator(fields):
                pass
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
                raise _wrong_width(path, line, fields, header, dialect)
            line = reader.line_num + 1
    except csv.Error as error:
        raise _malformed(path, line, error, literally) from error


def _names_separator(fields: Sequence[str]) -> bool:
    """Return whether a row is ``sep=;``, which Excel reads: that sign is not part of a name."""
    return fields in (["sep=", ""], ["SEP=", ""]) or (
        len(fields) == 1 and len(fields[0]) == 5 and fields[0].lower().startswith("sep=")
    )


def _malformed(path: Path, line: int, error: csv.Error, literally: bool) -> UserError:
    place = f"{path}, line {line}"
    if "expected after" in str(error):
        return _TextAfterQuoteError(f"line {line}: text follows a closing quotation mark")
    if str(error).startswith("field larger"):
        return UserError(
            f"{place}: a field of more than {_LONGEST_FIELD:,} characters: if a quotation mark is "
            "never closed, --csv_quoting none reads such marks as text; if the text is that long, "
            "write the rows as .parquet"
        )
    if literally:
        return UserError(f"{place}: {error}")
    return UserError(
        f"{place}: a quotation mark opens a field and is never closed; --csv_quoting none reads "
        "quotation marks as text"
    )


def _wrong_width(
    path: Path, line: int, fields: Sequence[str], header: Sequence[str], dialect: Dialect
) -> UserError:
    name = SEPARATOR_NAMES.get(dialect.separator, repr(dialect.separator))
    if hint := separator_hint(header):
        advice = hint
    elif any("\\" in field for field in fields) and dialect.quoting == "minimal":
        advice = '; quotation marks inside of texts are doubled, as in "", and not written \\"'
    elif len(fields) < len(header):
        advice = "; is the line cut off, or a line break in a text without quotes around it?"
    elif dialect.quoting == "none":
        advice = f"; with --csv_quoting none texts cannot hold {name}"
    else:
        advice = f"; put a text that holds {name} in quotation marks"
    return UserError(
        f"{path}, line {line}: expected {counted(len(header), 'field')} as in the first line, "
        f"found {len(fields)}{advice}"
    )


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


def batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of rows, of so many at most and about so many characters."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row))
        if len(batch) >= ROWS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def record_lines(path: Path, dialect: Dialect) -> Iterator[int]:
    """Yield the first line of each row of a ``.csv`` or ``.tsv``."""
    rows = records(path, dialect)
    next(rows, None)
    return (record.first_line for record in rows)


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as it is read.

    Raises:
        UserError: If it is damaged, or an archive of more than one file.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_decompress(path, stack))
    except OSError as error:
        # those of bz2 and zstd have no type of their own
        is_damage = isinstance(error, gzip.BadGzipFile) or (
            error.errno is None and formats.compression(path) in (".bz2", ".zst")
        )
        if not is_damage:
            raise
        raise _damaged(path, error) from error
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    if new := formats.renamed(path):
        return UserError(f"{path} is not compressed as its name says: rename it to {new}")
    reason = error or "the compressed data ends too early"
    return UserError(f"{path} is damaged or cut off: {reason}; copy or download it again")


def _decompress(path: Path, stack: contextlib.ExitStack) -> IO[bytes]:
    match formats.compression(path):
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path))
        case ".zst":
            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
        case ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            return archive.open(_only_member(path, archive))
    return path.open("rb")


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    if len(members) != 1:
        names = ", ".join(member.filename for member in members[:5]) or "none"
        raise UserError(f"{path}: expected an archive of one file, found {names}: unzip it")
    inner = formats.suffix(members[0].filename)
    if inner in formats.FILES and inner != formats.suffix(path):
        raise UserError(f"{path} holds {members[0].filename}: unzip it")
    if members[0].flag_bits & 1:
        raise UserError(f"{path} is encrypted: unzip it")
    return members[0]
