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

from finetune.data.read_text import batches, refuse_half_characters, text_lines
from finetune.errors import UserError
from finetune.runtime import formats, hub

_SHOWN = 40  # characters
_NO_COMMON_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def tables(path: Path, encoding: str | None) -> Iterator[pa.Table]:
    """Yield the rows of a document or of JSON lines, all with the same columns and types.

    These are known at the end only, so the rows wait in a temporary file until then.

    Raises:
        UserError: If a row is malformed, with its line.
    """
    types: dict[str, pa.DataType] = {}
    count = 0
    with tempfile.TemporaryFile(dir=hub.caches()["datasets"]) as file:
        for batch in batches(_rows(path, encoding), operator.itemgetter(1)):
            names = dict.fromkeys(name for row, _ in batch for name in row)
            table = pa.table({name: _array([row.get(name) for row, _ in batch]) for name in names})
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
            for field in table.schema:
                types[field.name] = _common_type(types.get(field.name, field.type), field.type)
            count += 1
        file.seek(0)
        for _ in range(count):
            with pa.ipc.open_stream(file) as stream:
                table = stream.read_all()
            yield pa.table({name: _column(table, name, kind) for name, kind in types.items()})


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the type of whole numbers and fractions, for instance; that of JSON if need be."""
    schemas = [pa.schema([("", kind)]) for kind in (first, second)]
    with contextlib.suppress(*_NO_COMMON_TYPE):
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return pa.json_()


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


def lines(path: Path, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1."""
    numbered = enumerate(text_lines(path, encoding), start=1)
    return ((number, line) for number, line in numbered if not line.isspace())


def _rows(path: Path, encoding: str | None) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each row, and about how many characters it has."""
    beginning = [line for _, line in itertools.islice(lines(path, encoding), 2)]
    is_document = len(beginning) < 2 or beginning[0].lstrip().startswith("[")
    if is_document and formats.suffix(path) == ".json":
        text = "".join(text_lines(path, encoding))
        rows = _parse(text, path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(
                f"{path}: expected an array of objects, as DataFrame.to_json(orient='records') "
                f"writes it, found {text.strip()[:_SHOWN]!r}"
            )
        yield from ((row, len(text) // len(rows)) for row in rows)
        return
    for number, line in lines(path, encoding):
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


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dictionary; ``json`` would take the last of two values of one key."""
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the key '{name}' comes twice in one object: keep one")
        if isinstance(value, int) and value.bit_length() > 63:  # beside the sign
            raise ValueError(
                f"the column '{name}' holds an integer of more than 64 bits; write it as text, in "
                "quotation marks, in every row, or leave the column out"
            )
        row[name] = value
    return row
