"""Store rows that are passed in Python: a DataFrame, a ``Dataset``, a list of dicts, or splits.

The rows are written to the cache under a name made from their content, ``memory:0123456789abcdef``.
Like the name of a file, this name is used in the options of a recipe, in ``run.json``, in the
processes of ``launch`` and in the command that resumes a run.
"""

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from datasets import Dataset

from finetune.data import arrow, caches
from finetune.errors import UserError
from finetune.runtime.files import hash_file

PREFIX = "memory:"
_FOLDER = "finetune-memory"


def is_table(data: Any) -> bool:
    """Return whether an object is a DataFrame or a table, not a single column."""
    return hasattr(data, "__arrow_c_stream__") and hasattr(data, "columns")


def store(data: Any) -> str:
    """Write rows in memory to the cache, and return their name; a name or path is returned as is.

    ``data`` is the name or path of a data set, a DataFrame of pandas, polars or the like, a
    ``Dataset``, a list of dicts, or a mapping of these by split.

    Raises:
        UserError: If ``data`` is none of these, or if Arrow has no common type for a column.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    splits = data if isinstance(data, Mapping) and data else {"train": data}
    if mistakes := [split for split in map(str, splits) if not split.isidentifier()]:
        raise UserError(f"dataset: expected split names such as 'train', found {mistakes}")
    digest = hashlib.sha256()
    parent = caches.directory(_FOLDER)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".") as directory:
        for split in sorted(splits):
            path = Path(directory, f"{split}.arrow")
            _write(path, split, splits[split])
            digest.update(split.encode() + bytes.fromhex(hash_file(path)))
        name = digest.hexdigest()[:16]
        stored = caches.directory(_FOLDER, name)
        for path in Path(directory).glob("*.arrow"):
            os.replace(path, stored / path.name)
    return PREFIX + name


def read(name: str) -> dict[str, Dataset]:
    """Return the splits that :func:`store` wrote, memory-mapped from the cache.

    Raises:
        UserError: If they are no longer in the cache.
    """
    directory = caches.directory(_FOLDER) / name.removeprefix(PREFIX)
    splits = {}
    with contextlib.suppress(pa.ArrowException, OSError):  # damaged or deleted
        for path in sorted(directory.glob("*.arrow")):
            arrow.require_whole(path)
            splits[path.stem] = Dataset.from_file(str(path))
        if splits:
            return splits
    raise UserError(f"{name}: no longer in the cache; pass the rows again with dataset=ROWS")


def _write(path: Path, split: str, rows: Any) -> None:
    """Write rows as an Arrow stream whose bytes depend only on their content."""
    try:
        table = arrow.with_supported_types(_as_table(split, rows)).combine_chunks()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=10_000):
                # copied by `take`, because a slice is written with its whole buffers
                writer.write_batch(batch.take(pa.array(range(len(batch)))))
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError, OverflowError) as error:
        message = f"dataset: the {split} data cannot be stored as Arrow: {error}"
        raise UserError(f"{message}; convert the column, e.g. by astype(str)") from error
    if not len(table):
        raise UserError(f"dataset: the {split} data has no rows")


def _as_table(split: str, rows: Any) -> pa.Table:
    """Return rows as a table. Keys that a dict lacks are null; a named index becomes a column."""
    if isinstance(rows, Dataset):
        if rows.format["type"] == "custom":
            raise UserError(
                f"dataset: the {split} data has a transform (with_transform), which cannot be "
                "stored: apply it by map"
            )
        return rows.with_format("arrow")[:].cast(rows.features.arrow_schema)
    if isinstance(rows, pd.DataFrame):
        frame = rows.reset_index(drop=not any(rows.index.names))
        return pa.Table.from_pandas(frame, preserve_index=False)
    if is_table(rows):
        return pa.table(rows)
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        cells = []
        for name in names:
            cells.append(pa.array([row.get(name) for row in rows], from_pandas=True))
        return pa.table(cells, names=list(map(str, names)))
    raise UserError(
        "dataset: expected a path, a name on the Hub, a DataFrame, a Dataset, a list of dicts, or "
        f"a dict of these by split; found {type(rows).__name__} as the {split} data"
    )
