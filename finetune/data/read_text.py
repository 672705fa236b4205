"""Read text files: decompress them, detect encoding and separator, and reject malformed rows.

Python's ``csv`` both checks and reads a table, so that the two cannot disagree. The parser of Arrow
is twice as fast, but merges rows after an unclosed quote, and its errors have no line numbers.
"""

import codecs
import contextlib
import csv
import io
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa

from finetune.errors import SHOWN_PLACES, UserError, list_first
from finetune.runtime import formats

#: Separators that can be detected, and their names.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: Bytes that are read to recognize UTF-16, and rows that are read to detect the separator.
_BEGINNING = 2**20
_SAMPLED_ROWS = 200
#: Rows per batch.
ROWS_AT_ONCE = 1024
_MAX_FIELD_LENGTH = 2**24  # characters; a longer field is an unclosed quote
csv.field_size_limit(_MAX_FIELD_LENGTH)
#: The line above the header that names the separator for Excel; a spreadsheet may have padded it.
_SEPARATOR_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?\1*\s*')
#: Bytes of Windows-1252 before and after words: quotation marks, dashes and the like.
_SIGNS = "\xa0\xad\u2026\u201e\u2018\u2019\u201c\u201d\u2013\u2014«»™®".encode("cp1252")
#: Bytes that are UTF-8, except those that may be Windows-1252 too, such as ``É»`` after a word.
_UTF8_RUN = re.compile(
    rb"(?<![\x80-\xff])"
    rb"(?!(?:(?:(?<![a-z])[\xc4-\xde]|\xdf)[%b]|[\xe0-\xef][%b]{2})(?![A-Za-z\x80-\xff]))"
    rb"(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})+"
    rb"(?![\x80-\xff])" % (_SIGNS, _SIGNS)
)
#: Letters of Windows-1250, Mac Roman and DOS (cp437, cp850), which in Windows-1252 are signs within
#: words, or capitals beside a small letter.
_FOREIGN = re.compile(
    rb"[\x82\x84\x87-\x8c\x8e\x9f\xa2-\xa5\xa7\xb3\xb9\xbc\xbe\xbf](?:"
    rb"(?<=[A-Za-z][^\x8a\x8c\x8e\x9f])(?=[A-Za-z])"
    rb"|(?<=[a-z][\x8a\x8c\x8e\x9f])|(?<=[A-Z][\x8a\x8c\x8e\x9f])(?=[a-z]))"
)
#: A word with another letter than those of ASCII, or another sign.
_OTHER_WORD = re.compile(r"\w*[^\x00-\x7f]\w*")
#: The beginning of a file of Git LFS that stands for one that was not downloaded.
_POINTER = b"version https://git-lfs.github.com/spec/v1"
_NO_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha()) + _SIGNS


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a file; None or ``auto`` stands for detection.

    Attributes:
        quoting: ``auto``, ``minimal`` (quotation marks enclose fields) or ``none`` (they are text).
        separator: The separator of fields in a ``.csv`` or ``.tsv``; ``tab`` for a tab.
        encoding: The name of a Python codec.
        sheet: The name of a sheet of a spreadsheet.
        words: Whether a ``.txt`` or ``.tsv`` has a word a line, as a ``.conll`` has.

    Raises:
        UserError: If the separator or the encoding is invalid.
    """

    quoting: str = "auto"
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    words: bool = False

    def __post_init__(self) -> None:
        mistakes = []
        if (self.separator or "").lower() in ("tab", "\\t"):
            object.__setattr__(self, "separator", "\t")
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            expected = "expected one character such as ';' or '|', or tab"
            mistakes.append(f"--csv_separator {self.separator}: {expected}")
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, UnicodeError):
            expected = "expected an encoding such as utf-8, utf-16, cp1252 or latin-1"
            mistakes.append(f"--encoding {self.encoding}: {expected}")
        if mistakes:
            raise UserError(*mistakes)

    @property
    def flags(self) -> dict[str, str]:
        """The values of the options that are set, by flag."""
        flags = {
            "--csv_quoting": self.quoting,
            "--csv_separator": self.separator,
            "--encoding": self.encoding,
            "--sheet": self.sheet,
        }
        return {flag: value for flag, value in flags.items() if value not in (None, "auto")}

    def are_words(self, path: Path) -> bool:
        """Return whether a file has a word a line."""
        suffix = formats.suffix(path)
        return suffix in formats.WORDS or (self.words and suffix in formats.MAYBE_WORDS)


class Record(NamedTuple):
    """A row of a text table with its first and last line, from 1."""

    first_line: int
    last_line: int
    fields: list[str]


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file and decompress it; raise a ``UserError`` if it is damaged."""
    compression = formats.compression(path)
    try:
        if compression != ".zip":
            codec = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(compression)
            with pa.input_stream(str(path), compression=codec) as stream:
                yield io.BufferedReader(stream, _BEGINNING)
            return
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not re.search("^__MACOSX/|/$", name)]
            if len(names) != 1:
                raise UserError(f"{path}: expected one file in the archive, found {names}: unzip")
            with archive.open(names[0]) as member:
                yield member
    except (EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if not compression or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise UserError(
            f"{path} is damaged, cut off or not {compression}: {error}; copy it again, or, if it "
            f"is not compressed, rename it to {path.stem}"
        ) from error


def encoding_of(path: Path, name: str | None) -> str:
    """Return the encoding of a text file: ``name`` if it is set, else that of the byte order mark,
    UTF-8 or Windows-1252.

    Raises:
        UserError: If the file is in another encoding, or in two.
    """
    if name is not None:
        codec = codecs.lookup(name).name
        return "utf-8-sig" if codec == "utf-8" else codec
    with open_bytes(path) as file:
        beginning = file.read(_BEGINNING)
    if utf16 := _find_utf16(beginning):
        return utf16
    first_lines: dict[str, int] = {}
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isascii():
                continue
            if "utf-8" not in first_lines and _UTF8_RUN.search(line):
                first_lines["utf-8"] = number
            try:
                line.decode()
            except UnicodeDecodeError:
                first_lines.setdefault("other", number)
                letters = line.translate(None, _NO_LETTERS)
                foreign = sum(byte > 127 for byte in letters)  # fewer in Western text
                if (foreign > 3 and foreign > 0.4 * len(letters)) or _FOREIGN.search(line):
                    first_lines.setdefault("foreign", number)
    if "other" not in first_lines or b"\0" in beginning:  # null bytes are an error later
        return "utf-8-sig"
    if len(first_lines) > 1:
        utf8 = ""
        if "utf-8" in first_lines:
            utf8 = f"line {first_lines['utf-8']} has UTF-8, "
        raise UserError(
            f"{path} is not entirely in UTF-8, UTF-16 or Windows-1252: {utf8}line "
            f"{first_lines.get('foreign', first_lines['other'])} has another encoding; set it with "
            "--encoding NAME, such as cp1252, cp1250, cp1251, cp850, mac_roman, gb18030, shift_jis"
        )
    return "cp1252"


def _find_utf16(beginning: bytes) -> str | None:
    """Return the variant of UTF-16 that a file begins with; None if it is not UTF-16."""
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # every second byte of Latin text is null
    even = beginning[::2].count(0) / max(1, len(beginning))
    odd = beginning[1::2].count(0) / max(1, len(beginning))
    if max(even, odd) > 0.2 and min(even, odd) < 0.025:
        return "utf-16-le" if odd > even else "utf-16-be"
    return None


def text_lines(path: Path, encoding: str | None) -> Iterator[str]:
    """Yield the lines of a file with their line ends; raise a ``UserError`` with the line number
    for bytes that are invalid in the encoding.
    """
    with open_bytes(path) as binary:
        lines = io.TextIOWrapper(binary, encoding, errors="surrogateescape", newline="")
        for number, line in enumerate(lines, start=1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise UserError(
                    f"{path}, line {number}: not in {encoding}; set another with --encoding NAME; "
                    f"if the file is compressed, rename it, e.g. to {path.name}.gz"
                ) from error
            if "\0" in line:
                raise UserError(f"{path}, line {number}: null byte: remove it from the file")
            yield line


def _table_lines(path: Path, encoding: str | None) -> tuple[Iterator[str], str | None]:
    """Return the lines of a table, and the separator in Excel's line ``sep=;``, made blank."""
    lines = text_lines(path, encoding)
    first = next(lines, "")
    if match := _SEPARATOR_LINE.fullmatch(first):
        return itertools.chain(["\n"], lines), match[1]
    return itertools.chain([first], lines), None


def detect(path: Path, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Return the options with all values set, detected if necessary, and facts about unusual ones.

    Raises:
        UserError: If the file is not text, is malformed, or can be read in two plausible ways.
    """
    facts = []
    encoding = encoding_of(path, options.encoding)
    if options.encoding is None and encoding != "utf-8-sig":
        example = ""
        if encoding == "cp1252":
            matches = map(_OTHER_WORD.search, text_lines(path, encoding))
            word = next(filter(None, matches))[0]
            example = f", such as {word[:40]!r}"
        facts.append(f"read as {encoding}{example} (--encoding)")
    options = replace(options, encoding=encoding)
    usual = formats.SEPARATORS.get(formats.suffix(path))
    if usual is None or options.are_words(path):
        return options, facts
    _, excel_separator = _table_lines(path, encoding)
    if options.separator is None and excel_separator is not None:
        facts.append(
            f"fields separated by {excel_separator!r}, as its first line says (--csv_separator)"
        )
        options = replace(options, separator=excel_separator)
    if options.separator is None:
        # another separator only if it is the only one with the same number of fields in all rows
        possible = []
        for separator in _SEPARATORS:
            rows = csv.reader(text_lines(path, encoding), delimiter=separator)
            with contextlib.suppress(csv.Error):
                widths = {len(fields) for fields in itertools.islice(rows, _SAMPLED_ROWS) if fields}
                if len(widths) == 1 and widths != {1}:
                    possible.append(separator)
        separator = possible[0] if len(possible) == 1 else usual
        if separator != usual:
            facts.append(f"fields separated by {_SEPARATORS[separator]} (--csv_separator)")
        options = replace(options, separator=separator)
    if options.quoting == "auto":
        options = replace(options, quoting="minimal")
        facts += _compare_with_lines(path, options)
    return options, facts


def _compare_with_lines(path: Path, options: ReadOptions) -> list[str]:
    """Return a fact if quoted fields contain line breaks.

    A quotation mark that is text but begins a field would swallow lines up to the next mark. So if
    the file is also valid with marks as text, the user has to choose.
    """
    row_count = 0
    line_count = 0
    places = []  # the first lines of rows with line breaks
    for record in itertools.islice(records(path, options), 1, None):
        row_count += 1
        line_count += record.last_line - record.first_line + 1
        if record.last_line > record.first_line:
            places.append(record.first_line)
    if not places:
        return []
    literal_count = 0
    if line_count > row_count + 3:  # fewer line breaks are taken as quoted
        with contextlib.suppress(UserError):
            lines = records(path, replace(options, quoting="none"))
            header = next(lines).fields
            # with a single column every line is valid; a header that begins with a mark is quoted
            if len(header) > 1 and not any(name.startswith('"') for name in header):
                literal_count = sum(1 for _ in lines)
    if literal_count:
        raise UserError(
            f"{path}: quotation marks may enclose fields or be text; choose --csv_quoting minimal "
            f"({row_count:,} rows) or --csv_quoting none ({literal_count:,} rows, one per line)"
        )
    listed = list_first(places, SHOWN_PLACES)
    return [
        f"{row_count:,} rows in {line_count:,} lines, as quoted fields contain line breaks: line "
        f"{listed} (--csv_quoting none reads the marks as text)"
    ]


def records(path: Path, options: ReadOptions) -> Iterator[Record]:
    """Yield the rows of a ``.csv`` or ``.tsv``, the header first, with the options of
    :func:`detect`; raise a ``UserError`` with the line of a malformed row.
    """
    separator = options.separator or ","
    header: list[str] = []
    line = 1
    lines, _ = _table_lines(path, options.encoding)
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
                    f"found {len(fields)}, separated by {separator!r} (--csv_separator); a field "
                    "with a separator or line break needs quotation marks around it"
                )
            if fields:
                yield Record(line, reader.line_num, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {line}: {error}: close the quotation marks around a field and double "
            "those within it; --csv_quoting none reads quotation marks as text"
        ) from error


def column_names(path: Path, names: Sequence[str]) -> list[str]:
    """Return column names; repeated names raise a ``UserError``. Empty ones become ``Unnamed: N``,
    or, beside a column of that name, ``Unnamed: N.1``, as pandas calls them.
    """
    if repeated := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{repeated[0]}': rename or remove one")
    columns = []
    for number, name in enumerate(names):
        if not name:
            name = f"Unnamed: {number}"
            while name in names:
                name += ".1"
        columns.append(name)
    return columns


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Return the content of a JSON line, or of a JSON document.

    Args:
        text: The line or the document.
        path: Its file, for messages.
        line: The number of the line; None for a document.

    Raises:
        UserError: If it is not valid JSON.
    """
    place = str(path) if line is None else f"{path}, line {line}"
    try:
        content = json.loads(text, object_pairs_hook=_json_object)
    except json.JSONDecodeError as error:
        place = f"{path}, line {line or error.lineno}"
        raise UserError(f"{place}: {error.msg}: is it JSON, and not cut off?") from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{place}: {error}") from error
    if "\\u" in text:
        refuse_half_characters(json.dumps(content, ensure_ascii=False), place)
    return content


def _json_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dict; reject repeated keys, of which ``json`` keeps only the last."""
    row = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the key '{name}' is repeated in one object: remove one")
        if isinstance(value, (int, list)) and not _fits(value):
            raise ValueError(f"'{name}' has an integer of more than 64 bits: write it as text")
        row[name] = value
    return row


def _fits(value: Any) -> bool:
    """Return whether no integer in a value, or in a list of values, has more than 64 bits."""
    if isinstance(value, list):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def refuse_half_characters(text: str, place: str) -> None:
    """Raise a ``UserError`` for an unpaired surrogate, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(f"{place}: {half} is half of a character: was the text cut?") from error


def refuse_pointer(beginning: bytes, place: str) -> None:
    """Raise a ``UserError`` for the file that Git LFS leaves where it downloaded nothing."""
    if beginning.startswith(_POINTER):
        raise UserError(f"{place} is a pointer of Git LFS, not the file: run git lfs pull")
