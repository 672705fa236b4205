"""Load a data set from the Hub, local files, or the packages of the ``embedded`` extra.

Every reader returns all columns of the source and adds ``id``, the number of the row in its split.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import (
    Dataset,
    DatasetBuilder,
    DatasetDict,
    DownloadManager,
    Features,
    Json,
    load_dataset,
    load_dataset_builder,
)

from finetune.data import bounds, caches, embedded, files, seals
from finetune.data.layout import Layout, ReadOptions
from finetune.errors import UserError
from finetune.runtime import activity, formats, hub

#: The library names the folder of a cached data set by its commit on the Hub.
_COMMIT = re.compile(r"[0-9a-f]{40}")
SPLITS = ("train", "validation", "test")
#: In the schema of a cached file: what was unusual, and how it is read.
_NOTE, _LAYOUT = b"finetune.note", b"finetune.layout"
#: What others call the splits, and suffixes of data that is not read as it is.
OTHER_NAMES = {
    "training": "train",
    **dict.fromkeys(("val", "valid", "dev", "eval", "development", "evaluation"), "validation"),
    "testing": "test",
}
_DATA = {each[1:] for each in formats.FILES} | {
    "xz",
    "xlsx",
    "xls",
    "txt",
}
_CACHE_VERSION = 6


def read(
    dataset: str,
    revision: str | None = None,
    *,
    options: ReadOptions | None = None,
    note: Callable[[str], None] = lambda sentence: None,
) -> DatasetDict:
    """Load the splits of a source, with all its columns.

    Args:
        dataset: ``embedded:NAME``, a file, a directory of ``train``/``validation``/``test`` files,
            or the name of a data set on the Hub.
        revision: Commit, tag or branch on the Hub; the newest if None.
        options: What the user says of files; what is not said is detected.
        note: Called with sentences about how files were read, and about a replaced ``id``.

    Raises:
        UserError: if the source does not exist or cannot be read.
    """
    if not dataset:
        raise UserError("--dataset is required: this recipe has no data set of its own")
    if revision is not None and not hub.names_repository(dataset):
        raise UserError(f"--dataset_revision {revision}: {dataset} is not from the Hub")
    if is_local(dataset):
        several = _files(dataset)
        if left := _unread(Path(dataset).expanduser(), several.values()):
            note(f"not read: {', '.join(left)} (expected train, validation and test)")
        splits: dict[str, Any] = {
            split: _read_file(path, options or ReadOptions(), note)
            for split, path in several.items()
        }
    elif options is not None and options.named:
        flag, value = next(iter(options.named.items()))
        raise UserError(f"{flag} {value}: {dataset} is not a local file")
    elif dataset.startswith(embedded.PREFIX):
        splits = embedded.read(dataset)
    else:
        splits = _read_hub(dataset, revision, note)
    if replaced := [name for name, split in splits.items() if "id" in split.column_names]:
        note(
            f"dropped the column 'id' of the {' and '.join(replaced)} data: the toolkit numbers "
            "rows in a column of that name; rename it to keep it"
        )
        splits = {
            name: split.remove_columns("id") if name in replaced else split
            for name, split in splits.items()
        }
    return numbered(DatasetDict(splits))


def numbered(dataset: DatasetDict) -> DatasetDict:
    """Return ``dataset`` with an ``id``, the row number from 0, in splits that lack one."""
    return DatasetDict(
        {
            name: split
            if "id" in split.column_names
            else split.add_column("id", np.arange(len(split)))
            for name, split in dataset.items()
        }
    )


def is_local(dataset: str) -> bool:
    """Return whether a data set is a file or a directory."""
    return not dataset.startswith(embedded.PREFIX) and not hub.names_repository(dataset)


def places(
    dataset: str, split: str, rows: Sequence[int], options: ReadOptions | None = None
) -> str:
    """Return the positions of rows of a split in its file: ``lines 5, 9``, else ``rows 4, 8``.

    Args:
        dataset: As passed to :func:`read`.
        split: The split of the rows.
        rows: Their ``id``, sorted; at least one.
        options: As passed to :func:`read`.
    """
    path = _files(dataset).get(split) if dataset and is_local(dataset) else None
    if path is None:
        return files.places(Path(), rows)
    cached = _cached(path, options or ReadOptions())
    if not cached.exists():  # the file changed since it was read, say
        return files.places(path, rows, files.inspected(path, options)[0])
    return files.places(path, rows, Layout(**json.loads(_metadata(cached)[_LAYOUT])))


def describe(dataset: str) -> str:
    """Return a short description of the source."""
    if not dataset:
        return "made by the recipe"
    if dataset.startswith(embedded.PREFIX):
        return embedded.describe(dataset)
    return f"{dataset} ({'Hub' if hub.names_repository(dataset) else 'local'})"


def _files(dataset: str) -> dict[str, Path]:
    """Return the file of each split. A single file is ``train``."""
    path = files.existing(dataset)
    if path.is_file():
        if formats.suffix(path) not in formats.FILES:
            known = ", ".join(formats.FILES)
            hint = files.how_to_convert(path)
            raise UserError(f"cannot read {path}: expected a file ending in {known}{hint}")
        return {"train": path}
    there = sorted(path.iterdir())
    readable = [file for file in there if formats.suffix(file) in formats.FILES]
    found = {split: [file for file in readable if formats.stem(file) == split] for split in SPLITS}
    for split, several in found.items():
        if len(several) > 1:
            two = " and ".join(file.name for file in several[:2])
            raise UserError(f"{path}: expected one file for '{split}', found {two}")
    mistakes = [f"{path}: {each}" for each in _misnamed(there, found)]
    if not found["train"]:
        mistakes.append(
            f"{path}: expected a file train{'|'.join(formats.FILES)} (and validation, test if "
            f"there are any), found {', '.join(file.name for file in there[:10]) or 'nothing'}"
        )
    if mistakes:
        raise UserError(*mistakes)
    return {split: one[0] for split, one in found.items() if one}


def _unread(path: Path, read: Collection[Path]) -> list[str]:
    """Return the names of data files that lie in a directory beside those that are read."""
    there = {each.name for each in path.glob("*") if formats.suffix(each) in formats.FILES}
    return sorted(there - {each.name for each in read})


def _misnamed(there: Sequence[Path], found: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return a sentence for each file that was probably meant to be one of the missing splits."""
    mistakes = []
    for file in there:
        stem, *suffixes = file.name.lower().split(".")
        split = OTHER_NAMES.get(stem, stem)
        if found.get(split) == [] and not _DATA.isdisjoint(suffixes):
            expected = f"{split}.{{{','.join(each[1:] for each in formats.FILES)}}}"
            mistakes.append(f"{file.name} would not be read; expected {expected}")
    return mistakes


def _read_file(path: Path, options: ReadOptions, note: Callable[[str], None]) -> Dataset:
    """Return the rows of a file, memory-mapped from a cache that the first call fills."""
    cached = _cached(path, options)
    if not seals.intact(cached, note):
        try:
            layout, sentence = files.inspected(path, options)
            schema = _schema(path, layout)
            about = {_NOTE: sentence.encode(), _LAYOUT: json.dumps(asdict(layout)).encode()}
            schema = schema.with_metadata({**(schema.metadata or {}), **about})
            cached.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cached.parent) as directory:
                written = Path(directory) / cached.name
                with pa.OSFile(str(written), "wb") as file, pa.ipc.new_stream(file, schema) as rows:
                    for chunk in _chunks(path, layout, "converting"):
                        rows.write_table(_typed(path, chunk, schema))
                os.replace(written, cached)
            seals.seal(cached)
        except (pa.ArrowException, NotImplementedError, OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
    caches.use(cached.parent, source=str(path))
    if sentence := _metadata(cached)[_NOTE].decode():  # repeated by runs that read the cache
        note(sentence)
    return Dataset.from_file(str(cached))


def _cached(path: Path, options: ReadOptions) -> Path:
    """Return where the converted rows of a file are, or will be."""
    about = path.stat()
    facts = (path.resolve(), about.st_size, about.st_mtime_ns, _CACHE_VERSION)
    name = hashlib.sha256(f"{facts} {options}".encode()).hexdigest()[:16]
    return caches.place("finetune-files", name) / "rows.arrow"


def _metadata(cached: Path) -> dict[bytes, bytes]:
    """Return what was noted of a file when it was converted."""
    with pa.OSFile(str(cached)) as file:
        return dict(pa.ipc.open_stream(file).schema.metadata)


def _chunks(path: Path, layout: Layout, work: str) -> Iterator[files.Chunk]:
    """Yield the chunks of a file, and report the progress."""
    is_text = formats.suffix(path) in formats.TEXTS and not formats.compression(path)
    total, unit = (path.stat().st_size, "bytes") if is_text else (None, "rows")
    for chunk in files.chunks(path, layout=layout):
        yield chunk
        activity.advance(f"{work} {path.name}", round(chunk.end), total, unit)


def _schema(path: Path, layout: Layout) -> pa.Schema:
    """Return types that hold every value of a file.

    The columns of a CSV are text. A column of JSON lines whose values have no common type holds
    JSON.
    """
    types: dict[str, pa.DataType] = {}
    for chunk in _chunks(path, layout, "reading"):
        if not isinstance(chunk.rows, list):
            return _stored(chunk.rows.schema)
        for name in chunk.columns:
            known = types.setdefault(name, pa.null())
            if known != pa.json_():
                try:
                    inferred = pa.array(chunk.values(name)).type
                    both = [pa.schema([("", each)]) for each in (known, inferred)]
                    merged = pa.unify_schemas(both, promote_options="permissive")
                    types[name] = merged.field(0).type
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                    types[name] = pa.json_()
    return pa.schema(list(types.items()))


def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema in types that the library knows: text is one type of its several."""
    for number, field in enumerate(schema):
        if pa.types.is_string_view(field.type):
            schema = schema.set(number, field.with_type(pa.string()))
    return Features.from_arrow_schema(schema).arrow_schema


def _typed(path: Path, chunk: files.Chunk, schema: pa.Schema) -> pa.Table:
    if not isinstance(chunk.rows, list):
        return chunk.rows.cast(schema)
    columns = []
    for field in schema:
        values = chunk.values(field.name)
        if field.type == pa.json_():
            values = [None if value is None else json.dumps(value) for value in values]
            _refuse_unreadable(path, chunk, field.name, values)
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=schema)


def _refuse_unreadable(
    path: Path, chunk: files.Chunk, column: str, values: Sequence[str | None]
) -> None:
    """Refuse JSON that the library cannot read back, which has integers of 64 bits."""
    for number, value in enumerate(values):
        try:
            if value is not None:
                Json().decode_example(value)
        except ValueError as error:
            place = files.places(path, [chunk.number * files.CHUNK_ROWS + number])
            raise UserError(
                f"{path}, {place}: the column '{column}' holds an integer of more than 64 bits; "
                "write it as text, in quotation marks, in every row, or leave the column out"
            ) from error


def revision(rows: Dataset) -> str | None:
    """Return the Hub commit that rows were loaded from; None if they are not from the Hub."""
    folders = {Path(each["filename"]).parent.name for each in rows.cache_files}
    return next((name for name in folders if _COMMIT.fullmatch(name)), None)


def _refuse_deep(builder: DatasetBuilder, name: str) -> None:
    """Refuse JSON that would end the process in the library's parser; the files are cached."""
    if type(builder).__module__.endswith(".json.json"):
        found = DownloadManager(base_path=builder.base_path).download(builder.config.data_files)
        for paths in found.values():
            for path in paths:
                bounds.refuse_deep_file(Path(path), f"data set '{name}'")


def _read_hub(name: str, wanted: str | None, note: Callable[[str], None]) -> dict[str, Any]:
    from datasets.exceptions import DatasetNotFoundError

    try:
        _refuse_deep(load_dataset_builder(name, revision=wanted), name)
        loaded = seals.loaded(
            lambda mode: load_dataset(name, revision=wanted, download_mode=mode), note
        )
    except ValueError as error:  # a configuration has to be chosen, says the library
        raise UserError(f"data set '{name}' cannot be loaded: {error}") from error
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
            "not contacted"
        )
    return {split: loaded[split] for split in SPLITS if split in loaded}
