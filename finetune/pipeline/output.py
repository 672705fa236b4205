"""Write rows with their predictions as CSV, TSV, JSON lines or parquet.

The predictions of each chunk are stored beside the output, in ``OUTPUT.part/``, one parquet file
per chunk, so that a resumed prediction, with any number of processes, skips those that are there.
When all are done, the input is read again and joined with them, in order, into a file in that
directory, which is then moved into place.
"""

import contextlib
import csv
import functools
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data.prediction_columns import cell_text, json_text
from finetune.errors import UserError
from finetune.pipeline.request import Request, cells
from finetune.predicting.files import FOLDER as EXPORT_FOLDER
from finetune.predicting.files import MODEL
from finetune.runtime.files import replacing
from finetune.runtime.formats import SEPARATORS, escape_formula

_CHUNKS_OF_GROUP = 16  # chunks in a row group of parquet
_FACTS = b"facts"  # where the schema of a part has what its predictions depend on, as JSON


class Parts:
    """The predictions of the chunks of an input, on the disk of the output until it is written."""

    def __init__(self, output: Path, request: Request, resume: bool) -> None:
        """Refuse what an interrupted prediction left, unless it is to be resumed and the same."""
        self._output = output
        self._request = request
        self._directory = output.with_name(f"{output.name}.part")
        self._facts = _facts(request)
        self.complete: dict[int, int] = {}  # the rows of each part by the number of its chunk
        if self._directory.is_symlink():  # nothing is written where it points
            target = self._directory.readlink()
            raise UserError(f"{self._directory} is a link to {target}: remove the link")
        if self._directory.exists() and not resume:
            raise UserError(
                f"{self._directory} holds an interrupted prediction: add --resume to continue it, "
                "or remove that directory"
            )
        for path in self._directory.glob("*.parquet"):
            with contextlib.suppress(pa.ArrowInvalid):  # cut off: it is predicted again
                part = pq.read_metadata(path.absolute())
                recorded = json.loads(part.metadata.get(_FACTS, "{}"))
                changes = []
                for name, value in self._facts.items():
                    if value != recorded.get(name):
                        changes.append(
                            f"--resume: {name} has changed (was {recorded.get(name)}, is {value}); "
                            f"remove {self._directory} to start again"
                        )
                if changes:
                    raise UserError(*changes)
                self.complete[int(path.stem)] = part.num_rows

    def write(self, number: int, predictions: pa.Table) -> None:
        """Write the predictions of a chunk."""
        self._directory.mkdir(exist_ok=True)
        with replacing(self._directory / f"{number:08d}.parquet") as new:
            facts = {_FACTS: json.dumps(self._facts)}
            pq.write_table(predictions.replace_schema_metadata(facts), new)

    def join(self) -> None:
        """Write the rows with their predictions into the output."""
        paths = sorted(self._directory.absolute().glob("*.parquet"))
        if len(paths) != len(self._request.chunks):
            count = f"expected {len(self._request.chunks)} parts, found {len(paths)}"
            raise UserError(f"{self._directory}: {count}; all machines must write to one disk")
        parts = map(functools.partial(pq.read_table, partitioning=None), paths)
        chunks = zip(map(self._request.chunk, self._request.chunks), parts, strict=True)
        write_rows(self._output, self._request, chunks, self._directory)
        shutil.rmtree(self._directory)


def write_rows(
    output: Path | IO[str],
    request: Request,
    chunks: Iterable[tuple[pa.Table, pa.Table]],
    directory: Path | None = None,
) -> None:
    """Write the rows of one chunk or more with their added columns, in order.

    Args:
        output: An open file (``newline=""``), which gets the rows as they arrive; or the path of
            one that appears when all are written.
        request: Has the format, and the names of the columns.
        chunks: The rows of each chunk, and their added columns.
        directory: Where the file is until all rows are written; by default that of ``output``.
    """
    # without the metadata of the input, in which `datasets` would miss the new columns
    tables = (
        pa.table([*rows.columns, *added.columns], names=request.columns) for rows, added in chunks
    )
    if not isinstance(output, Path):
        _write_text(output, request, tables)
        return
    with replacing(output, directory) as new:
        if request.suffix == ".parquet":
            _write_parquet(new, request, tables)
        else:
            with new.open("w", encoding="utf-8", newline="") as file:
                _write_text(file, request, tables)


def _write_text(file: IO[str], request: Request, tables: Iterable[pa.Table]) -> None:
    # the writer quotes fields that hold a character of its line end; a newline alone is written
    newlines = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
    separator = SEPARATORS.get(request.suffix)
    writer = csv.writer(newlines, delimiter=separator or ",", lineterminator="\r\n")
    escape = escape_formula if request.options.csv_safe else lambda cell: cell
    if separator:
        writer.writerow(map(escape, request.columns))
    for table in tables:
        columns = (cells(table, name) for name in request.columns)
        for row in zip(*columns, strict=True):
            if separator:
                values = map(cell_text, row)
                writer.writerow(map(escape, values))
            else:
                file.write(f"{json_text(dict(zip(request.columns, row, strict=True)))}\n")
        file.flush()


def _write_parquet(path: Path, request: Request, tables: Iterable[pa.Table]) -> None:
    schema = pq.read_schema(request.path.absolute()) if request.kind == ".parquet" else ()
    maps = {field.name: field.type for field in schema if "map<" in str(field.type)}
    tables = iter(tables)
    with contextlib.ExitStack() as stack:
        file: pq.ParquetWriter | None = None
        while chunks := list(islice(tables, _CHUNKS_OF_GROUP)):
            table = pa.concat_tables(chunks)
            for place, field in enumerate(table.schema):
                column = table.column(place)
                if field.name in maps:  # which are lists in `rows`
                    column = pa.array(column.to_pylist(), maps[field.name])
                elif field.type == pa.json_():  # texts as they are, everything else as JSON
                    column = pa.array(map(json_text, cells(table, field.name)), pa.string())
                table = table.set_column(place, field.name, column)
            file = file or stack.enter_context(pq.ParquetWriter(path, table.schema))
            file.write_table(table)


def _facts(request: Request) -> dict[str, Any]:
    """Return everything that the predictions depend on, by names that a user knows."""
    files = []
    if request.kind != "folder":
        files.append(request.path)
    column = request.rows.column(next(iter(request.columns_read)))
    if request.reads_images and pa.types.is_string(column.type):
        files += [request.folder / Path(i).expanduser() for i in column.to_pylist() if i]
    models = list(request.run.path.glob("*.safetensors"))
    if request.session is not None:
        models.append(request.run.path / EXPORT_FOLDER / MODEL)
    return {f"--{name}": value for name, value in asdict(request.options).items()} | {
        f"INPUT {request.name}": _stamp(files),
        f"the model of {request.run.path}": _stamp(models),
        "the columns added": request.added,
        "--batch_tokens": None,  # another number fits into the memory
    }


def _stamp(paths: Iterable[Path]) -> str:
    files = sorted(path for path in paths if path.exists())
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]
