"""Split a text into lines without decoding them, so that lines of other processes cost nothing."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from finetune.data.layout import Layout
from finetune.runtime import formats

#: A line with its end; bytes where it can be decoded by itself.
Line = bytes | str
#: A byte order mark, decoded.
MARK = "\ufeff"
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


def decoder(lines: Iterator[Line], layout: Layout) -> Callable[[Line], str]:
    """Return what makes text of one of these lines; it raises if it is in another encoding. The
    byte order mark of a file that was appended to another one is left out.
    """
    if isinstance(lines, io.TextIOWrapper):
        return lambda line: str(line).removeprefix(MARK)
    encoding = "utf-8" if layout.encoding == "utf-8-sig" else layout.encoding
    return lambda line: str(line, encoding).removeprefix(MARK)  # type: ignore[arg-type]


def not_blank(lines: Iterator[Line], layout: Layout) -> Iterator[tuple[int, Line]]:
    """Yield the lines that are not white space, of any alphabet, with their number, from 1; those
    in another encoding are not.
    """
    decode = decoder(lines, layout)

    def is_blank(line: Line) -> bool:
        try:
            return decode(line).isspace()
        except UnicodeDecodeError:
            return False

    for number, line in enumerate(lines, start=1):  # most are objects, which need no decoding
        if (isinstance(line, bytes) and line.startswith(b"{")) or not is_blank(line):
            yield number, line
