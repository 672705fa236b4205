"""Files of Arrow tables: Parquet, and Arrow's own format, as ``datasets`` writes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import bounds, delimited

#: Tables that are read at once at most, and about how many bytes, where texts stay dictionaries:
#: each reading makes that of the row group again, which took 20 s for 650,000 texts in one group,
#: and takes 2 with these.
_AT_ONCE, _BYTES = 16, 2**26


def parquet(
    path: Path, size: int, mine: Callable[[int], bool] = lambda number: True
) -> Iterator[tuple[pa.Table | int, int]]:
    """Yield tables of ``size`` rows, however the file is divided into row groups, and the number of
    rows up to the end of each; of a table that is not ``mine``, by its number, how many it has.

    A row group without a row of those is not read.
    """
    with pq.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
    delimited.refuse_repeated(path, schema.names)
    runs = _runs(about, size, [each for each in range(-(-about.num_rows // size)) if mine(each)])
    opened, dictionaries = bounds.open_parquet(
        path, about, size, sorted({group for _, groups in runs for group in groups})
    )
    with opened as file:
        at_once = size * (_tables_at_once(about, size) if dictionaries else 1)
        read = itertools.groupby(_slices(file, size, runs, at_once), key=lambda each: each[0])
        for number, start in enumerate(range(0, about.num_rows, size)):
            end = min(start + size, about.num_rows)
            if not mine(number):
                yield end - start, end
                continue
            found, slices = next(read, (-1, iter(())))
            some = [each for _, each in slices]
            if found != number or sum(map(len, some)) != end - start:
                raise pa.ArrowInvalid(f"rows {start + 1} to {end} are missing: is it damaged?")
            yield bounds.unpacked(some, schema, f"{path}, rows {start + 1} to {end}"), end


def _ends(about: pq.FileMetaData) -> np.ndarray:
    """Return the number of rows up to the end of each row group, shape ``(groups,)``."""
    groups = range(about.num_row_groups)
    return np.cumsum([about.row_group(group).num_rows for group in groups], dtype=np.int64)


def _runs(
    about: pq.FileMetaData, size: int, tables: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Return which of these tables are read in one go, with their row groups: none begins in a
    later group than the last ends in.
    """
    ends = _ends(about)

    def group_of(row: int) -> int:
        return int(np.searchsorted(ends, row, side="right"))

    runs: list[list[int]] = []
    for number in tables:
        after = runs[-1][-1] + 1 if runs else -1
        if number == after or (runs and group_of(number * size) == group_of(after * size - 1)):
            runs[-1].append(number)
        else:
            runs.append([number])
    lasts = [min((run[-1] + 1) * size, about.num_rows) - 1 for run in runs]
    return [
        (run, [*range(group_of(run[0] * size), group_of(last) + 1)])
        for run, last in zip(runs, lasts, strict=True)
    ]


def _slices(
    file: pq.ParquetFile, size: int, runs: Sequence[tuple[list[int], list[int]]], at_once: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield what the row groups have of each table, with its number, reading so many rows at
    once.
    """
    about = file.metadata
    ends = _ends(about)
    for run, groups in runs:
        own, end = {*run}, min((run[-1] + 1) * size, about.num_rows)
        row = int(ends[groups[0] - 1]) if groups[0] else 0
        for batch in file.iter_batches(batch_size=at_once, row_groups=groups):
            start = 0
            while start < batch.num_rows and row < end:
                some = batch.slice(start, size - row % size)
                if row // size in own:
                    yield row // size, some
                start, row = start + some.num_rows, row + some.num_rows
            if row >= end:
                break


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
