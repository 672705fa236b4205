"""Read rows of JSON: a document, or JSON lines; each line is parsed once.

A column whose values have no common type, or hold an empty object, is kept as JSON text, which
``datasets`` returns as the values that it stands for.
"""

from __future__ import annotations

import io
import itertools
import json
import operator
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune.data.read_bytes import open_bytes
from finetune.data.read_text import batches
from finetune.errors import UserError
from finetune.runtime import formats, hub

_SHOWN = 40  # characters
_BITS = 63  # of a number, beside its sign

Row = dict[str, Any]


def tables(path: Path, encoding: str) -> Iterator[pa.Table]:
    """Yield the rows of a file, all with the same columns and types.

    These are known at the end only, so the rows wait in a temporary file until then.

    Raises:
        UserError: If a row is malformed, with its line.
    """
    schemas: list[pa.Schema] = []
    with tempfile.TemporaryFile(dir=hub.caches()["datasets"]) as file:
        for batch in batches(_rows(path, encoding), size=operator.itemgetter(1)):
            table = _typed_table([row for row, _ in batch])
            schemas.append(table.schema)
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
        schema = _common_schema(schemas)
        file.seek(0)
        for _ in schemas:
            with pa.ipc.open_stream(file) as stream:
                yield _cast(stream.read_all(), schema)


def _typed_table(rows: Sequence[Row]) -> pa.Table:
    """Return objects as a table; an absent key is a null."""
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            array = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            array = None
        has_booleans = any(isinstance(value, bool) for value in values)
        if (
            array is None
            or _has_empty_object(array.type)
            or (has_booleans and not pa.types.is_boolean(array.type))
        ):
            array = _as_json(values)
        columns[name] = array
    return pa.table(columns)


def _has_empty_object(kind: pa.DataType) -> bool:
    """``datasets`` and Parquet have no type for an object without keys."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_has_empty_object(field.type) for field in kind)
    return pa.types.is_list(kind) and _has_empty_object(kind.value_type)


def _as_json(values: Sequence[Any]) -> pa.Array:
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string()).cast(pa.json_())


def _common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that holds the rows of all: a number with a fraction, for instance."""
    types: dict[str, pa.DataType] = {}
    for name in dict.fromkeys(name for schema in schemas for name in schema.names):
        columns = [pa.schema([schema.field(name)]) for schema in schemas if name in schema.names]
        try:
            types[name] = pa.unify_schemas(columns, promote_options="permissive")[0].type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            types[name] = pa.json_()
    return pa.schema(list(types.items()))


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
        elif field.type == pa.json_() != table.schema.field(field.name).type:
            columns.append(_as_json(table.column(field.name).to_pylist()))
        else:
            columns.append(table.column(field.name).cast(field.type))
    return pa.table(columns, schema=schema)


def record_lines(path: Path, encoding: str) -> Iterator[int]:
    """Yield the line of each row of JSON lines."""
    return (number for number, _ in _lines(path, encoding))


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1."""
    with open_bytes(path) as binary:
        for number, line in enumerate(io.TextIOWrapper(binary, encoding, newline="\n"), start=1):
            if not line.isspace():
                yield number, line


def _rows(path: Path, encoding: str) -> Iterator[tuple[Row, int]]:
    """Yield each row, and about how many characters it has."""
    if formats.suffix(path) == ".json":
        beginning = [line for _, line in itertools.islice(_lines(path, encoding), 2)]
        if len(beginning) < 2 or not all(map(_is_object, beginning)):
            with open_bytes(path) as binary:
                text = io.TextIOWrapper(binary, encoding).read()
            rows = _document_rows(text, path)
            yield from ((row, len(text) // len(rows)) for row in rows)
            return
    for number, line in _lines(path, encoding):
        yield parse_line(line, f"{path}, line {number}"), len(line)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def parse_line(line: str, place: str) -> Row:
    """Return the row of a line of JSON lines; ``place`` is for the message.

    Raises:
        UserError: If it is not one object, or if its values cannot be kept.
    """
    row = _parse(line, place, has_lines=False)
    if isinstance(row, dict):
        return row
    raise UserError(
        f"{place}: expected an object, found {line.strip()[:_SHOWN]!r} (an array of objects is "
        "read from a .json)"
    )


def _document_rows(text: str, path: Path) -> list[Row]:
    """Return the rows of an array of objects, of an object with one such array, or of columns by
    name, as ``DataFrame.to_json`` writes them.
    """
    content = _parse(text, str(path), has_lines=True)
    values = [*content.values()] if isinstance(content, dict) else [content]
    arrays = [rows for rows in values if isinstance(rows, list) and rows]
    arrays = [rows for rows in arrays if all(isinstance(row, dict) for row in rows)]
    if len(arrays) == 1:
        return list(arrays[0])
    if values and isinstance(content, dict) and all(isinstance(column, dict) for column in values):
        keys = values[0].keys()
        if keys and all(column.keys() == keys for column in values):
            return [{name: column[key] for name, column in content.items()} for key in keys]
    raise UserError(
        f"{path}: expected an array of objects, found {text.strip()[:_SHOWN]!r}: write one object "
        "per line, as .jsonl"
    )


def _parse(text: str, place: str, *, has_lines: bool) -> Any:
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise UserError(f"{place} holds no rows") from error
        line = f", line {error.lineno}" if has_lines else ""
        cut = ": is it cut off?" if not text[error.pos :].strip() else ""
        raise UserError(f"{place}{line}: {error.msg} (character {error.colno}){cut}") from error
    except RecursionError as error:
        raise UserError(f"{place}: too many lists and objects inside each other") from error
    except ValueError as error:
        raise UserError(f"{place}: {error}") from error
    if "\\u" in text:
        refuse_half_characters(json.dumps(content, ensure_ascii=False), place)
    return content


def _object(pairs: Sequence[tuple[str, Any]]) -> Row:
    """Return an object as a dictionary; ``json`` would take the last of two values of one key."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{name}' comes twice in one object: keep one")
    for name, value in row.items():
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise ValueError(
                f"the column '{name}' holds an integer of more than 64 bits; write it as text, in "
                "quotation marks, in every row, or leave the column out"
            )
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
        raise UserError(
            f"{place}: {half} is half of a character (a surrogate): was the text cut in the middle?"
        ) from error
