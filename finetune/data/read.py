"""Read a file of rows into Arrow, once: later starts map the copy in the cache of ``datasets``.

The name of a copy is made from the path, size, times and inode of the file, and from what the user
said about it, so a file that has not changed is not opened again.

A missing value is None. In ``.csv`` and ``.tsv`` files that is an empty field and nothing else: the
words NA, null and None are text, and so are numbers and dates. In JSON it is null or an absent key.

A sheet of a spreadsheet is read as a ``.csv`` of it would be: a number as it was typed, without the
decimals of a whole one, a date as in ISO 8601.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import itertools
import json
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from datasets.table import MemoryMappedTable
from python_calamine import CalamineError, CalamineWorkbook, SheetVisibleEnum

from finetune.data import arrow, caches, read_json, read_text
from finetune.data.read_text import ReadOptions as ReadOptions  # of callers
from finetune.errors import UserError, suggestion
from finetune.runtime import activity, formats
from finetune.runtime.files import is_full, replacing

if TYPE_CHECKING:
    from finetune.errors import Report

#: Part of the name of a copy: raise it when the same file is read in another way.
VERSION = 5
#: The folder of the copies in the cache of ``datasets``.
FOLDER = "finetune-files"
#: Suffixes of the files that can be read, without that of a compression.
READABLE = (*formats.FILES, ".txt")
#: Those whose first row has the names of the columns.
_WITH_RECORDS = (*formats.SEPARATORS, formats.SPREADSHEET)
_ROWS_AT_ONCE = 1024
#: How a spreadsheet writes characters that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")
#: A cell with a formula and no value; a text that is empty is a value, which only its type tells.
_UNCOMPUTED = re.compile(
    rb'<c\b(?![^>]*\bt="str")(?:[^>]*?\br="(\w+)")?[^>]*>\s*'
    rb"<f\b(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>"
)
#: Errors of what reads a file, and of the disk.
_UNREADABLE = (
    *(CalamineError, NotImplementedError, OSError, RecursionError, ValueError),
    *(pa.ArrowException, zipfile.BadZipFile),
)

#: Where the schema of a copy has what was detected, as JSON.
_DETECTED = b"finetune"

#: The rows of a file, how it was read, and the facts that the user is told.
Copy = tuple[Dataset, ReadOptions, list[str]]


def read_file(path: Path, options: ReadOptions, report: Report | None = None) -> Dataset:
    """Return the rows of a file, memory-mapped from the cache that the first call fills.

    Args:
        path: A file whose suffix is one of :data:`READABLE`, in upper or lower case.
        options: What the user said about it; the rest is detected.
        report: Gets a fact for each choice that was detected and is not the usual one.

    Raises:
        UserError: If the file is malformed, with the line where there are lines; if it holds no
            rows; if an option is not for such a file.
    """
    rows, _, facts = _copy(path, options)
    if report is not None:
        for fact in facts:
            report.info(f"{path.name}: {fact}", name="reading")
    return rows


def line_numbers(path: Path, rows: Sequence[int], options: ReadOptions) -> tuple[str, list[int]]:
    """Return ``line`` or ``row``, and the number of each row in its file, from 1.

    A file with lines is read again.

    Args:
        path: As for :func:`read_file`.
        rows: Row numbers from 0, in any order.
        options: As for :func:`read_file`.
    """
    _, layout, _ = _copy(path, options)
    suffix = formats.suffix(path)
    numbers: Iterator[int] = itertools.count(1)
    if suffix in _WITH_RECORDS:
        numbers = (record.first_line for record in _records(path, layout))
        next(numbers)  # the line of the names of the columns
    elif suffix in (".jsonl", ".ndjson"):
        numbers = (number for number, _ in read_json.lines(path, layout.encoding))
    numbers_of_rows = list(itertools.islice(numbers, max(rows) + 1))
    noun = "line" if suffix in formats.TEXTS and suffix != ".json" else "row"
    return noun, [numbers_of_rows[row] for row in rows]


def read_whole_text(path: Path, options: ReadOptions) -> str:
    """Return the text of a file that is a single row.

    Raises:
        UserError: If it is no text.
    """
    with _explain(path):
        encoding = read_text.encoding_of(path, options.encoding)
        return "".join(read_text.text_lines(path, encoding))


def existing(name: str) -> Path:
    """Return the path of a file or a directory.

    Raises:
        UserError: If it does not exist; the most similar name in its directory is suggested.
    """
    path = Path(name).expanduser()
    if not path.exists():
        names = [other.name for other in path.parent.glob("*")]
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, names)}")
    return path


# ---- copies --------------------------------------------------------------------------------------


def _copy(path: Path, options: ReadOptions) -> Copy:
    """Return the rows of a file from the cache; make a copy if need be."""
    kinds = {"--encoding": formats.TEXTS, "--sheet": (formats.SPREADSHEET,)}
    mistakes = [
        f"{flag} {value}: not for {path}, but for {', '.join(suffixes)}"
        for flag, value in options.flags.items()
        if formats.suffix(path) not in (suffixes := kinds.get(flag, (*formats.SEPARATORS,)))
    ]
    if options.quoting not in formats.QUOTING:
        mistakes.append(f"--csv_quoting {options.quoting}: expected auto, minimal or none")
    if mistakes:
        raise UserError(*mistakes)
    with _explain(path):
        state = _state(path)
        key = hashlib.sha256(repr((state, options, VERSION)).encode()).hexdigest()[:24]
        caches.make(caches.place(FOLDER, ""))
        copy = caches.place(FOLDER, f"{key}.arrow")
        with contextlib.suppress(pa.ArrowException, FileNotFoundError):  # damaged, or not there
            return _open_copy(copy)
        with replacing(copy) as new:
            _write_copy(path, options, new)
            if _state(path) != state:
                raise UserError(f"{path} has changed while it was read: start again")
        return _open_copy(copy)


def _state(path: Path) -> tuple[str | int, ...]:
    """Return what differs if a file has changed, or is another one."""
    status = path.stat()
    # a file that is replaced or rewritten may have the modification time of the one before
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return str(path.resolve()), path.name, status.st_size, *times, status.st_ino


def _write_copy(path: Path, options: ReadOptions, copy: Path) -> None:
    """Write the rows of a file as an Arrow stream, and what was detected into its schema."""
    layout, facts, rows = options, list[str](), 0
    if (suffix := formats.suffix(path)) == formats.SPREADSHEET:
        layout, facts = _choose_sheet(path, options)
    elif suffix in formats.TEXTS:
        layout, facts = read_text.detect(path, options)
    if suffix in _WITH_RECORDS:
        tables = read_text.tables(record.fields for record in _records(path, layout))
    elif suffix not in formats.TEXTS:
        tables = _arrow_tables(path)
    else:
        of_lines = read_text.line_tables if suffix == ".txt" else read_json.tables
        tables = of_lines(path, layout.encoding)
    with copy.open("wb") as file, contextlib.ExitStack() as stack:
        for table in tables:
            if not rows:
                schema = arrow.stored(table.schema)
                detected = {_DETECTED: json.dumps([asdict(layout), facts])}
                schema = schema.with_metadata({**(schema.metadata or {}), **detected})
                writer = stack.enter_context(pa.ipc.new_stream(file, schema))
            writer.write_table(table.cast(schema))
            rows += len(table)
            activity.advance(f"reading {path.name}", rows, None)
        stack.close()
        file.flush()
        os.fsync(file.fileno())  # a stream that is cut off between two batches seems whole
    if not rows:
        raise UserError(f"{path} holds no rows")


def _open_copy(copy: Path) -> Copy:
    table = MemoryMappedTable.from_file(str(copy))
    layout, facts = json.loads(table.schema.metadata[_DETECTED])
    return Dataset(table, fingerprint=copy.stem), ReadOptions(**layout), facts


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a ``UserError``."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, OSError) and (is_full(error) or error.errno == errno.EROFS):
            raise caches.unwritable(error) from error
        raise UserError(f"cannot read {path}: {error}") from error


# ---- Parquet, Arrow and spreadsheets -------------------------------------------------------------


def _arrow_tables(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet or Arrow file."""
    with contextlib.ExitStack() as stack:
        if formats.suffix(path) == ".parquet":
            # read ahead, a row group of 650,000 texts would be in memory as a whole
            opened = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**16)
            file = stack.enter_context(opened)
            schema, batches = file.schema_arrow, file.iter_batches(batch_size=_ROWS_AT_ONCE)
        else:
            source = stack.enter_context(pa.memory_map(str(path)))
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:  # a stream, as `datasets` writes it
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
            schema, batches = table.schema, table.to_batches(max_chunksize=_ROWS_AT_ONCE)
        read_text.refuse_repeated(path, schema.names)
        for batch in batches:
            table = arrow.decoded(pa.Table.from_batches([batch]))
            yield table.replace_schema_metadata(schema.metadata)


def _records(path: Path, layout: ReadOptions) -> Iterator[read_text.Record]:
    is_sheet = formats.suffix(path) == formats.SPREADSHEET
    return (_sheet_records if is_sheet else read_text.records)(path, layout)


def _choose_sheet(path: Path, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Return how a spreadsheet is read, and a fact where several visible sheets have rows.

    Raises:
        UserError: If it cannot be read, has no such sheet, or holds formulas without a value, which
            calamine reads as empty.
    """
    filled = []
    with CalamineWorkbook.from_path(path) as book:
        for sheet in book.sheets_metadata:
            with contextlib.suppress(CalamineError):  # a chart, which has no cells
                is_filled = book.get_sheet_by_name(sheet.name).height > 1
                filled += [sheet.name] * (is_filled and sheet.visible == SheetVisibleEnum.Visible)
        if options.sheet not in (None, *book.sheet_names):
            names = ", ".join(book.sheet_names)
            raise UserError(f"--sheet {options.sheet}: {path} has no such sheet (it has: {names})")
    if options.sheet is None and not filled:
        raise UserError(f"{path} holds no rows")
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/worksheets/" in name and (cell := _UNCOMPUTED.search(archive.read(name))):
                raise UserError(
                    f"{path}, {name}: the formula in {(cell[1] or b'a cell').decode()} has no "
                    "value, as no spreadsheet has computed it: open the file in one and save it"
                )
    if options.sheet is not None or len(filled) == 1:
        return replace(options, sheet=options.sheet or filled[0]), []
    fact = f"read the sheet '{filled[0]}', not {', '.join(filled[1:])} (--sheet)"
    return replace(options, sheet=filled[0]), [fact]


def _sheet_records(path: Path, layout: ReadOptions) -> Iterator[read_text.Record]:
    """Yield the rows of a sheet that are not empty, the names of the columns first.

    Raises:
        UserError: If two columns have one name, or a value stands in a column without one.
    """
    header: list[str] = []
    with CalamineWorkbook.from_path(path) as book:
        rows = book.get_sheet_by_name(layout.sheet or "").iter_rows()
        for number, values in enumerate(rows, start=1):
            cells = [_as_text(value) for value in values]
            while cells and not cells[-1]:
                cells.pop()
            if not header:
                header = cells
                read_text.refuse_repeated(path, header)
            if len(cells) > len(header):
                raise UserError(
                    f"{path}, sheet '{layout.sheet}', row {number}: a value is in a column "
                    "without a name"
                )
            if cells:
                cells += [""] * (len(header) - len(cells))
                yield read_text.Record(number, number, cells)


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case str():
            return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return str(value)
