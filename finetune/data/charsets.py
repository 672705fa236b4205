"""Find a file that is in two encodings: some lines are UTF-8, others are not.

Bytes of Windows-1252 that are UTF-8 by chance are a capital letter at the end of a word, followed
by a mark: ``É»``. Lines with nothing else beyond ASCII are rare, and a few are no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import IO

import numpy as np

#: Lines, and the share of the bytes beyond ASCII in them, from which on a file is in two encodings:
#: fewer are texts that were misread before, ``Ã©`` for ``é``, told where rows are checked.
_FEWEST_LINES, _FEWEST_BYTES = 3, 0.02
_AT_ONCE = 2**20  # bytes
#: The first two bytes of a character in UTF-8, but for letters that hardly any text consists of,
#: whose bytes are those of ``É`` or ``ß`` and a mark.
_CHARACTER = re.compile(rb"[\xc2-\xc5\xce-\xde\xe0-\xf4][\x80-\xbf]")
_MARK = b"\xef\xbb\xbf"


def is_utf8_too(file: IO[bytes], characters: int = 1) -> bool:
    """Return whether lines of a file that is not UTF-8 are nevertheless; it is read to its end.

    Args:
        file: Of lines.
        characters: Beyond ASCII, that a line must have to be evidence.
    """
    lines = in_lines = beyond = 0
    while block := file.read(_AT_ONCE) + file.readline(_AT_ONCE):
        if block.isascii():
            continue
        values = np.frombuffer(block, np.uint8)
        beyond += int(np.count_nonzero(values >= 0x80))
        follows = (values[1:] & 0xC0) == 0x80
        end = 0
        for place in np.flatnonzero((values[:-1] >= 0xC2) & follows).tolist():
            if place < end:
                continue
            start = block.rfind(b"\n", 0, place) + 1
            end = block.find(b"\n", place) + 1 or len(block)
            line = block[start:end]
            if len(_CHARACTER.findall(line)) >= characters and decodes(line):
                lines += 1
                in_lines += len(line) - len(line.decode("ascii", "ignore"))
    return lines >= _FEWEST_LINES and in_lines >= _FEWEST_BYTES * beyond


def first_lines(lines: Iterable[bytes]) -> tuple[tuple[int, str], tuple[int, int]] | None:
    """Return the number of the first line in UTF-8, with its text, and that of the first line that
    is not, with the first byte that is wrong; None if there are not both.
    """
    utf8: tuple[int, str] | None = None
    other: tuple[int, int] | None = None
    for number, line in enumerate(lines, start=1):
        if line.isascii():
            continue
        try:
            text = line.removeprefix(_MARK).decode()
        except UnicodeDecodeError as error:
            other = other or (number, line[error.start])
        else:
            if utf8 is None and not text.isascii():
                utf8 = number, text
        if utf8 and other:
            return utf8, other
    return None


def decodes(line: bytes, encoding: str = "utf-8") -> bool:
    """Return whether a line is in an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def has_bytes_for_characters(encoding: str) -> bool:
    """Return whether each character of an encoding is one byte."""
    return len(bytes(range(256)).decode(encoding, "replace")) == 256


def without_mark(beginning: bytes) -> str | None:
    """Return the UTF-16 that a beginning is in without a mark: every second byte of Latin text is
    null.
    """
    if len(beginning) < 4:
        return None
    zeros = [beginning[start::2].count(0) / max(1, len(beginning) // 2) for start in (0, 1)]
    for name, (other, null) in (("utf-16-le", zeros), ("utf-16-be", zeros[::-1])):
        if null > 0.4 and other < 0.05:
            return name
    return None
