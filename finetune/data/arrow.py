"""Read columns of a ``Dataset`` from Arrow, without a Python object per value.

With an indices mapping, ``datasets`` creates a Python integer per row that it reads, which takes
seconds for 650,000 rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features

from finetune.runtime import internals

_ROWS_AT_ONCE = 10_000
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of an Arrow stream


def require_whole(path: Path) -> None:
    """Raise a ``pyarrow.ArrowInvalid`` or an ``OSError`` if the Arrow stream in a file is cut off,
    which Arrow does not notice between two batches.
    """
    with path.open("rb") as file:
        file.seek(-len(_END_OF_STREAM), os.SEEK_END)
        if file.read() != _END_OF_STREAM:
            raise pa.ArrowInvalid(f"{path} is cut off")


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a string type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def with_supported_types(table: pa.Table) -> pa.Table:
    """Return a table cast to types that ``datasets`` supports. Large and view types become plain
    ones, categories become their values, and maps become lists of ``key`` and ``value``.

    Raises:
        ValueError: If ``datasets`` has no type for a column; the message names the type.
    """
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):  # Arrow cannot decode categories of a view type
            kind = pa.dictionary(field.type.index_type, _supported_type(field.type.value_type))
            table = table.set_column(number, field.name, table.column(number).cast(kind))
    fields = [(field.name, _supported_type(field.type)) for field in table.schema]
    features = Features.from_arrow_schema(pa.schema(fields, table.schema.metadata))
    return table.cast(features.arrow_schema)


def _supported_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _supported_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_supported_type(kind.value_type))
    if pa.types.is_map(kind):
        pair = [("key", _supported_type(kind.key_type)), ("value", _supported_type(kind.item_type))]
        return pa.list_(pa.struct(pair))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _supported_type(field.type)) for field in kind])
    return kind


def column(rows: Dataset, name: str) -> pa.ChunkedArray:
    """Return a whole column; use :func:`pieces` for long texts. Those of selected rows have 64-bit
    offsets: pyarrow (26) joins all chunks to select from them, and fails above 2 GB of text.
    """
    rows, places = internals.stored_rows(rows, name)
    stored: pa.ChunkedArray = rows.data.column(name)
    if places is None:
        return stored
    kind = stored.type
    if pa.types.is_string(kind):
        stored = stored.cast(pa.large_string())
    elif pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        stored = stored.cast(pa.list_(pa.large_string()))
    return stored.take(pa.array(places))


def pieces(rows: Dataset, name: str) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield a column in pieces: the numbers of at most 10,000 rows, and their values.

    The pieces are in the order in which rows are stored.
    """
    rows, places = internals.stored_rows(rows, name)
    if places is None:
        places = np.arange(len(rows))
    numbers = np.argsort(places, kind="stable")
    places = places[numbers]
    end = 0
    stored = pa.table({name: rows.data.column(name)})
    for batch in stored.to_batches(max_chunksize=_ROWS_AT_ONCE):
        begin = end
        end += len(batch)
        part = slice(*np.searchsorted(places, [begin, end]))
        if part.start < part.stop:
            yield numbers[part], batch.column(0).take(pa.array(places[part] - begin))
