"""What is to be predicted: a file, a folder of pictures or the lines of the standard input."""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from finetune.data import files
from finetune.data.files import Chunk, Read, Reader, Rows
from finetune.errors import UserError

STANDARD_INPUT = "-"
_PICTURES = (".png", ".jpg", ".jpeg")
_MORE_MAY_COME = 0.05  # seconds
_LONGEST_READ = 2**16  # bytes


@dataclass(frozen=True)
class Input:
    """A file, a folder of pictures or the standard input.

    Attributes:
        name: As the user gave it.
        kind: The suffix of the file; ``-`` for the standard input, ``folder`` for pictures.
        columns: Those of its rows; in JSON lines, those of the first chunk.
        total: Its size: bytes of a text, rows of any other; None if it cannot be known.
    """

    name: str
    kind: str
    columns: Sequence[str]
    total: int | None

    @property
    def counted(self) -> bool:
        """Whether :attr:`total` is a number of rows."""
        return self.kind in (".parquet", "folder", "frame")

    @classmethod
    def open(cls, name: str) -> Input:
        """What ``name`` names, with the first chunk read.

        Raises:
            UserError: if it cannot be read, or holds no row.
        """
        if name == STANDARD_INPUT:
            return cls(name, STANDARD_INPUT, ("text",), None)
        path = files.existing(name)
        kind = "folder" if path.is_dir() else path.suffix.lower()
        if kind not in (*files.READERS, "folder"):
            raise UserError(
                f"cannot read {name}: expected a file that ends in {', '.join(files.READERS)}, a "
                f"folder of {', '.join(_PICTURES)}, or - for the standard input"
            )
        first = next(cls(str(path), kind, (), None).chunks(), None)
        if first is None:
            raise UserError(f"{name} holds no {' or '.join(_PICTURES)}")
        return cls(str(path), kind, first.columns, _total(path, kind))

    def chunks(self) -> Iterator[Chunk]:
        """The rows in their order.

        Raises:
            UserError: where the input is malformed, with the place.
        """
        return files.chunks(Path(self.name), _READERS.get(self.kind))


def _standard_input(_: Path) -> Iterator[Read]:
    """Its lines as they come: an answer does not wait for a whole chunk to be written."""
    source, read, rest = sys.stdin.buffer.fileno(), 0, b""
    rows: Rows = []
    while block := os.read(source, _LONGEST_READ):
        if not read:
            block = block.removeprefix(codecs.BOM_UTF8)
        read += len(block)
        *whole, rest = (rest + block).split(b"\n")
        rows += [{"text": _line(each)} for each in whole]
        while len(rows) >= files.CHUNK_ROWS:
            yield rows[: files.CHUNK_ROWS], read
            del rows[: files.CHUNK_ROWS]
        if rows and not select.select([source], [], [], _MORE_MAY_COME)[0]:
            yield rows, read
            rows = []
    if rest:
        rows.append({"text": _line(rest)})
    if rows:
        yield rows, read


def _line(line: bytes) -> str:
    return line.decode("utf-8").removesuffix("\r")


def _pictures(folder: Path) -> Iterator[Read]:
    """The names of the files, sorted; they are opened as they are predicted."""
    names = _files_of(folder)
    for start in range(0, len(names), files.CHUNK_ROWS):
        some = names[start : start + files.CHUNK_ROWS]
        yield [{"file": name} for name in some], start + len(some)


_READERS: dict[str, Reader] = {STANDARD_INPUT: _standard_input, "folder": _pictures}


def _files_of(folder: Path) -> list[str]:
    """The names of the pictures in a folder, sorted."""
    return sorted(
        each.name
        for each in folder.iterdir()
        if each.suffix.lower() in _PICTURES and each.is_file()
    )


def _total(path: Path, kind: str) -> int:
    if kind == ".parquet":
        return int(pq.ParquetFile(path).metadata.num_rows)
    return len(_files_of(path)) if kind == "folder" else path.stat().st_size
