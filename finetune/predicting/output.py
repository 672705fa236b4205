"""Write rows with their predictions as CSV, TSV, JSON lines or parquet.

The predictions of each chunk are stored beside the output, in ``OUTPUT.part/``, one parquet file
per chunk, so that a resumed prediction, with any number of processes, skips those that are there.
When all are done, the input is read again and joined with them, in order, into a file in that
directory, which is then moved into place.
"""

import contextlib
import csv
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data.prediction_columns import json_text
from finetune.errors import UserError
from finetune.predicting.request import CHUNK_ROWS, Request, cells
from finetune.runtime.files import replacing
from finetune.runtime.formats import SEPARATORS, escape_formula

#: Rows, and the columns that are added to them.
Chunk = tuple[pa.Table, pa.Table]
_CHUNKS_AT_ONCE = 16  # in memory; one row group of parquet
_FACTS = b"facts"  # where the schema of a part has what its predictions depend on, as JSON


class Parts:
    """The predictions of the chunks of an input, on the disk of the output until it is written."""

    def __init__(self, output: Path, request: Request) -> None:
        self._output = output
        self._request = request
        self._directory = output.with_name(f"{output.name}.part")
        self._facts = request.facts()

    def complete(self, resume: bool) -> dict[int, int]:
        """Return the number of rows of each part that is there, by the number of its chunk.

        What an interrupted prediction left is refused, unless it is to be resumed and the same.
        """
        if self._directory.is_symlink():  # nothing is written where it points
            target = self._directory.readlink()
            raise UserError(f"{self._directory} is a link to {target}: remove the link")
        if self._directory.exists() and not resume:
            raise UserError(
                f"{self._directory} holds an interrupted prediction: add --resume to continue it, "
                "or remove that directory"
            )
        complete = {}
        for path in self._directory.glob("*.parquet"):
            with contextlib.suppress(pa.ArrowInvalid):  # cut off: it is predicted again
                part = pq.read_metadata(path)
                recorded = json.loads(part.metadata.get(_FACTS, "{}"))
                if changes := [
                    f"--resume: {name} has changed (was {recorded.get(name)}, is {value}); remove "
                    f"{self._directory} to start again"
                    for name, value in self._facts.items()
                    if value != recorded.get(name)
                ]:
                    raise UserError(*changes)
                complete[int(path.stem)] = part.num_rows
        return complete

    def write(self, number: int, predictions: pa.Table) -> None:
        """Write the predictions of a chunk."""
        self._directory.mkdir(exist_ok=True)
        with _replacing(self._directory / f"{number:08d}.parquet") as new:
            facts = {_FACTS: json.dumps(self._facts)}
            pq.write_table(predictions.replace_schema_metadata(facts), new)

    def join(self) -> None:
        """Write the rows with their predictions into the output."""
        parts = sorted(self._directory.glob("*.parquet"))
        chunks = (
            (
                self._request.rows[number * CHUNK_ROWS : (number + _CHUNKS_AT_ONCE) * CHUNK_ROWS],
                pa.concat_tables(map(pq.read_table, parts[number : number + _CHUNKS_AT_ONCE])),
            )
            for number in range(0, len(parts), _CHUNKS_AT_ONCE)
        )
        write_rows(self._output, self._request, chunks, self._directory)
        shutil.rmtree(self._directory)


def write_rows(
    output: Path | IO[str],
    request: Request,
    chunks: Iterable[Chunk],
    directory: Path | None = None,
) -> None:
    """Write rows into an open file as they arrive, or into one that appears when all are written.

    Args:
        output: A path, or a file that was opened with ``newline=""``.
        request: What is predicted.
        chunks: The rows, in order.
        directory: Of the unfinished file, on the same disk; that of ``output`` if None.
    """
    if not isinstance(output, Path):
        _write_text(output, request, chunks)
        return
    with _replacing(output, directory) as new:
        if request.suffix == ".parquet":
            _write_parquet(new, request, chunks)
        else:
            with new.open("w", encoding="utf-8", newline="") as file:
                _write_text(file, request, chunks)


@contextlib.contextmanager
def _replacing(path: Path, directory: Path | None = None) -> Iterator[Path]:
    """Give a new file, whose content is on the disk before it takes the place of ``path``."""
    with replacing(path, directory) as new:
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())


def _write_text(file: IO[str], request: Request, chunks: Iterable[Chunk]) -> None:
    # the writer quotes fields that hold a character of its line end; a newline alone is written
    newlines = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
    separator = SEPARATORS.get(request.suffix)
    table = csv.writer(newlines, delimiter=separator or ",", lineterminator="\r\n")
    escape = escape_formula if request.options.csv_safe else lambda cell: cell
    if separator:
        table.writerow(map(escape, request.columns))
    for chunk in chunks:
        columns = [cells(part, name) for part in chunk for name in part.column_names]
        for row in zip(*columns, strict=True):
            if separator:
                values = [json_text(v) if isinstance(v, (list, dict)) else v for v in row]
                table.writerow(map(escape, values))
            else:
                file.write(f"{json_text(dict(zip(request.columns, row, strict=True)))}\n")
        file.flush()


def _write_parquet(path: Path, request: Request, chunks: Iterable[Chunk]) -> None:
    schema = pq.read_schema(request.name) if request.kind == ".parquet" else ()
    maps = {field.name: field.type for field in schema if "map<" in str(field.type)}
    with contextlib.ExitStack() as stack:
        file: pq.ParquetWriter | None = None
        for chunk in chunks:
            columns = {}
            for part in chunk:
                for name, column in zip(part.column_names, part.columns, strict=True):
                    if name in maps:  # which are lists in `rows`
                        column = pa.array(column.to_pylist(), maps[name])
                    elif column.type == pa.json_():  # texts as they are, everything else as JSON
                        column = pa.array(map(json_text, cells(part, name)), pa.string())
                    columns[name] = column
            # without the metadata of the input, in which `datasets` would miss the new columns
            table = pa.table(columns)
            file = file or stack.enter_context(pq.ParquetWriter(path, table.schema))
            file.write_table(table)
