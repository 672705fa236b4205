"""Files of Arrow tables: Parquet, and Arrow's own format, as ``datasets`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import bounds, delimited

#: Tables that are read at once at most, and about how many bytes: each reading makes the dictionary
#: of the row group again, which took 20 s for 650,000 texts in one group, and takes 2 with these.
_AT_ONCE, _BYTES = 16, 2**26


def parquet(path: Path, size: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables of at most ``size`` rows, and the number of rows up to the end of each."""
    end = 0
    schema = pq.read_schema(path)
    delimited.refuse_repeated(path, schema.names)
    with bounds.open_parquet(path) as file:
        for several in file.iter_batches(batch_size=size * _tables_at_once(file.metadata, size)):
            for start in range(0, several.num_rows, size):
                batch = several.slice(start, size)
                place = f"{path}, rows {end + 1} to {end + batch.num_rows}"
                end += batch.num_rows
                yield bounds.unpacked(batch, schema, place), end


def _tables_at_once(about: pq.FileMetaData, size: int) -> int:
    """Return how many tables of so many rows are read at once: one where rows are large."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    whole = sum(group.total_byte_size for group in groups)
    of_table = max(1, whole * size // max(1, about.num_rows))
    return int(max(1, min(_AT_ONCE, _BYTES // of_table)))


def arrow(path: Path, size: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield the same of a file or a stream of Arrow, mapped into memory.

    The tables are always the same, however the file is divided into batches.
    """
    with pa.memory_map(str(path)) as source:
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        delimited.refuse_repeated(path, table.schema.names)
        for start in range(0, len(table), size):
            some = table.slice(start, size)
            yield some, start + len(some)
