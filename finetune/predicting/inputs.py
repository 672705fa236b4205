"""Reads what is to be predicted, a chunk of rows at a time, with every column as it is.

A file is cut into the same chunks by whoever reads it and however often, so that processes can
divide them among themselves, and an interrupted prediction can go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import UserError, suggestion
from finetune.predicting.readers import PICTURES, READERS, STANDARD_INPUT, Rows, files_of


@dataclass(frozen=True)
class Chunk:
    """Some rows of the input.

    Attributes:
        number: Of the chunk, from 0.
        rows: As dictionaries, or as a table where the columns have types of their own.
        end: Where it ends in the input, in the units of :attr:`Input.total`.
    """

    number: int
    rows: Rows | pa.Table
    end: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, column: str) -> list[Any]:
        """One column; None where a row has no such value."""
        if isinstance(self.rows, list):
            return [row.get(column) for row in self.rows]
        return list(self.rows.column(column).to_pylist())

    def table(self) -> pa.Table:
        """The rows with types, found out where there are none yet."""
        rows = self.rows
        if not isinstance(rows, list):
            return rows
        return pa.table({name: self.values(name) for name in _keys(rows)})

    def dictionaries(self) -> Rows:
        """The rows as Python's own values."""
        return self.rows if isinstance(self.rows, list) else list(self.rows.to_pylist())


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
        path = Path(name).expanduser()
        kind = "folder" if path.is_dir() else path.suffix.lower()
        if not path.exists():
            there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
            raise UserError(f"no such file or directory: {name}{suggestion(path.name, there)}")
        if kind not in READERS:
            known = ", ".join(each for each in READERS if each.startswith("."))
            raise UserError(
                f"cannot read {name}: expected a file that ends in {known}, a folder of "
                f"{', '.join(PICTURES)}, or - for the standard input"
            )
        first = next(cls(str(path), kind, (), None).chunks(), None)
        if first is None:
            held = f"no {' or '.join(PICTURES)}" if kind == "folder" else "no rows"
            raise UserError(f"{name} holds {held}")
        rows = first.rows
        columns = _keys(rows) if isinstance(rows, list) else rows.column_names
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise UserError(f"{path}: two columns are called '{twice[0]}'")
        return cls(str(path), kind, columns, _total(path, kind))

    def chunks(self) -> Iterator[Chunk]:
        """The rows in their order.

        Raises:
            UserError: where the input is malformed, with the place.
        """
        try:
            for number, (rows, end) in enumerate(READERS[self.kind](Path(self.name))):
                yield Chunk(number, rows, end)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.name} is not UTF-8: {error.reason} (byte {error.object[error.start]:#x}); "
                "convert it, as with: iconv -f latin1 -t utf-8"
            ) from error
        except pa.ArrowInvalid as error:
            raise UserError(f"cannot read {self.name}: {error}") from error


def _keys(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _total(path: Path, kind: str) -> int:
    if kind == ".parquet":
        return int(pq.ParquetFile(path).metadata.num_rows)
    return len(files_of(path)) if kind == "folder" else path.stat().st_size
