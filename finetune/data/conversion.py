"""The rows of a file as Arrow, memory-mapped from a cache that the first reading fills."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Json

from finetune.data import arrow, caches, files, seals
from finetune.data.layout import Layout, ReadOptions
from finetune.errors import UserError
from finetune.runtime import activity, formats

#: In the schema of a cached file: what was unusual, and how it is read.
_NOTE, _LAYOUT = b"finetune.note", b"finetune.layout"
_CACHE_VERSION = 10
#: Bytes that may be written without looking at the disk, and that stay free on it, if that is no
#: more than a share of it.
_FEW, _RESERVE, _SHARE = 2**24, 2**30, 0.02


def rows(
    path: Path, options: ReadOptions, note: Callable[[str], None] = lambda sentence: None
) -> Dataset:
    """Return the rows of a file, memory-mapped from a cache that the first call fills.

    Args:
        path: Of a format that is known.
        options: What the user says of it.
        note: Is given what was unusual, also by a call that reads the cache.

    Raises:
        UserError: if it cannot be read.
    """
    cached = _cached([path], options)
    if not seals.intact(cached, note):
        with _explained(path):
            layout, sentence = files.inspected(path, options)
            schema = _schema(path, layout)
            about = {_NOTE: sentence.encode(), _LAYOUT: json.dumps(asdict(layout)).encode()}
            _write(cached, path, schema, about, (
                _typed(path, chunk, schema, layout) for chunk in _chunks(path, layout, "converting")
            ))  # fmt: skip
    caches.use(cached.parent, source=str(path))
    if sentence := _metadata(cached)[_NOTE].decode():
        note(sentence)
    return Dataset.from_file(str(cached))


def texts(several: Sequence[Path], options: ReadOptions, note: Callable[[str], None]) -> Dataset:
    """Return the texts of files: ``text``, ``label``, the name of the folder, and ``file``.

    Args:
        several: Each in the folder of its class.
        options: As of :func:`rows`.
        note: Likewise.

    Raises:
        UserError: if one cannot be read.
    """
    folder, cached = several[0].parent.parent, _cached(several, options)
    if not seals.intact(cached, note):
        schema = pa.schema([(each, pa.string()) for each in ("text", "label", "file")])
        with _explained(folder):
            _write(cached, folder, schema, {}, _of_texts(several, options, schema))
    caches.use(cached.parent, source=str(folder))
    return Dataset.from_file(str(cached))


def _of_texts(
    several: Sequence[Path], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.Table]:
    for start in range(0, len(several), files.CHUNK_ROWS):
        some = several[start : start + files.CHUNK_ROWS]
        activity.advance("reading texts", start, len(several))
        columns = [
            [files.whole(path, options).strip() or None for path in some],
            [path.parent.name for path in some],
            [str(path) for path in some],
        ]
        yield pa.table([pa.array(each, pa.string()) for each in columns], schema=schema)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, NotImplementedError, OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _write(
    cached: Path,
    source: Path,
    schema: pa.Schema,
    about: Mapping[bytes, bytes],
    tables: Iterable[pa.Table],
) -> None:
    """Write rows into the cache, whole or not at all.

    Raises:
        UserError: if they would fill the disk, or the cache cannot be written.
    """
    schema = schema.with_metadata({**(schema.metadata or {}), **about})
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(dir=cached.parent)
    except OSError as error:
        raise caches.unwritable(error) from error
    with room as directory:
        written = Path(directory) / cached.name
        try:
            with pa.OSFile(str(written), "wb") as file, pa.ipc.new_stream(file, schema) as out:
                for table in tables:
                    out.write_table(table.cast(schema))
                    if file.tell() > _FEW:
                        _refuse_full(source, cached, file.tell())
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _full(source, cached, written.stat().st_size) from error
            raise
        os.replace(written, cached)
    seals.seal(cached)


def _refuse_full(source: Path, cached: Path, size: int) -> None:
    """Refuse to go on where the disk of the cache has little room left."""
    total, _, free = shutil.disk_usage(cached.parent)
    if free < min(_RESERVE, total * _SHARE):
        raise _full(source, cached, size)


def _full(source: Path, cached: Path, size: int) -> UserError:
    cache = cached.parent.parent.parent
    what = "unpacks to" if formats.compression(source) else "has"
    return UserError(
        f"{source} {what} more than fits on the disk of {cache}: {size / 2**30:,.1f} GiB of rows "
        "were written, and removed again; is it what it claims to be? Else free space (python -m "
        "finetune cache), or set HF_DATASETS_CACHE to a directory on a larger disk"
    )


def size(path: Path, options: ReadOptions) -> int:
    """Return how many rows a file has."""
    cached = _cached([path], options)
    return len(Dataset.from_file(str(cached)) if cached.exists() else rows(path, options))


def layout(path: Path, options: ReadOptions) -> Layout:
    """Return how a file is read, as it was detected when it was converted."""
    cached = _cached([path], options)
    if not cached.exists():  # the file changed since, say
        return files.inspected(path, options)[0]
    return Layout(**json.loads(_metadata(cached)[_LAYOUT]))


def _cached(several: Sequence[Path], options: ReadOptions) -> Path:
    """Return where the converted rows of files are, or will be."""
    abouts = [(path.resolve(), path.stat()) for path in several]
    # archives unpack files of another content with the time of the one before
    facts = [(path, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for path, each in abouts]
    name = hashlib.sha256(f"{facts} {options} {_CACHE_VERSION}".encode()).hexdigest()[:16]
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
            return arrow.stored(chunk.rows.schema)
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


def _typed(path: Path, chunk: files.Chunk, schema: pa.Schema, layout: Layout) -> pa.Table:
    if not isinstance(chunk.rows, list):
        return arrow.decoded(chunk.rows).cast(schema)
    columns = []
    for field in schema:
        values = chunk.values(field.name)
        if field.type == pa.json_():
            values = [None if value is None else json.dumps(value) for value in values]
            _refuse_unreadable(path, chunk, field.name, values, layout)
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=schema)


def _refuse_unreadable(
    path: Path, chunk: files.Chunk, column: str, values: Sequence[str | None], layout: Layout
) -> None:
    """Refuse JSON that the library cannot read back, which has integers of 64 bits."""
    for number, value in enumerate(values):
        try:
            if value is not None:
                Json().decode_example(value)
        except ValueError as error:
            place = files.places(path, [chunk.number * files.CHUNK_ROWS + number], layout)
            raise UserError(
                f"{path}, {place}: the column '{column}' holds an integer of more than 64 bits; "
                "write it as text, in quotation marks, in every row, or leave the column out"
            ) from error
