"""Reads a data set from wherever it is: the Hub, local files, or the packages of the ``embedded``
extra.

Every reader gives all the columns of the source and adds ``id``, the number of the row in its
split.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, load_dataset

from finetune.data import embedded, files
from finetune.errors import UserError
from finetune.runtime import activity, hub

#: The library names the folder of a cached data set by its commit on the Hub.
_COMMIT = re.compile(r"[0-9a-f]{40}")
SPLITS = ("train", "validation", "test")
_CACHE_VERSION = 1  # increment when the same file is to give other rows


def read(dataset: str, revision: str | None = None) -> DatasetDict:
    """Return the splits of a source, with every column it has.

    Args:
        dataset: ``embedded:NAME``, a file, a directory of ``train``/``validation``/``test`` files,
            or the name of a data set on the Hub.
        revision: Commit, tag or branch on the Hub; the newest if None.

    Raises:
        UserError: if there is nothing to read, or if it cannot be read.
    """
    if not dataset:
        raise UserError("--dataset: this recipe names no data set of its own, give one")
    if revision is not None and not hub.names_repository(dataset):
        raise UserError(f"--dataset_revision {revision}: {dataset} is not from the Hub")
    if dataset.startswith(embedded.PREFIX):
        splits = embedded.read(dataset)
    elif hub.names_repository(dataset):
        splits = _read_hub(dataset, revision)
    else:
        splits = {split: _read_file(path) for split, path in _files(dataset).items()}
    for name, split in splits.items():
        if "id" in split.column_names:
            split = split.remove_columns("id")
        splits[name] = split.add_column("id", np.arange(len(split)))
    return DatasetDict(splits)


def describe(dataset: str) -> str:
    """Return where the data came from, in a few words."""
    if not dataset:
        return "made by the recipe"
    if dataset.startswith(embedded.PREFIX):
        return embedded.describe(dataset)
    return f"{dataset} ({'Hub' if hub.names_repository(dataset) else 'local'})"


def _files(dataset: str) -> dict[str, Path]:
    """The file of each split. A single file is ``train``."""
    path = files.existing(dataset)
    if path.is_file():
        if path.suffix.lower() not in hub.FILES:
            known = ", ".join(hub.FILES)
            raise UserError(f"cannot read {path}: expected a file that ends in {known}")
        return {"train": path}
    there = sorted(path.iterdir())
    readable = [file for file in there if file.suffix.lower() in hub.FILES]
    found = {split: [file for file in readable if file.stem == split] for split in SPLITS}
    for split, several in found.items():
        if len(several) > 1:
            two = " and ".join(file.name for file in several[:2])
            raise UserError(f"{path}: expected one file for '{split}', found {two}")
    if not found["train"]:
        raise UserError(
            f"{path}: expected a file train{'|'.join(hub.FILES)} (and validation, test if there "
            f"are any), found {', '.join(file.name for file in there[:10]) or 'nothing'}"
        )
    return {split: one[0] for split, one in found.items() if one}


def _read_file(path: Path) -> Dataset:
    """Return the rows of a file, memory-mapped from a cache that holds them from then on."""
    about = path.stat()
    key = f"{path.resolve()} {about.st_size} {about.st_mtime_ns} {_CACHE_VERSION}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    cached = hub.caches()["datasets"] / "finetune-files" / name / "rows.arrow"
    if not cached.exists():
        try:
            schema = _schema(path)
            cached.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cached.parent) as directory:
                written = Path(directory) / cached.name
                with pa.OSFile(str(written), "wb") as file, pa.ipc.new_stream(file, schema) as rows:
                    for chunk in _chunks(path, "converting"):
                        rows.write_table(_typed(chunk, schema))
                os.replace(written, cached)
        except (pa.ArrowException, NotImplementedError, OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
    return Dataset.from_file(str(cached))


def _chunks(path: Path, work: str) -> Iterator[files.Chunk]:
    """The chunks of a file; how far they are is told."""
    is_text = path.suffix.lower() != ".parquet"
    total, unit = (path.stat().st_size, "bytes") if is_text else (None, "rows")
    for chunk in files.chunks(path):
        yield chunk
        activity.advance(f"{work} {path.name}", round(chunk.end), total, unit)


def _schema(path: Path) -> pa.Schema:
    """Return types that hold every value of a file.

    The columns of a CSV are text but for those that hold nothing but numbers. A column of JSON
    lines whose values have no type in common holds JSON.
    """
    types: dict[str, pa.DataType] = {}
    for chunk in _chunks(path, "reading"):
        if path.suffix.lower() == ".parquet":
            return Features.from_arrow_schema(chunk.table().schema).arrow_schema
        widest = pa.json_() if isinstance(chunk.rows, list) else pa.string()
        for name in chunk.columns:
            known = types.get(name, pa.null())
            if known != widest:
                try:
                    both = [pa.schema([("", each)]) for each in (known, _type(chunk, name))]
                    merged = pa.unify_schemas(both, promote_options="permissive")
                    types[name] = merged.field(0).type
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                    types[name] = widest
    return pa.schema(list(types.items()))


def _type(chunk: files.Chunk, column: str) -> pa.DataType:
    if isinstance(chunk.rows, list):
        return pa.array(chunk.values(column)).type
    with contextlib.suppress(pa.ArrowInvalid):
        return chunk.rows.column(column).cast(pa.int64()).type
    return chunk.rows.column(column).cast(pa.float64()).type


def _typed(chunk: files.Chunk, schema: pa.Schema) -> pa.Table:
    if not isinstance(chunk.rows, list):
        return chunk.rows.cast(schema)
    columns = []
    for field in schema:
        values = chunk.values(field.name)
        if field.type == pa.json_():
            values = [None if value is None else json.dumps(value) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=schema)


def revision(rows: Dataset) -> str | None:
    """Return the commit on the Hub that rows were read from; None if they are not from there."""
    folders = {Path(each["filename"]).parent.name for each in rows.cache_files}
    return next((name for name in folders if _COMMIT.fullmatch(name)), None)


def _read_hub(name: str, wanted: str | None) -> dict[str, Any]:
    from datasets.exceptions import DatasetNotFoundError

    try:
        loaded = load_dataset(name, revision=wanted)
    except ValueError as error:  # a configuration has to be chosen, says the library
        raise UserError(f"data set '{name}' cannot be read as it is: {error}") from error
    except (DatasetNotFoundError, FileNotFoundError, ConnectionError) as error:
        raise UserError(
            f"data set '{name}' is not on the Hub, nor is it a local file: {error}"
        ) from error
    if "train" not in loaded:
        raise UserError(f"data set '{name}' has no train split (it has: {', '.join(loaded)})")
    # offline, the library takes what it finds in the cache, of whatever revision
    found = revision(loaded["train"])
    if wanted and _COMMIT.fullmatch(wanted) and found not in (None, wanted):
        raise UserError(
            f"--dataset_revision {wanted}: the cache holds '{name}' at {found}, and the Hub was "
            "not asked"
        )
    return {split: loaded[split] for split in SPLITS if split in loaded}
