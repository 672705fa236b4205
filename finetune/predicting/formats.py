"""Writes rows with what was predicted of them: CSV, TSV, JSON lines or parquet."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data.files import Chunk, Rows
from finetune.errors import UserError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARTS_OF_A_GROUP = 16
Added = Mapping[str, list[Any]]


def of_screen(kind: str) -> str:
    """The format of the standard output, for an input of this kind."""
    if kind == ".jsonl":
        return ".jsonl"
    return ".tsv" if kind in (".tsv", ".txt", "-") else ".csv"


def write_header(file: IO[str], suffix: str, columns: Sequence[str]) -> None:
    """The names of the columns, where the format has them on top."""
    if suffix in _SEPARATORS:
        _delimited(file, suffix).writerow(columns)


def write_rows(
    file: IO[str], suffix: str, columns: Sequence[str], chunk: Chunk, added: Added
) -> None:
    """The rows of a chunk as text.

    Args:
        file: Opened with ``newline=""``.
        suffix: Of a text format.
        columns: Of the input.
        chunk: The rows.
        added: Columns by name.

    Raises:
        UserError: if a row has columns that the first ones did not have and there is no place for.
    """
    rows = chunk.dictionaries()
    _refuse_taken(rows, columns, added, others=suffix == ".jsonl")
    new = [dict(zip(added, values, strict=True)) for values in zip(*added.values(), strict=True)]
    if suffix == ".jsonl":
        for row, more in zip(rows, new, strict=True):
            file.write(_json({**row, **more}) + "\n")
        return
    writer = _delimited(file, suffix)
    for row, more in zip(rows, new, strict=True):
        writer.writerow([*(_cell(row.get(name)) for name in columns), *map(_cell, more.values())])


def write_part(path: Path, suffix: str, columns: Sequence[str], chunk: Chunk, added: Added) -> None:
    """A chunk as a file that :func:`join` joins to others."""
    if suffix != ".parquet":
        with path.open("w", encoding="utf-8", newline="") as file:
            write_rows(file, suffix, columns, chunk, added)
        return
    if isinstance(chunk.rows, list):
        _refuse_taken(chunk.rows, columns, added, others=True)
    try:
        table = chunk.table()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _no_one_type(error) from error
    for name, values in added.items():
        table = table.append_column(name, pa.array(values))
    metadata = dict(table.schema.metadata or {})
    metadata.pop(b"huggingface", None)  # `datasets` would miss the new columns in it
    pq.write_table(table.replace_schema_metadata(metadata), path)


def join(parts: Sequence[Path], output: Path, suffix: str, columns: Sequence[str]) -> None:
    """One file of the parts, in their order; it holds only a few of them at a time.

    Args:
        parts: Of :func:`write_part`.
        output: The file to write.
        suffix: Of the format.
        columns: Of the input and added.
    """
    if suffix == ".parquet":
        schema = schema_of(parts)
        with pq.ParquetWriter(output, schema) as writer:
            for start in range(0, len(parts), _PARTS_OF_A_GROUP):
                some = parts[start : start + _PARTS_OF_A_GROUP]
                tables = [pq.read_table(part, schema=schema) for part in some]
                writer.write_table(pa.concat_tables(tables))
        return
    with output.open("w", encoding="utf-8", newline="") as file:
        write_header(file, suffix, columns)
    with output.open("ab") as whole:
        for part in parts:
            with part.open("rb") as file_of_part:
                shutil.copyfileobj(file_of_part, whole)


def schema_of(parts: Sequence[Path]) -> pa.Schema:
    """That of all of these parquet files.

    Raises:
        UserError: if a column has types that are not one.
    """
    try:
        return pa.unify_schemas(
            [pq.read_schema(part) for part in parts], promote_options="permissive"
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _no_one_type(error) from error


def _delimited(file: IO[str], suffix: str) -> Any:
    # with this end of a line, fields that hold either character of it are quoted
    return csv.writer(_UnixLines(file), delimiter=_SEPARATORS[suffix], lineterminator="\r\n")


class _UnixLines:
    """Takes the rows of a ``csv.writer``, one at a time, and ends them with a newline alone."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, (list, dict, bytes)) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    """Of a date or a decimal number; JSON has none."""
    if isinstance(value, bytes):
        raise UserError(
            "a column holds bytes, which no text does: write parquet, as with "
            "--output predicted.parquet"
        )
    return str(value)


def _refuse_taken(rows: Rows, columns: Sequence[str], added: Added, others: bool) -> None:
    """JSON lines may have other keys in each line.

    Args:
        rows: To be written.
        columns: Those known from the first rows.
        added: By name.
        others: Whether the format has a place for further columns.
    """
    known = set(columns)
    for row in rows:
        for name in row.keys() - known:
            if name in added:
                raise UserError(
                    f"a row has a column '{name}', which the first rows have not: it is the name "
                    "of what is added"
                )
            if not others:
                raise UserError(
                    f"a row has a column '{name}', which the first rows have not: write JSON "
                    "lines, as with --output predicted.jsonl"
                )


def _no_one_type(error: Exception) -> UserError:
    return UserError(
        f"a column has values of several types ({error}): write JSON lines, as with "
        "--output predicted.jsonl"
    )
