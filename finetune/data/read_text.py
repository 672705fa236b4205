"""Read files of text: decompress them, detect how they are written, and refuse malformed rows.

One parser, Python's ``csv``, both checks and reads a table, so that the two cannot disagree. That
of Arrow is twice as fast, but merges rows after a quote that is never closed, and names no line.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import io
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

import pyarrow as pa

from finetune.errors import SHOWN_PLACES, Report, UserError
from finetune.runtime import formats

T = TypeVar("T")
#: Separators that are detected, and what they are called.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: A file is judged by so many bytes of its beginning, and its separator by so many rows of it.
_BEGINNING = 2**20
_ROWS_JUDGED = 200
_LONGEST_FIELD = 2**24  # characters; what is longer is a quote that is never closed
csv.field_size_limit(_LONGEST_FIELD)
#: Bytes beyond ASCII side by side, or a letter of Windows-1250 that Windows-1252 reads as a sign.
_RUN = re.compile(rb"[\x80-\xff]{2,}|[\xa3\xa5\xb3\xb9\xbc\xbe\xbf]")
_NO_LETTERS = bytes(byte for byte in range(256) if not (byte < 128 and chr(byte).isalpha()))
#: Signs that stand before and behind words.
_SIGNS = "\xa0\xad\u2026\u201e\u2018\u2019\u201c\u201d\u2013\u2014«»™®"
#: The end of a word in Windows-1252 that may be a character of UTF-8, as ``É»`` is.
_WORD_END = re.compile(rf"[\xc4-\xdf][{_SIGNS}]|[\xe0-\xef][{_SIGNS}]{{2}}")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a file is written: what the user said, and None or ``auto`` for what is detected.

    Attributes:
        quoting: ``auto``, ``minimal`` (quotation marks enclose fields) or ``none`` (they are text).
        separator: Of the fields of a ``.csv`` or ``.tsv``.
        encoding: The name of a Python codec.
        sheet: Of a spreadsheet.
    """

    quoting: str = "auto"
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @property
    def flags(self) -> dict[str, str]:
        """The options that are set, by flag."""
        flags = ("--csv_quoting", "--csv_separator", "--encoding", "--sheet")
        values = zip(flags, asdict(self).values(), strict=True)
        return {flag: value for flag, value in values if value not in (None, "auto")}


class Record(NamedTuple):
    """A row of a table, with its first and last line, from 1."""

    first_line: int
    last_line: int
    fields: list[str]


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as it is read; refuse one that is damaged."""
    compression = formats.compression(path)
    try:
        if compression != ".zip":
            codec = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(compression)
            with pa.input_stream(str(path), compression=codec) as stream:
                yield io.BufferedReader(stream, _BEGINNING)
            return
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            members = [info for info in members if not info.filename.startswith("__MACOSX/")]
            if len(members) != 1 or members[0].flag_bits & 1:
                raise UserError(
                    f"{path}: expected an archive of one file without a password, found "
                    f"{', '.join(info.filename for info in members) or 'none'}: unzip it"
                )
            with archive.open(members[0]) as member:
                yield member
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if not compression or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise UserError(
            f"{path} is damaged, cut off or not compressed as its name says: {error}; copy or "
            f"download it again, or rename it to {path.stem}"
        ) from error


def encoding_of(path: Path, name: str | None) -> str:
    """Return the encoding of a file of text: the user's ``name``, or by a byte order mark, UTF-8,
    or Windows-1252.

    Raises:
        UserError: If the user's is no encoding; if the file is no text, or in two encodings.
    """
    if name is not None:
        try:
            codec = codecs.lookup(name).name
            "".encode(codec)
        except (LookupError, UnicodeError) as error:
            raise UserError(
                f"--encoding {name}: expected an encoding such as utf-8, utf-16, cp1252 or latin-1"
            ) from error
        return "utf-8-sig" if codec == "utf-8" else codec
    with open_bytes(path) as file:
        beginning = file.read(_BEGINNING)
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # every second byte of Latin text in UTF-16 is null
    nulls = [beginning[start::2].count(0) / max(1, len(beginning)) for start in (0, 1)]
    if max(nulls) > 0.2 and min(nulls) < 0.025:
        return "utf-16-le" if nulls[1] > nulls[0] else "utf-16-be"
    first_lines: dict[str, int] = {}  # of each alphabet, and the first that is not UTF-8
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isascii():
                continue
            try:
                line.decode()
                if "utf-8" in first_lines:
                    continue
            except UnicodeDecodeError:
                first_lines.setdefault("other", number)
            foreign = 0  # letters
            for run in _RUN.finditer(line):
                start, end = run.span()
                alphabet = _alphabet(line[start - 1 : start], run[0], line[end : end + 1])
                if alphabet == "foreign":
                    foreign += end - start
                else:
                    first_lines.setdefault(alphabet, number)
            if foreign > 3 and foreign > 0.4 * len(line.translate(None, _NO_LETTERS)):
                first_lines.setdefault("foreign", number)
    if "other" not in first_lines or b"\0" in beginning:  # null bytes are refused when read
        return "utf-8-sig"
    if alphabets := first_lines.keys() & {"central", "foreign", "utf-8"}:
        utf8 = f"line {first_lines['utf-8']} has UTF-8, " if "utf-8" in alphabets else ""
        other = min(alphabets - {"utf-8"}, default="other")
        raise UserError(
            f"{path} is not in UTF-8, UTF-16 or Windows-1252 throughout: {utf8}line "
            f"{first_lines[other]} another encoding; --encoding NAME reads all of it in one, such "
            "as cp1252, cp1250, cp1251, gb18030 or shift_jis; of two encodings, convert one"
        )
    return "cp1252"


@functools.lru_cache(2**16)
def _alphabet(before: bytes, run: bytes, after: bytes) -> str:
    """Return ``utf-8``, ``central``, ``foreign`` or ``western`` for bytes beyond ASCII."""
    if len(run) == 1:
        return "central" if before.isalpha() and after.isalpha() else "western"
    western = run.decode("cp1252", "replace")
    is_inside = after.isalpha() or (before.islower() and western[0].isupper())  # of a word
    with contextlib.suppress(UnicodeDecodeError):
        if run.decode() and (is_inside or not _WORD_END.fullmatch(western)):
            return "utf-8"
    return "foreign" if len(western.strip(_SIGNS)) > 1 else "western"


def text_lines(path: Path, encoding: str | None) -> Iterator[str]:
    """Yield the lines of a file, with their line ends; refuse bytes that are no text in the
    encoding, with their line.
    """
    with open_bytes(path) as binary:
        lines = io.TextIOWrapper(binary, encoding, errors="surrogateescape", newline="")
        for number, line in enumerate(lines, start=1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) & 0xFF
                raise UserError(
                    f"{path} is not {encoding} throughout: line {number}, byte {byte:#x}; "
                    "--encoding NAME reads all of it in another encoding; the name of a compressed "
                    f"file has to say so, as in {path.name}.gz"
                ) from error
            if "\0" in line:
                raise UserError(
                    f"{path}, line {number}: a null byte, which is no text: is the file damaged? "
                    "Export it again, or remove the byte"
                )
            yield line


def detect(path: Path, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Return how a file of text is read, all options set, and the facts about what is not usual.

    Raises:
        UserError: If it is no text, is malformed in every reading, or has two plausible readings.
    """
    facts = []
    report = Report()
    typed = options.separator
    typed = "\t" if typed and typed.lower() in ("tab", "\\t") else typed
    if typed is not None and (len(typed) != 1 or typed in '"\r\n'):
        expected = "expected one character such as ';' or '|', or tab"
        report.error(f"--csv_separator {typed}: {expected}")
    with report.collect():
        encoding = encoding_of(path, options.encoding)
    report.raise_errors()
    if options.encoding is None and encoding != "utf-8-sig":
        facts.append(f"read as {encoding} (--encoding)")
    options = replace(options, encoding=encoding)
    if not (usual := formats.SEPARATORS.get(formats.suffix(path))):
        return options, facts
    if (separator := typed) is None:
        # another one only if it alone separates all rows into as many fields, and more than one
        possible = []
        for separator in _SEPARATORS:
            rows = csv.reader(text_lines(path, encoding), delimiter=separator)
            with contextlib.suppress(csv.Error):
                widths = {len(fields) for fields in itertools.islice(rows, _ROWS_JUDGED) if fields}
                possible += [separator] * (len(widths) == 1 and widths != {1})
        separator = possible[0] if len(possible) == 1 and usual not in possible else usual
        if separator != usual:
            facts.append(f"fields separated by {_SEPARATORS[separator]} (--csv_separator)")
    options = replace(options, separator=separator)
    if options.quoting == "auto":
        options = replace(options, quoting="minimal")
        facts += _compare_with_lines(path, options)
    return options, facts


def _compare_with_lines(path: Path, options: ReadOptions) -> list[str]:
    """Return a fact if quotation marks enclose line breaks.

    A mark that is text but begins a field swallows the lines up to the next one. So the user has to
    choose if the file also has the same number of fields in each line with marks as text.
    """
    row_count = line_breaks = literal_count = 0
    places: list[int] = []  # the first lines of rows with line breaks
    for record in itertools.islice(records(path, options), 1, None):
        row_count += 1
        if record.last_line > record.first_line:
            line_breaks += record.last_line - record.first_line
            places.append(record.first_line)
    if not places:
        return []
    if line_breaks > 3:  # fewer line breaks in fields are taken as quoted
        with contextlib.suppress(UserError):
            lines = records(path, replace(options, quoting="none"))
            header = next(lines).fields
            # any line is a row of a single column, and no name begins with a quotation mark
            if len(header) > 1 and not any(name.startswith('"') for name in header):
                literal_count = sum(1 for _ in lines)
    if literal_count:
        raise UserError(
            f"{path}: quotation marks may enclose fields or be text; choose --csv_quoting minimal "
            f"({row_count:,} rows) or --csv_quoting none ({literal_count:,} rows, one per line)"
        )
    shown = ", ".join(map(str, places[:SHOWN_PLACES])) + ", ..." * (len(places) > SHOWN_PLACES)
    return [
        f"{row_count:,} rows in {row_count + line_breaks:,} lines, as quoted fields contain line "
        f"breaks: line {shown} (--csv_quoting none reads the marks as text)"
    ]


def records(path: Path, options: ReadOptions) -> Iterator[Record]:
    """Yield the rows of a ``.csv`` or ``.tsv``, the names of the columns first, with the options of
    :func:`detect`; refuse a malformed row, with its line.
    """
    separator = options.separator or ","
    header: list[str] = []
    line = 1
    lines = text_lines(path, options.encoding)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if options.quoting == "none" else csv.QUOTE_MINIMAL
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    try:
        for fields in reader:
            if fields and not header:
                header = fields
            elif len(header) == 1 and not fields:
                fields = [""]  # a row whose value is missing
            elif fields and len(fields) != len(header):
                raise UserError(
                    f"{path}, line {line}: expected {len(header)} fields as in the first line, "
                    f"found {len(fields)}: they are separated by {separator!r} (--csv_separator); "
                    "a text with separators or line breaks needs quotation marks around it, and "
                    'those in it doubled, as in ""'
                )
            if fields:
                yield Record(line, reader.line_num, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {line}: {error}: a field that begins with a quotation mark ends with "
            f"one, has those in it doubled, and at most {_LONGEST_FIELD:,} characters; "
            "--csv_quoting none reads quotation marks as text"
        ) from error


def column_names(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names of columns, with one for a column without; refuse one name for two."""
    if repeated := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{repeated[0]}': rename or remove one")
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Return the content of a line, or of a document."""
    place = str(path) if line is None else f"{path}, line {line}"
    try:
        content = json.loads(text, object_pairs_hook=_json_object)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {line or error.lineno}: {error.msg} (character {error.colno}): is it "
            "JSON, and not cut off?"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{place}: {error}") from error
    if "\\u" in text:
        refuse_half_characters(json.dumps(content, ensure_ascii=False), place)
    return content


def _json_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dictionary; ``json`` would take the last of two values of one key."""
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the key '{name}' comes twice in one object: keep one")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(
                f"the column '{name}' holds an integer of more than 64 bits; write it as text, in "
                "quotation marks, in every row, or leave the column out"
            )
        row[name] = value
    return row


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse a text with an unpaired surrogate, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(f"{place}: {half} is half of a character: was the text cut?") from error


def tables(path: Path, rows: Iterator[Sequence[str]]) -> Iterator[pa.Table]:
    """Yield rows as tables, the first as the names; all is text, and an empty field a null."""
    names = column_names(path, next(rows, []))
    schema = pa.schema([(name, pa.string()) for name in names])
    for batch in batches(rows, lambda fields: sum(map(len, fields))):
        columns = [[field or None for field in column] for column in zip(*batch, strict=True)]
        yield pa.table([pa.array(column, pa.string()) for column in columns], schema=schema)


def batches(rows: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of rows, of so many at most and about so many characters by ``size``."""
    batch: list[T] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += size(row)
        if len(batch) >= 10_000 or characters >= 2**24:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch
