"""Read the bytes of a file of text: decompress them, and detect their encoding."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from finetune.errors import UserError, suggestion
from finetune.runtime import formats

#: Bytes that are read at once; the first of them show an encoding without a mark.
_BLOCK = 2**20
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


def encoding_of(path: Path, name: str | None) -> str:
    """Return the encoding of a file: what the user said, a byte order mark, UTF-8, or a guess.

    Args:
        path: Of a file of text.
        name: What the user said; None to detect it.

    Raises:
        UserError: If the user's is no encoding; if the file is no text, or in two encodings.
    """
    if name is not None:
        try:
            codec = codecs.lookup(name).name
            "".encode(codec)
        except (LookupError, UnicodeError) as error:
            raise UserError(
                f"--encoding {name}: expected an encoding such as utf-8, utf-16, "
                f"cp1252 or latin-1{suggestion(name, _COMMON_ENCODINGS)}"
            ) from error
        return "utf-8-sig" if codec == "utf-8" else codec
    with open_bytes(path) as file:
        beginning = block = file.read(_BLOCK)
        for mark, codec in _BYTE_ORDER_MARKS:
            if beginning.startswith(mark):
                return codec
        if wide := _utf16_without_mark(beginning):
            return wide
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block:
                decoder.decode(block)
                block = file.read(_BLOCK)
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
    utf8 = sure = other = 0
    first_utf8, first_other, word = 0, "", ""
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isascii():
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                first_other = first_other or f"line {number} is not (byte {line[error.start]:#x})"
                other += 1
                continue
            characters = len(_UTF8_CHARACTER.findall(line))
            sure += characters >= _SURELY_UTF8
            utf8 += characters > 0
            if characters and not first_utf8:
                first_utf8, word = number, example_word(text)
    is_western = encoding in ("cp1252", "cp1250", "latin-1")
    many = utf8 >= min(3, other) and utf8 > 0.02 * (utf8 + other)
    if other and ((is_western and many) or sure >= other):
        raise UserError(
            f"{path} is in two encodings: line {first_utf8} is utf-8{word}, {first_other}; convert "
            "the lines that are not, or --encoding NAME reads all of it in one encoding, such as "
            "cp1252"
        )


def example_word(text: str) -> str:
    """Return a word beyond ASCII by which an encoding can be judged, in words."""
    word = _WORD_BEYOND_ASCII.search(text)
    return f", as in {word[0]!r}" if word else ""


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
