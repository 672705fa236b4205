"""How a file of text is written: compression, encoding, separator and quotation marks, detected or
as the user says.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from finetune.data import charsets
from finetune.errors import UserError, suggestion
from finetune.runtime import formats, hub

#: Separators that are looked for, and what they are called.
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: Those that are only hinted at: they may be text.
OTHERS = "^~:¦§#"
#: How a person writes characters that a shell does not pass on.
_WRITTEN = {"tab": "\t", "\\t": "\t"}
#: The beginning of a file, by which it is judged; and rows of it that have to agree.
_BEGINNING, _ROWS = 2**20, 200
#: An archive that becomes so many times larger, and so large, holds no text.
_LARGEST_RATIO, _LARGE = 100, 4 * 2**30
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: The share of letters beyond ASCII from which on text is in another alphabet than the Latin one.
_OTHER_ALPHABET = 0.3
#: Letters of Central Europe in Windows-1250, which Windows-1252 reads as signs inside of words.
_CENTRAL = re.compile(r"[a-z][\xb9\xb3\xbf\xbe\xbc\xa3\xa5][a-z]", re.I)
#: A letter, or else a sign, that shows an encoding; and how much of a word is shown.
_BEYOND_ASCII = (re.compile(r"[^\W\x00-\x7f]"), re.compile(r"[^\x00-\x7f\ufeff]"))
_SHOWN = 20
_NOT_UTF8 = re.compile(r"[\udc80-\udcff]")
#: Characters of UTF-8 that a line must have to be no other alphabet by chance.
_SURELY_UTF8 = 4
_USUAL = ("utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "shift_jis")
_OF_UNICODE = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
_LATIN = ("cp1252", "cp1250", "latin-1")
#: Bytes that Windows-1252 leaves undefined.
_UNDEFINED = b"\x81\x8d\x8f\x90\x9d"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the user says of a file; the rest is detected.

    Attributes:
        quoting: ``auto``, ``minimal`` or ``none``; see :mod:`finetune.data.delimited`.
        separator: Of the fields of a ``.csv`` or ``.tsv``; None to detect it.
        encoding: The name of a codec of Python; None to detect it.
        sheet: Of a spreadsheet; None for the first that has rows.
    """

    quoting: str = "auto"
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """Those that were said, by option."""
        said = {
            "--csv_separator": self.separator,
            "--encoding": self.encoding,
            "--sheet": self.sheet,
        }
        quoting = {"--csv_quoting": self.quoting} if self.quoting != "auto" else {}
        return {**quoting, **{flag: value for flag, value in said.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file of text, or a spreadsheet, is read.

    Attributes:
        encoding: The name of a codec.
        separator: Of fields; a comma where there are none.
        quoting: ``minimal`` or ``none``.
        sheet: The name of that which is read; empty of a text.
        lines_are_rows: Whether each line of a ``.csv`` or ``.tsv`` is known to be a row; see
            :func:`finetune.data.delimited.lines_are_rows`.
    """

    encoding: str = "utf-8-sig"
    separator: str = ","
    quoting: str = "minimal"
    sheet: str = ""
    lines_are_rows: bool = field(default=False, repr=False)


#: Of a format without any of these.
USUAL = Layout()


def detected(path: Path, options: ReadOptions) -> tuple[Layout, str]:
    """Return encoding and separator of a file, and a sentence of what is not usual; its quotation
    marks are looked at by :func:`finetune.data.delimited.quoting`.

    Raises:
        UserError: if it is no text, or if an option cannot be.
    """
    suffix, told = formats.suffix(path), []
    with opened(path) as file:
        beginning = file.read(_BEGINNING)
    if options.encoding is not None:
        encoding = _known(options.encoding)
    else:
        encoding = _encoding(path, beginning)
        _refuse_two_encodings(path, encoding)
        if encoding not in ("utf-8", "utf-8-sig"):
            text = codecs.getincrementaldecoder(encoding)("replace").decode(beginning)
            such = _example(text)
            told.append(f"{encoding}{f', as in {such!r}' if such else ''} (--encoding)")
    separator, hint = formats.SEPARATORS.get(suffix, ","), ""
    if suffix in formats.SEPARATORS:
        if options.separator is not None:
            separator = separator_written(options.separator)
        else:
            usual, separator = separator, _separator(beginning, encoding, separator)
            if separator != usual:
                told.append(
                    f"fields separated by {NAMES.get(separator, repr(separator))} (--csv_separator)"
                )
            hint = _other_separator(beginning, encoding, separator)
    parts = [f"read as {', '.join(told)}" if told else "", hint]
    sentence = f"{path.name}: {'; '.join(filter(None, parts))}" if any(parts) else ""
    if encoding == "utf-8":  # a mark may come without being at the beginning of what was read
        encoding = "utf-8-sig"
    return Layout(encoding=encoding, separator=separator), sentence


def _example(text: str) -> str:
    """Return a word by which an encoding can be judged, or a sign; empty if there is neither."""
    letter, sign = (pattern.search(text) for pattern in _BEYOND_ASCII)
    if letter is None:
        return sign[0] if sign else ""
    start, end = letter.span()
    before = re.split(r"\W", text[max(0, start - _SHOWN) : start])[-1]
    after = re.split(r"\W", text[end : end + _SHOWN])[0]
    return f"{before}{letter[0]}{after}"


def separator_written(word: str) -> str:
    """Return the separator that a user typed: one character, or ``tab``.

    Raises:
        UserError: if it is neither.
    """
    found = _WRITTEN.get(word.lower(), word)
    if len(found) != 1 or found in '"\r\n':
        raise UserError(
            f"--csv_separator {word}: expected one character such as ';' or '|', or tab"
        )
    return found


def _known(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)
    except (LookupError, UnicodeError) as error:
        near = suggestion(encoding, _USUAL)
        raise UserError(
            f"--encoding {encoding}: not known{near}; expected a name such as utf-8, utf-16, "
            "cp1252 or latin-1"
        ) from error
    return "utf-8-sig" if name == "utf-8" else name


def _encoding(path: Path, beginning: bytes) -> str:
    """Return the encoding of a file by its beginning.

    Raises:
        UserError: if it is no text.
    """
    for mark, name in _MARKS:
        if beginning.startswith(mark):
            return name
    wide = charsets.without_mark(beginning)
    if wide:
        return wide
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
        return "utf-8"
    except UnicodeDecodeError:
        text = beginning.decode("utf-8", "surrogateescape")
        wrong = len(_NOT_UTF8.findall(text))
        if len(_BEYOND_ASCII[1].findall(text)) > 2 * wrong:
            raise  # more of it is UTF-8 than not, which no other encoding is by chance
    if charsets.is_utf8_too(io.BytesIO(beginning), _SURELY_UTF8):
        raise two_encodings(path) or AssertionError(path)
    control = sum(beginning.count(bytes([each])) for each in (*range(9), *range(14, 32)))
    if control > 0.01 * len(beginning):
        new = formats.renamed(path)
        hint = f"rename it to {new}" if new else "is the suffix right?"
        raise UserError(f"{path} is no text: it has bytes that no encoding of text has; {hint}")
    letters = [each for each in beginning if each >= 0x80 or chr(each).isalpha()]
    if sum(each >= 0x80 for each in letters) > _OTHER_ALPHABET * len(letters):
        import charset_normalizer

        if found := charset_normalizer.from_bytes(beginning).best():
            return found.encoding
    if any(each in beginning for each in _UNDEFINED):
        return "latin-1"
    is_central = _CENTRAL.search(beginning.decode("cp1252"))  # guesses of Latin text are poor
    return "cp1250" if is_central else "cp1252"


def _refuse_two_encodings(path: Path, encoding: str) -> None:
    """Refuse a file that was taken for other than UTF-8, of which lines are UTF-8.

    Raises:
        UserError: with the first line of either kind.
    """
    if encoding in _OF_UNICODE or not charsets.has_bytes_for_characters(encoding):
        return  # bytes of several are UTF-8 by chance
    characters = 1 if encoding in _LATIN else _SURELY_UTF8
    with opened(path) as file:
        is_mixed = charsets.is_utf8_too(file, characters)
    if is_mixed and (refusal := two_encodings(path)):
        raise refusal


def two_encodings(path: Path) -> UserError | None:
    """Return the refusal of a file of which some lines are UTF-8 and others are not; None if it is
    no such file.
    """
    with opened(path) as lines:
        found = charsets.first_lines(lines)
    if found is None:
        return None
    (line, text), (other, byte) = found
    return UserError(
        f"{path} is not utf-8 throughout: line {line} is ('{_example(text)}'), line {other} is not "
        f"(byte {byte:#x}); convert the lines that are not, or --encoding NAME reads all of it in "
        "one encoding, such as cp1252"
    )


def _separator(beginning: bytes, encoding: str, usual: str) -> str:
    """Return the separator of fields: another than the usual one only if that finds one column in
    the first line, or not as many in every row, and the other finds as many fields in every row.
    """
    text = codecs.getincrementaldecoder(encoding)("replace").decode(beginning)
    whole = len(beginning) < _BEGINNING
    first = text.partition("\n")[0].strip("\r\ufeff")
    if len(first) == 5 and first.lower().startswith("sep="):  # as Excel reads it
        return first[4]
    by_usual = _fields(text, usual, whole)
    if by_usual[:1] != [1] and len(set(by_usual)) < 2:
        return usual
    agreeing = [each for each in NAMES if each != usual and _is_even(text, each, whole)]
    return agreeing[0] if len(agreeing) == 1 else usual


def _is_even(text: str, separator: str, whole: bool) -> bool:
    """Return whether every row has the same number of fields, two or more."""
    counts = _fields(text, separator, whole)
    return len(counts) > 1 and len(set(counts)) == 1 and counts[0] > 1


def _other_separator(beginning: bytes, encoding: str, separator: str) -> str:
    """Return a hint if a single column is several with a separator that is no usual one."""
    text = codecs.getincrementaldecoder(encoding)("replace").decode(beginning)
    whole = len(beginning) < _BEGINNING
    first = text.partition("\n")[0]
    if separator not in first:
        for each in OTHERS:
            if each in first and _is_even(text, each, whole):
                return f"one column, but every row has as many {each!r}: --csv_separator '{each}'?"
    return ""


def _fields(text: str, separator: str, whole: bool) -> list[int]:
    """Return how many fields the first rows have; the last row of a part of a file is left out."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    counts = []
    with contextlib.suppress(csv.Error):
        for row in rows:
            if row:
                counts.append(len(row))
            if len(counts) > _ROWS:
                return counts
    return counts if whole else counts[:-1]


def not_utf8(name: str, line: int, error: UnicodeDecodeError) -> UserError:
    """Return the refusal of an input in another encoding, with how to convert it."""
    is_wide = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return UserError(
        f"{name} is not UTF-8: {error.reason} (line {line}, byte {error.object[error.start]:#x}); "
        f"convert it, e.g. iconv -f {'utf-16' if is_wide else 'latin1'} -t utf-8"
    )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as it is read.

    Raises:
        UserError: if it is damaged, or an archive of several files or of more than the disk has
            room for.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_decompressed(path, stack))
    except OSError as error:
        # those of gzip, and of bz2 and zstd, which have no type of their own
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
    return UserError(
        f"{path} is damaged or cut off: {error or 'the compressed data ends too early'}; copy or "
        "download it again"
    )


def _decompressed(path: Path, stack: contextlib.ExitStack) -> IO[bytes]:
    match formats.compression(path):
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path))
        case ".zst":
            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
        case ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            return archive.open(_member(path, archive))
    return path.open("rb")


def _member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the one file of an archive."""
    there = [
        each
        for each in archive.infolist()
        if not each.is_dir() and not each.filename.startswith("__MACOSX/")
    ]
    if len(there) != 1:
        names = ", ".join(each.filename for each in there[:5]) or "none"
        raise UserError(f"{path}: expected an archive of one file, found {names}: unzip it")
    inside = formats.suffix(there[0].filename)
    if inside in formats.FILES and inside != formats.suffix(path):
        name = f"{formats.stem(path)}{inside}.zip"
        hint = f"rename it to {name}" if inside in formats.TEXTS else "unzip it"
        raise UserError(f"{path} holds {there[0].filename}: {hint}")
    if there[0].flag_bits & 1:
        raise UserError(f"{path} is encrypted: unzip it")
    ratio = there[0].file_size / max(1, there[0].compress_size)
    if ratio > _LARGEST_RATIO and there[0].file_size > _LARGE:
        raise UserError(
            f"{path} would unpack to {there[0].file_size / 2**30:,.1f} GiB, {ratio:,.0f} times its "
            "size, which no text does: is it what it claims to be? If it is, unzip it"
        )
    cache = hub.caches()["datasets"]  # where its rows go
    free = shutil.disk_usage(next(each for each in (cache, *cache.parents) if each.exists())).free
    if there[0].file_size > free:
        raise UserError(
            f"{path} would unpack to {there[0].file_size / 2**30:,.1f} GiB, and the disk of "
            f"{cache} has {free / 2**30:,.1f} GiB: is it what it claims to be?"
        )
    return there[0]
