"""Reads a data set from wherever it is: the Hub, local files, or the packages of the ``embedded``
extra.

Every reader gives all the columns of the source and adds ``id``, the number of the row in its
split.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    Value,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    load_dataset,
)

from finetune import hub
from finetune.data import embedded
from finetune.errors import UserError, suggestion

READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".parquet": "parquet"}
# What the csv and the parquet reader say of a file with columns and no rows.
_SIGNS_OF_NO_ROWS = ("corresponds to no data", "BatchSize must be greater than 0, got 0")
#: In the address of a file on the Hub, the commit that it was fetched from.
_COMMIT = re.compile(r"@([0-9a-f]{40})/")
_IS_COMMIT = re.compile(r"[0-9a-f]{40}")
SPLITS = ("train", "validation", "test")
assert tuple(READERS) == hub.FILES


def read(dataset: str, revision: str | None = None) -> DatasetDict:
    """The splits of a source, with every column it has.

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
        splits = _read_files(_files(Path(dataset).expanduser()))
    return DatasetDict({name: _numbered(split) for name, split in splits.items()})


def describe(dataset: str) -> str:
    """Where the data came from, in a few words."""
    if not dataset:
        return "made by the recipe"
    if dataset.startswith(embedded.PREFIX):
        return embedded.describe(dataset)
    return f"{dataset} ({'Hub' if hub.names_repository(dataset) else 'local'})"


def _numbered(split: Any) -> Any:
    if "id" in split.column_names:
        split = split.remove_columns("id")
    return split.add_column("id", np.arange(len(split)))


def _files(path: Path) -> dict[str, Path]:
    """The file of each split. A single file is ``train``."""
    if path.is_file():
        if path.suffix not in READERS:
            raise UserError(
                f"cannot read {path}: expected a file that ends in {', '.join(READERS)}"
            )
        return {"train": path}
    if not path.exists():
        lying_there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
        raise UserError(f"no such file or directory: {path}{suggestion(path.name, lying_there)}")
    found: dict[str, Path] = {}
    for split in SPLITS:
        candidates = [path / f"{split}{suffix}" for suffix in READERS]
        present = [candidate for candidate in candidates if candidate.exists()]
        if len(present) > 1:
            raise UserError(
                f"{path}: expected one file for '{split}', found "
                f"{' and '.join(each.name for each in present)}"
            )
        if present:
            found[split] = present[0]
    if "train" not in found:
        there = ", ".join(sorted(each.name for each in path.iterdir())[:10]) or "nothing"
        raise UserError(
            f"{path}: expected a file train{'|'.join(READERS)} "
            f"(and validation, test if there are any), found {there}"
        )
    return found


def _read_files(files: dict[str, Path]) -> dict[str, Any]:
    splits = {}
    for split, path in files.items():
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty")
        kind = READERS[path.suffix]
        try:
            # one file at a time: two splits whose labels differ in type are told apart, not refused
            options = _csv_options(path) if kind == "csv" else {}
            loaded = load_dataset(kind, data_files={split: str(path)}, **options)
        except Exception as error:  # the readers raise whatever pandas and pyarrow raise
            reason = error.__cause__ or error
            if any(sign in str(reason) for sign in _SIGNS_OF_NO_ROWS):
                raise UserError(f"the {split} data has no rows: {path}") from error
            raise UserError(f"cannot read {path} as {kind}: {reason}") from error
        splits[split] = _with_numbers(loaded[split]) if kind == "csv" else loaded[split]
    return splits


def _csv_options(path: Path) -> dict[str, Any]:
    """Every column as strings, in which nothing but the empty one is missing.

    By itself the reader takes the words NA, null and None for missing values, in texts and in
    labels, and judges the type of a column by its first 10,000 rows.
    """
    separator = "\t" if path.suffix == ".tsv" else ","
    columns = pd.read_csv(path, sep=separator, nrows=0).columns
    return {
        "sep": separator,
        "keep_default_na": False,
        "na_values": [""],
        "features": Features({name: Value("string") for name in columns}),
    }


def _with_numbers(rows: Dataset) -> Dataset:
    """``rows`` with the columns that hold nothing but numbers as numbers."""
    with _no_bars():
        for name in rows.column_names:
            for kind in ("int64", "float64"):
                with contextlib.suppress(pa.ArrowInvalid):
                    rows = rows.cast_column(name, Value(kind))
                    break
    return rows


def revision(rows: Dataset) -> str | None:
    """Return the commit on the Hub that rows were read from; None if they are not from there."""
    found = {
        match[1] for url in rows.info.download_checksums or () if (match := _COMMIT.search(url))
    }
    return found.pop() if len(found) == 1 else None


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
    if wanted and _IS_COMMIT.fullmatch(wanted) and found not in (None, wanted):
        raise UserError(
            f"--dataset_revision {wanted}: the cache holds '{name}' at {found}, and the Hub was "
            "not asked"
        )
    return {split: loaded[split] for split in SPLITS if split in loaded}


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """A bar for each column that is tried as numbers would tell nobody anything."""
    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
