"""Write rows with their predictions as CSV, TSV, JSON lines or parquet.

The predictions of each chunk are stored beside the output, in ``OUTPUT.part/``, one parquet file
per chunk, so that a resumed prediction, with any number of processes, skips those that are there.
When all are done, the input is read again and joined with them, in order, into a file in that
directory, which is then moved into place.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import UserError
from finetune.predicting.request import CHUNK_ROWS, Request, cells
from finetune.runtime.files import replacing, to_json, write_whole
from finetune.runtime.formats import SEPARATORS, escape_formula

#: Writes rows, with the columns that are added to them.
Writer = Callable[[pa.Table, pa.Table], object]
_ROWS_AT_ONCE = 16 * CHUNK_ROWS  # in memory; one row group of parquet


class Parts:
    """The predictions of the chunks of an input, on the disk of the output until it is written."""

    def __init__(self, output: Path, request: Request) -> None:
        self._output = output
        self._request = request
        self._directory = output.with_name(f"{output.name}.part")
        self._manifest = self._directory / "manifest.json"
        self._facts = to_json(request.facts(), indent=2)

    def refuse_others(self, resume: bool) -> None:
        """Refuse what an interrupted prediction left, unless it is to be resumed and the same."""
        if self._directory.is_symlink():  # nothing is written where it points
            self._directory.unlink()
        if self._directory.exists() and not resume:
            raise UserError(
                f"{self._directory} holds an interrupted prediction: add --resume to continue it, "
                "or remove that directory"
            )
        if self._manifest.exists():
            recorded = json.loads(self._manifest.read_text(encoding="utf-8"))
            if changes := [
                f"--resume: {name} has changed (was {recorded.get(name)}, is {value}); remove "
                f"{self._directory} to start again"
                for name, value in json.loads(self._facts).items()
                if value != recorded.get(name)
            ]:
                raise UserError(*changes)

    def complete(self) -> dict[int, int]:
        """Return the number of rows of each chunk that is done, by the number of the chunk.

        A part that cannot be read, or has another number of rows, is predicted again.
        """
        complete = {}
        total = len(self._request.rows)
        for number, start in enumerate(range(0, total, CHUNK_ROWS)):
            with contextlib.suppress(FileNotFoundError, pa.ArrowInvalid):
                rows = pq.read_metadata(self._path(number)).num_rows
                if rows == min(CHUNK_ROWS, total - start):
                    complete[number] = rows
        return complete

    def write(self, number: int, predictions: pa.Table) -> None:
        """Write the predictions of a chunk; of the first one, also what they depend on."""
        if not self._manifest.exists():
            self._directory.mkdir(exist_ok=True)
            write_whole(self._manifest, self._facts)
        with replacing(self._path(number)) as new:
            pq.write_table(predictions, new)
            _flush(new)

    def join(self) -> int:
        """Write the rows with their predictions; return the number of rows that have none."""
        missing = 0
        rows = self._request.rows
        with open_writer(self._output, self._request, self._directory) as write:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                some = rows[start : start + _ROWS_AT_ONCE]
                numbers = range(start // CHUNK_ROWS, -(-(start + len(some)) // CHUNK_ROWS))
                predictions = pa.concat_tables(pq.read_table(self._path(n)) for n in numbers)
                write(some, predictions)
                missing += predictions.column(0).null_count
        shutil.rmtree(self._directory)
        return missing

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.parquet"


@contextlib.contextmanager
def open_writer(
    output: Path | IO[str], request: Request, directory: Path | None = None
) -> Iterator[Writer]:
    """Give what writes rows into an open file, or into one that appears when all are written.

    Args:
        output: A path, or a file that was opened with ``newline=""``.
        request: What is predicted.
        directory: Of the unfinished file, on the same disk; that of ``output`` if None.
    """
    if not isinstance(output, Path):
        yield _text_writer(output, request)
        return
    with replacing(output, directory) as new:
        with contextlib.ExitStack() as stack:
            if request.suffix == ".parquet":
                yield _parquet_writer(new, request.maps, stack)
            else:
                file = stack.enter_context(new.open("w", encoding="utf-8", newline=""))
                yield _text_writer(file, request)
        _flush(new)


def _text_writer(file: IO[str], request: Request) -> Writer:
    def lines(rows: pa.Table, added: pa.Table) -> Iterator[tuple[Any, ...]]:
        values = [cells(table, name) for table in (rows, added) for name in table.column_names]
        return zip(*values, strict=True)

    if request.suffix == ".jsonl":
        return lambda rows, added: file.writelines(
            _as_json(dict(zip(request.columns, line, strict=True))) + "\n"
            for line in lines(rows, added)
        )
    # the writer quotes fields that hold a character of its line end; a newline alone is written
    newlines = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
    table = csv.writer(newlines, delimiter=SEPARATORS[request.suffix], lineterminator="\r\n")
    escape = escape_formula if request.options.csv_safe else lambda cell: cell
    table.writerow(map(escape, request.columns))
    return lambda rows, added: table.writerows(
        [escape(_as_json(cell) if isinstance(cell, (list, dict)) else cell) for cell in line]
        for line in lines(rows, added)
    )


def _as_json(value: Any) -> str:
    """Return JSON: dates and decimals as texts, NaN as null; infinity as Python and pandas do."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if "NaN" in text:
        value = json.loads(text, parse_constant=lambda name: None if name == "NaN" else float(name))
        text = json.dumps(value, ensure_ascii=False)
    return text


def _parquet_writer(
    path: Path, maps: Mapping[str, pa.DataType], stack: contextlib.ExitStack
) -> Writer:
    file: pq.ParquetWriter | None = None

    def write(rows: pa.Table, added: pa.Table) -> None:
        nonlocal file
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        for name, column in columns.items():
            if name in maps:
                columns[name] = pa.array(column.to_pylist(), maps[name])
            elif column.type == pa.json_():  # texts as they are, everything else as JSON
                values = cells(rows, name)
                texts = [v if isinstance(v, (str, NoneType)) else _as_json(v) for v in values]
                columns[name] = pa.array(texts, pa.string())
        # without the metadata of the input, in which `datasets` would miss the new columns
        columns |= dict(zip(added.column_names, added.columns, strict=True))
        table = pa.table(columns)
        file = file or stack.enter_context(pq.ParquetWriter(path, table.schema))
        file.write_table(table)

    return write


def _flush(path: Path) -> None:
    """Put the content of a file on the disk before it gets its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
