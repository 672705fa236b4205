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
from typing import IO, Any

import pyarrow as pa

from finetune.errors import UserError, suggestion
from finetune.runtime import formats

_BLOCK = 2**20  # bytes that are read at once; the first of them show an encoding
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: How compressed files begin.
_SIGNATURES = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
}
#: The share of letters beyond ASCII above which a text is in another alphabet than the Latin one.
_OTHER_ALPHABET = 0.3
#: Letters of Windows-1250 that Windows-1252 reads as signs inside of words.
_CENTRAL_EUROPEAN = re.compile(r"[a-z][\xb9\xb3\xbf\xbe\xbc\xa3\xa5][a-z]", re.I)
#: A character of UTF-8, but for those whose bytes are a letter and a sign of Windows-1252 as well.
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xc5\xce-\xde\xe0-\xf4][\x80-\xbf]")
#: So many of them in a line are no text of another alphabet by chance.
_SURELY_UTF8 = 4
_WORD_BEYOND_ASCII = re.compile(r"\w{0,20}[^\W\x00-\x7f]\w{0,20}")


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as it is read.

    Raises:
        UserError: If it is damaged, or an archive of more than one file.
    """
    compression = formats.compression(path)
    try:
        with contextlib.ExitStack() as stack:
            if compression == ".zip":
                yield stack.enter_context(_open_archive(path, stack))
            elif compression == ".zst":
                yield io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
            else:
                opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(compression, open)
                yield stack.enter_context(opener(path, "rb"))
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if not compression or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = error or "it ends too early"
        raise UserError(
            f"{path} is damaged, cut off or not compressed as its name says: {reason}; copy or "
            f"download it again, or rename it to {path.stem}"
        ) from error


def _open_archive(path: Path, stack: contextlib.ExitStack) -> IO[bytes]:
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    names = ", ".join(member.filename for member in members[:5])
    suffixes = {formats.suffix(member.filename) for member in members}
    is_other_format = suffixes & {*formats.FILES} and suffixes != {formats.suffix(path)}
    if len(members) != 1 or is_other_format or members[0].flag_bits & 1:
        raise UserError(
            f"{path}: expected an archive of one {formats.suffix(path)} file without a password, "
            f"found {names or 'none'}: unzip it"
        )
    return archive.open(members[0])


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
                f"--encoding {name}: expected an encoding such as utf-8, utf-16, cp1252 or latin-1"
                f"{suggestion(name, ['utf-8', 'utf-16', 'latin-1', 'cp1252', 'shift_jis'])}"
            ) from error
        return "utf-8-sig" if codec == "utf-8" else codec
    with open_bytes(path) as file:
        beginning = block = file.read(_BLOCK)
        for mark, codec in _BYTE_ORDER_MARKS.items():
            if beginning.startswith(mark):
                return codec
        # every second byte of Latin text in UTF-16 is null
        nulls = [beginning[start::2].count(0) / max(1, len(beginning)) for start in (0, 1)]
        if max(nulls) > 0.2 and min(nulls) < 0.025:
            return "utf-16-le" if nulls[1] > nulls[0] else "utf-16-be"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block:
                decoder.decode(block)
                block = file.read(_BLOCK)
            decoder.decode(b"", final=True)
            return "utf-8-sig"
        except UnicodeDecodeError:
            pass
    return _guess_encoding(path, beginning)


def _guess_encoding(path: Path, beginning: bytes) -> str:
    """Return the encoding of a file that is not UTF-8; libraries guess Latin text poorly."""
    control = sum(beginning.count(bytes([code])) for code in (*range(9), *range(14, 32)))
    if control > 0.01 * len(beginning):
        types = (kind for start, kind in _SIGNATURES.items() if beginning.startswith(start))
        hint = next((f"rename it to {path.name}{kind}" for kind in types), "is the suffix right?")
        raise UserError(f"{path} is no text: it has bytes that no encoding of text has; {hint}")
    letters = [code for code in beginning if code >= 0x80 or chr(code).isalpha()]
    if sum(code >= 0x80 for code in letters) > _OTHER_ALPHABET * len(letters):
        import charset_normalizer

        if guess := charset_normalizer.from_bytes(beginning).best():
            _refuse_two_encodings(path, _SURELY_UTF8)
            return guess.encoding
    _refuse_two_encodings(path, 1)
    text = beginning.decode("cp1252", "replace")
    return "cp1250" if _CENTRAL_EUROPEAN.search(text) else "cp1252"


def _refuse_two_encodings(path: Path, characters: int) -> None:
    """Refuse a file with a line of so many characters in UTF-8 beside one that is not UTF-8."""
    utf8 = other = ""
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isascii():
                continue
            try:
                text = line.decode()
                if not utf8 and len(_UTF8_CHARACTER.findall(line)) >= characters:
                    utf8 = f"line {number} is utf-8{example_word(text)}"
            except UnicodeDecodeError as error:
                other = other or f"line {number} is not (byte {line[error.start]:#x})"
            if utf8 and other:
                raise UserError(
                    f"{path} is in two encodings: {utf8}, {other}; convert the lines that are not, "
                    "or --encoding NAME reads all of it in one encoding, such as cp1252"
                )


def example_word(text: str) -> str:
    """Return a word beyond ASCII by which an encoding can be judged, in words."""
    word = _WORD_BEYOND_ASCII.search(text)
    return f", as in {word[0]!r}" if word else ""


def undecodable(path: Path, error: UnicodeDecodeError) -> UserError:
    """Return the refusal of a file that is not throughout in the encoding it is read in."""
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
