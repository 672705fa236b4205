"""Rows that are passed in Python: a frame, a data set, a list of dictionaries, or splits of these.

They are written into the cache, as rows of files are, under a name that their content makes:
``memory:0123456789abcdef``. The name stands wherever the name of a file would: in the options of a
recipe, in ``run.json``, in the processes that ``launch`` starts, in the command that resumes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from datasets import Dataset

from finetune.data import arrow, caches, read_json, seals
from finetune.errors import UserError

PREFIX = "memory:"
_EXPECTED = (
    "a file, a data set on the Hub, a pandas or polars frame, a Dataset, a list of dicts, or a "
    "dict of these by split"
)
_HINTS = {
    "LazyFrame": "; call its collect()",
    "IterableDataset": "; Dataset.from_generator makes a Dataset of it",
    "IterableDatasetDict": "; load it without streaming=True",
    "Series": "; its frame has the labels, too",
    "generator": "; list() makes a list of it",
}
#: Types of pandas that datasets has none for, whose values are read as they are shown.
_AS_TEXT = (pd.PeriodDtype, pd.IntervalDtype)
_AT_ONCE = 10_000  # rows that are copied


def is_memory(dataset: str) -> bool:
    """Return whether a name stands for rows that were passed in Python."""
    return dataset.startswith(PREFIX)


def named(data: Any) -> str:
    """Return the name of a data set, of which rows in memory are kept under one of ours.

    Args:
        data: The name or the path of a data set; a pandas frame; whatever has
            ``__arrow_c_stream__``, a polars frame for instance; a ``Dataset``; a list of
            dictionaries; or a mapping of these by split, such as a ``DatasetDict``.

    Raises:
        UserError: if it is none of these, or has values that have no common type.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    whole = data if isinstance(data, Mapping) else {"train": data}
    if not whole:
        raise UserError("dataset: expected splits, found an empty dict")
    for split, rows in whole.items():
        if not _are_rows(rows):
            called = f"dataset['{split}']" if whole is data else "dataset"
            kind = type(rows).__name__
            raise UserError(f"{called}: expected {_EXPECTED}; found {kind}{_HINTS.get(kind, '')}")
    return PREFIX + _kept({str(split): rows for split, rows in whole.items()})


def read(name: str, note: Callable[[str], None]) -> dict[str, Dataset]:
    """Return the splits of rows that were passed in Python, memory-mapped from the cache.

    Args:
        name: As :func:`named` returned it.
        note: Is given a sentence about rows that are damaged.

    Raises:
        UserError: if they are not in the cache any more.
    """
    directory = _place(name)
    there = sorted(directory.glob("*.arrow"))
    if not there or not all(seals.intact(path, note) for path in there):
        raise UserError(
            f"{name}: rows that were passed in Python, and are not in the cache any more; pass "
            "them again, as dataset=FRAME (of an evaluation data=FRAME)"
        )
    caches.use(directory, source=describe(name))
    return {path.stem: Dataset.from_file(str(path)) for path in there}


def splits(name: str) -> list[str]:
    """Return the names of the splits of such rows."""
    return sorted(path.stem for path in _place(name).glob("*.arrow"))


def describe(name: str) -> str:
    """Return a short description of such rows."""
    return f"in memory ({name.removeprefix(PREFIX)})"


def _place(name: str) -> Path:
    return caches.place(caches.MEMORY, name.removeprefix(PREFIX))


def is_table(data: Any) -> bool:
    """Return whether Arrow can read columns of an object: of a frame, and not of a series."""
    is_column = isinstance(data, pd.Series | pa.ChunkedArray) or type(data).__name__ == "Series"
    return hasattr(data, "__arrow_c_stream__") and not is_column


def _are_rows(data: Any) -> bool:
    return isinstance(data, list | tuple | Dataset) or is_table(data)


def _kept(whole: Mapping[str, Any]) -> str:
    """Write splits into the cache, whole or not at all, and return the hash of their content."""
    parent = caches.place(caches.MEMORY, "")
    digest = hashlib.sha256()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(dir=parent, prefix=".")
    except OSError as error:
        raise caches.unwritable(error) from error
    with room as directory:
        for split in sorted(whole):
            if "/" in split or split.startswith("."):
                raise UserError(f"dataset: '{split}' cannot be the name of a split")
            path = Path(directory) / f"{split}.arrow"
            _write(path, split, whole[split])
            with path.open("rb") as file:
                digest.update(split.encode() + hashlib.file_digest(file, "sha256").digest())
        name = digest.hexdigest()[:16]
        place = _place(name)
        place.mkdir(exist_ok=True)
        for path in Path(directory).glob("*.arrow"):
            if not seals.intact(place / path.name, lambda sentence: None):
                os.replace(path, place / path.name)
                seals.seal(place / path.name)
    caches.use(place, source=describe(name))
    return name


def _write(path: Path, split: str, rows: Any) -> None:
    try:
        if isinstance(rows, Dataset):
            schema, count, parts = rows.features.arrow_schema, len(rows), _of_dataset(rows)
        else:
            table = _table(split, rows)
            schema, count = arrow.stored(table.schema.remove_metadata()), len(table)
            parts = (table.slice(n, _AT_ONCE) for n in range(0, count, _AT_ONCE))
        if not count:
            raise UserError(f"dataset: the {split} data holds no rows")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as out:
            for part in parts:  # as many rows each, copied: else what surrounds a slice is written
                whole = arrow.decoded(part).cast(schema).combine_chunks()
                out.write_table(whole.take(pa.array(range(len(whole)))))
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError) as error:
        raise UserError(f"dataset: the {split} data cannot be kept as Arrow: {error}") from error


def _of_dataset(rows: Dataset) -> Iterator[pa.Table]:
    yield from rows.with_format("arrow").iter(_AT_ONCE)


def _table(split: str, rows: Any) -> pa.Table:
    if isinstance(rows, pd.DataFrame):
        return _of_frame(split, rows)
    table = _of_dicts(split, rows) if isinstance(rows, list | tuple) else pa.table(rows)
    _refuse_repeated(split, table.column_names)
    return table


def _of_frame(split: str, frame: pd.DataFrame) -> pa.Table:
    """Return the columns of a frame, and an index that has a name."""
    frame = _with_index(split, frame)
    names = [str(each) for each in frame.columns]
    _refuse_repeated(split, names)
    columns = {}
    for place, name in enumerate(names):
        values = frame.iloc[:, place]
        if isinstance(values.dtype, pd.SparseDtype):
            values = values.astype(values.dtype.subtype)
        if isinstance(getattr(values.dtype, "categories", values).dtype, _AS_TEXT):
            values = values.astype("string")
        try:
            columns[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, UnicodeError) as error:
            raise _unlike(split, name, values.tolist()) from error
    return pa.table(columns)


def _with_index(split: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose named index is a column, unless one of that name has the same values."""
    own: list[Any] = [each for each in frame.index.names if each is not None]
    for name in [each for each in own if each in frame.columns]:
        if not frame.index.get_level_values(name).equals(pd.Index(frame[name])):
            raise UserError(
                f"dataset: the index of the {split} data is called '{name}', as one of its columns "
                "is: rename one, or leave the index out, by reset_index(drop=True)"
            )
        frame = frame.reset_index(level=name, drop=True)
    return frame.reset_index() if any(name is not None for name in frame.index.names) else frame


def _of_dicts(split: str, rows: Sequence[Any]) -> pa.Table:
    """Return rows as a table; what a row lacks is missing."""
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UserError(
                f"dataset: expected a list of dicts, found {type(row).__name__} at position "
                f"{place} of the {split} data (Dataset.from_dict takes a dict of columns)"
            )
    columns = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        try:
            columns[str(name)] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, UnicodeError, OverflowError) as error:
            raise _unlike(split, name, values) from error
    return pa.table(columns)


def _unlike(split: str, name: Any, values: Sequence[Any]) -> UserError:
    """Return the refusal of values that are no column of Arrow."""
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        if isinstance(value, str):
            try:
                read_json.refuse_half_characters(value, f"dataset: '{name}' at position {place}")
            except UserError as error:
                return error
        if value is not None:
            first.setdefault(type(value).__name__, place)
    if len(first) > 1:
        places = ", ".join(f"{kind} at position {place}" for kind, place in first.items())
        return UserError(
            f"dataset: the column '{name}' of the {split} data holds values of several types: "
            f"{places}; make them one, by astype(str) for instance"
        )
    kinds = ", ".join(first)
    return UserError(
        f"dataset: the column '{name}' of the {split} data holds {kinds}, which Arrow has no type "
        "for: convert it, or leave the column out"
    )


def _refuse_repeated(split: str, names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"dataset: two columns of the {split} data are called '{twice[0]}'")
