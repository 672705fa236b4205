"""Read columns of a data set from Arrow, without a Python object for each value.

Behind an indices mapping ``datasets`` makes a Python integer of each row that it reads, and to add
a column there it copies all others into a new file; both take seconds for 650,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features
from datasets.fingerprint import Hasher
from datasets.table import InMemoryTable, concat_tables

_AT_ONCE = 10_000  # rows in memory


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def stored(schema: pa.Schema) -> pa.Schema:
    """Return a schema in types that ``datasets`` knows, text and lists in one of their several.

    Raises:
        ValueError: If it knows none for a column, with the type.
    """
    fields = [(field.name, _plain(field.type)) for field in schema]
    return Features.from_arrow_schema(pa.schema(fields, schema.metadata)).arrow_schema


def plain(table: pa.Table) -> pa.Table:
    """Return a table in these types, without what other libraries note in its schema."""
    return decoded(table).cast(stored(table.schema.remove_metadata())).replace_schema_metadata()


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        pair = [("key", _plain(kind.key_type)), ("value", _plain(kind.item_type))]
        return pa.list_(pa.struct(pair))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def decoded(table: pa.Table) -> pa.Table:
    """Return a table whose columns have their values, in place of numbers of categories."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = pa.dictionary(field.type.index_type, _plain(field.type.value_type))
            values = table.column(number).cast(kind).cast(kind.value_type)
            table = table.set_column(number, field.name, values)
    return table


def _indices(rows: Dataset) -> np.ndarray | None:
    """Return where each row is stored, shape ``(rows,)``; None if that is its number."""
    mapping = rows._indices
    return None if mapping is None else np.asarray(mapping.column(0).to_numpy(), dtype=np.int64)


def column(rows: Dataset, name: str) -> pa.ChunkedArray:
    """Return a column, as it is stored; not for long texts, which :func:`pieces` yields."""
    stored: pa.ChunkedArray = rows.data.column(name)
    places = _indices(rows)
    return stored if places is None else stored.take(pa.array(places))


def pieces(
    rows: Dataset, name: str, wanted: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield the numbers of at most 10,000 rows and their values, in the order of the storage.

    Of all rows, or of those of the numbers ``wanted``.
    """
    mapping, end = _indices(rows), 0
    numbers = np.arange(len(rows)) if wanted is None else wanted
    places = numbers if mapping is None else mapping[numbers]
    order = np.argsort(places, kind="stable")
    numbers, places = numbers[order], places[order]
    for chunk in rows.data.column(name).chunks:
        begin, end = end, end + len(chunk)
        low, high = np.searchsorted(places, [begin, end])
        for start in range(low, high, _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, high))
            yield numbers[part], chunk.take(pa.array(places[part] - begin))


def batches(rows: Dataset, name: str, size: int = 10_000) -> Iterator[pa.ChunkedArray]:
    """Yield a column in order, at most ``size`` rows at a time, as it is stored."""
    for table in rows.select_columns([name]).with_format("arrow").iter(size):
        yield table.column(0)


def matching(texts: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts a regular expression of RE2 finds something in, shape ``(texts,)``."""
    return np.array(pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False))


def with_column(rows: Dataset, name: str, values: pa.Array, feature: Any) -> Dataset:
    """Return ``rows``, of which none is in them twice, with another column of shape ``(rows,)``.

    ``Dataset.add_column`` copies all others of a selection.
    """
    schema, info = Features({name: feature}).arrow_schema, rows.info.copy()
    info.features = Features({**rows.features, name: feature})
    values, places = values.cast(schema.field(0).type), _indices(rows)
    if places is not None:
        source = np.full(rows.data.num_rows, -1, dtype=np.int64)
        source[places] = np.arange(len(places))
        assert np.count_nonzero(source >= 0) == len(places), "a row is there twice"
        values = values.take(pa.array(source, mask=source < 0))
    return Dataset(
        concat_tables([rows.data, InMemoryTable.from_arrays([values], schema=schema)], axis=1),
        info=info,
        split=rows.split,
        indices_table=rows._indices,
        fingerprint=str(Hasher.hash([rows._fingerprint, name, str(feature), values])),
    )
