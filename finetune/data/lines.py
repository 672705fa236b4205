"""Split a text into lines without decoding them, so that lines of other processes cost nothing."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from finetune.data.layout import Layout
from finetune.runtime import formats

#: A line with its end; bytes where it can be decoded by itself.
Line = bytes | str
#: Encodings that have ASCII in them, of which a byte 0x0A or 0x0D is nothing but the end of a line.
_OF_ASCII = re.compile(r"ascii|utf-8(-sig)?|iso8859-\d+|cp125\d|koi8-[rtu]")


def are_bytes(path: Path, layout: Layout) -> bool:
    """Return whether the lines of a file are found without decoding or decompressing it."""
    name = codecs.lookup(layout.encoding).name
    return not formats.compression(path) and _OF_ASCII.fullmatch(name) is not None


def split(path: Path, layout: Layout, binary: IO[bytes]) -> Iterator[Line]:
    """Return the lines of a file, as bytes where they are found without decoding it.

    A line ends with a line feed; in a ``.csv`` or ``.tsv`` also with a carriage return, as ``csv``
    expects: one that is bytes has none within.

    Args:
        path: The file.
        layout: Its encoding.
        binary: It, opened and decompressed; what is returned closes it when it is collected.
    """
    has_fields = formats.suffix(path) in formats.SEPARATORS
    if not (layout.lines_are_rows if has_fields else are_bytes(path, layout)):
        return io.TextIOWrapper(binary, layout.encoding, newline="" if has_fields else "\n")
    mark = codecs.BOM_UTF8
    if layout.encoding == "utf-8-sig" and binary.read(len(mark)) != mark:
        binary.seek(0)
    return iter(binary)


def decoded(line: Line, layout: Layout) -> str:
    """Return the text of a line.

    Raises:
        UnicodeDecodeError: if it is in another encoding.
    """
    if isinstance(line, str):
        return line
    return line.decode("utf-8" if layout.encoding == "utf-8-sig" else layout.encoding)


def texts(lines: Iterator[Line], layout: Layout) -> Iterator[str]:
    """Return the text of each line, decoded as it is asked for."""
    if isinstance(lines, io.TextIOWrapper):
        return lines
    return (decoded(line, layout) for line in lines)


def is_blank(line: Line, layout: Layout) -> bool:
    """Return whether a line is white space, also of other alphabets; what cannot be decoded is
    none.
    """
    if isinstance(line, bytes) and line.startswith(b"{"):  # an object: it need not be decoded
        return False
    try:
        return decoded(line, layout).isspace()
    except UnicodeDecodeError:
        return False
