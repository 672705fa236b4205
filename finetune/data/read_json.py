"""Read rows of JSON: a document, or JSON lines; each line is parsed once.

A column whose values are objects, or have no common type, is kept as JSON text, which ``datasets``
returns as the values that it stands for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune.data.read_text import batches, text_lines
from finetune.errors import UserError
from finetune.runtime import formats, hub

_SHOWN = 40  # characters
_BITS = 63  # of a number, beside its sign
_NO_COMMON_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)

Row = dict[str, Any]


def tables(path: Path, encoding: str | None) -> Iterator[pa.Table]:
    """Yield the rows of a file, all with the same columns and types.

    These are known at the end only, so the rows wait in a temporary file until then.

    Raises:
        UserError: If a row is malformed, with its line.
    """
    schemas: list[pa.Schema] = []
    with tempfile.TemporaryFile(dir=hub.caches()["datasets"]) as file:
        for batch in batches(_rows(path, encoding), size=operator.itemgetter(1)):
            names = dict.fromkeys(name for row, _ in batch for name in row)
            table = pa.table({name: _array([row.get(name) for row, _ in batch]) for name in names})
            schemas.append(table.schema)
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
        types: dict[str, pa.DataType] = {}
        for name in dict.fromkeys(name for schema in schemas for name in schema.names):
            fields = [schema.field(name) for schema in schemas if name in schema.names]
            columns = [pa.schema([field]) for field in fields]
            types[name] = pa.json_()
            with contextlib.suppress(*_NO_COMMON_TYPE):  # whole numbers and fractions have one
                types[name] = pa.unify_schemas(columns, promote_options="permissive")[0].type
        file.seek(0)
        for _ in schemas:
            with pa.ipc.open_stream(file) as stream:
                table = stream.read_all()
            yield pa.table({name: _column(table, name, kind) for name, kind in types.items()})


def _array(values: Sequence[Any]) -> pa.Array:
    has_booleans = any(isinstance(value, bool) for value in values)
    with contextlib.suppress(*_NO_COMMON_TYPE):
        array = pa.array(values)
        # Arrow makes numbers of truth values, and gives each object the keys of all others
        if pa.types.is_boolean(array.type) == has_booleans and "struct" not in str(array.type):
            return array
    return _as_json(values)


def _as_json(values: Sequence[Any]) -> pa.Array:
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string()).cast(pa.json_())


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if name not in table.column_names:
        return pa.nulls(len(table), kind)
    column = table.column(name)
    if kind == pa.json_() != column.type:
        return _as_json(column.to_pylist())
    return column.cast(kind)


def record_lines(path: Path, encoding: str | None) -> Iterator[int]:
    """Yield the line of each row of JSON lines."""
    return (number for number, _ in _lines(path, encoding))


def _lines(path: Path, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1."""
    lines = enumerate(text_lines(path, encoding), start=1)
    return ((number, line) for number, line in lines if not line.isspace())


def _rows(path: Path, encoding: str | None) -> Iterator[tuple[Row, int]]:
    """Yield each row, and about how many characters it has."""
    if formats.suffix(path) == ".json":
        beginning = [line for _, line in itertools.islice(_lines(path, encoding), 2)]
        if len(beginning) < 2 or beginning[0].lstrip().startswith("["):
            text = "".join(text_lines(path, encoding))
            rows = _parse(text, path)
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise UserError(
                    f"{path}: expected an array of objects, as DataFrame.to_json(orient='records') "
                    f"writes it, found {text.strip()[:_SHOWN]!r}"
                )
            yield from ((row, len(text) // len(rows)) for row in rows)
            return
    for number, line in _lines(path, encoding):
        row = _parse(line, path, number)
        if not isinstance(row, dict):
            raise UserError(
                f"{path}, line {number}: expected an object, found {line.strip()[:_SHOWN]!r} (an "
                "array of objects is read from a .json)"
            )
        yield row, len(line)


def _parse(text: str, path: Path, line: int | None = None) -> Any:
    """Return the content of a line, or of a document."""
    place = str(path) if line is None else f"{path}, line {line}"
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {line or error.lineno}: {error.msg} (character {error.colno}): is it "
            "JSON, and not cut off?"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{place}: {error}") from error
    if "\\u" in text:
        refuse_half_characters(json.dumps(content, ensure_ascii=False), place)
    return content


def _object(pairs: Sequence[tuple[str, Any]]) -> Row:
    """Return an object as a dictionary; ``json`` would take the last of two values of one key."""
    row: Row = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the key '{name}' comes twice in one object: keep one")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise ValueError(
                f"the column '{name}' holds an integer of more than 64 bits; write it as text, in "
                "quotation marks, in every row, or leave the column out"
            )
        row[name] = value
    return row


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse a text that no encoding can write.

    Raises:
        UserError: If it has an unpaired surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(f"{place}: {half} is half of a character: was the text cut?") from error
