"""Read a file of rows into Arrow, once: later starts map the copy in the cache of ``datasets``.

A missing value is None. In ``.csv`` and ``.tsv`` files that is an empty field and nothing else: the
words NA, null and None are text, and so are numbers and dates. In JSON it is null or an absent key;
a column whose values are objects, or have no common type, is kept as JSON text, which ``datasets``
returns as the values that it stands for.

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
import operator
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from datasets.table import MemoryMappedTable
from python_calamine import CalamineError, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from finetune.data import arrow, caches, read_text
from finetune.data.read_text import ReadOptions
from finetune.errors import UserError, suggestion
from finetune.runtime import activity, formats
from finetune.runtime.files import replacing

#: Part of the name of a copy: raise it when the same file is read in another way.
_VERSION = 5
#: Suffixes of the files that can be read, without that of a compression.
READABLE = (*formats.FILES, ".txt")
#: Those whose first row has the names of the columns.
_WITH_RECORDS = (*formats.SEPARATORS, formats.SPREADSHEET)
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
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: What joined files, some with a byte order mark, may have around the names of their columns.
_AROUND_NAMES = '\ufeff\xa0 \t"'
_NO_COMMON_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
_DETECTED = b"finetune"  # where the schema of a copy has what was detected, as JSON
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow
_LINES = pa.schema([("text", pa.string())])


class FileRows(NamedTuple):
    """The rows of a file, memory-mapped, how it is written, and what of that is not the usual."""

    rows: Dataset
    layout: ReadOptions
    facts: list[str]


def read_file(path: Path, options: ReadOptions) -> FileRows:
    """Return the rows of a file from the cache, which the first call fills.

    What the options leave open is detected; the facts say what is not the usual.

    Raises:
        UserError: If the file is malformed, with the line where there are lines; if it holds no
            rows; if an option is not for such a file.
    """
    kinds = {"--encoding": formats.TEXTS, "--sheet": (formats.SPREADSHEET,)}
    if mistakes := [
        f"{flag} {value}: not for {path}, but for {', '.join(suffixes)}"
        for flag, value in options.flags.items()
        if formats.suffix(path) not in (suffixes := kinds.get(flag, (*formats.SEPARATORS,)))
    ]:
        raise UserError(*mistakes)
    with _explain(path):
        state = _state(path)
        key = hashlib.sha256(repr((state, options, _VERSION)).encode()).hexdigest()[:24]
        copy = caches.directory(caches.FILES) / f"{key}.arrow"
        with contextlib.suppress(pa.ArrowException, OSError):  # not there, or damaged
            return _open_copy(copy)
        with replacing(copy) as new:
            _write_copy(path, options, new)
            if _state(path) != state:
                raise UserError(f"{path} has changed while it was read: start again")
        return _open_copy(copy)


def line_numbers(path: Path, rows: Sequence[int], options: ReadOptions) -> tuple[str, list[int]]:
    """Return ``line`` or ``row``, and the number of each row in its file, from 1.

    ``rows`` are numbers from 0, in any order. A file with lines is read again.
    """
    layout = read_file(path, options).layout
    suffix = formats.suffix(path)
    numbers: Iterator[int] = itertools.count(1)
    if suffix in _WITH_RECORDS:
        lines = (record.first_line for record in _records(path, layout))
        numbers = itertools.islice(lines, 1, None)  # without that of the names of the columns
    elif suffix in (".jsonl", ".ndjson"):
        numbers = (number for number, _ in _json_lines(path, layout.encoding))
    numbers_of_rows = list(itertools.islice(numbers, max(rows) + 1))
    noun = "line" if suffix in formats.TEXTS and suffix != ".json" else "row"
    return noun, [numbers_of_rows[row] for row in rows]


def read_whole_text(path: Path, options: ReadOptions) -> str:
    """Return the text of a file that is a single row; refuse what is no text."""
    with _explain(path):
        encoding = read_text.encoding_of(path, options.encoding)
        return "".join(read_text.text_lines(path, encoding))


def existing(name: str) -> Path:
    """Return the path of a file or a directory; of one that does not exist suggest a similar."""
    path = Path(name).expanduser()
    if not path.exists():
        names = [other.name for other in path.parent.glob("*")]
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, names)}")
    return path


def _state(path: Path) -> tuple[str | int, ...]:
    """Return what differs if a file has changed, or is another one."""
    status = path.stat()
    # a file that is replaced or rewritten may have the modification time of the one before
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return str(path.resolve()), path.name, status.st_size, *times, status.st_ino


def _write_copy(path: Path, options: ReadOptions, copy: Path) -> None:
    """Write the rows of a file as an Arrow stream, and what was detected into its schema."""
    suffix = formats.suffix(path)
    layout = options
    facts: list[str] = []
    if suffix == formats.SPREADSHEET:
        layout, facts = _choose_sheet(path, options)
    elif suffix in formats.TEXTS:
        layout, facts = read_text.detect(path, options)
    if suffix in _WITH_RECORDS:
        tables = read_text.tables(path, (record.fields for record in _records(path, layout)))
    elif suffix == ".txt":
        lines = (line.rstrip("\r\n") for line in read_text.text_lines(path, layout.encoding))
        tables = (pa.table({"text": batch}, _LINES) for batch in read_text.batches(lines, len))
    elif suffix in formats.TEXTS:
        tables = _json_tables(path, layout.encoding)
    else:
        tables = _arrow_tables(path)
    writer: Any = None
    rows = 0
    with copy.open("wb") as file, contextlib.ExitStack() as stack:
        for table in map(arrow.plain, tables):
            if writer is None:
                detected = {_DETECTED: json.dumps([asdict(layout), facts])}
                schema = table.schema.with_metadata({**(table.schema.metadata or {}), **detected})
                writer = stack.enter_context(pa.ipc.new_stream(file, schema))
            writer.write_table(table)
            rows += len(table)
            activity.advance(f"reading {path.name}", rows, None)
    if not rows:
        raise UserError(f"{path} holds no rows")


def _open_copy(copy: Path) -> FileRows:
    with copy.open("rb") as file:  # to Arrow, a stream that is cut off between batches is whole
        file.seek(-len(_END_OF_STREAM), os.SEEK_END)
        if file.read() != _END_OF_STREAM:
            raise pa.ArrowInvalid(f"{copy} is cut off")
    table = MemoryMappedTable.from_file(str(copy))
    layout, facts = json.loads(table.schema.metadata[_DETECTED])
    return FileRows(Dataset(table, fingerprint=copy.stem), ReadOptions(**layout), facts)


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            raise caches.unwritable(error) from error
        raise UserError(f"cannot read {path}: {error}") from error


def _arrow_tables(path: Path) -> Iterator[pa.Table]:
    with contextlib.ExitStack() as stack:
        if formats.suffix(path) == ".parquet":
            # read ahead, a row group of 650,000 texts would be in memory as a whole
            file = stack.enter_context(pq.ParquetFile(path, pre_buffer=False, buffer_size=2**16))
            schema = file.schema_arrow
            batches = file.iter_batches(batch_size=1024)
        else:
            source = stack.enter_context(pa.memory_map(str(path)))
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:  # a stream, as `datasets` writes it
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
            schema = table.schema
            batches = table.to_batches(max_chunksize=1024)
        read_text.column_names(path, schema.names)
        for batch in batches:
            yield pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata)


def _records(path: Path, layout: ReadOptions) -> Iterator[read_text.Record]:
    """Yield the rows of a table, the names of the columns first; refuse these names as a row."""
    is_sheet = formats.suffix(path) == formats.SPREADSHEET
    names: list[str] = []
    for record in (_sheet_records if is_sheet else read_text.records)(path, layout):
        cells = [cell.strip(_AROUND_NAMES).casefold() for cell in record.fields]
        if not names:
            names = cells
        elif len(names) > 1 and cells == names:
            raise UserError(
                f"{path}, {'row' if is_sheet else 'line'} {record.first_line}: the names of the "
                "columns again, as of joined files: remove all of these but the first"
            )
        yield record


def _choose_sheet(path: Path, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Return how a spreadsheet is read, and a fact where several visible sheets have rows.

    Formulas without a value, which calamine reads as empty, are refused.
    """
    with CalamineWorkbook.from_path(path) as book:
        names = book.sheet_names
        filled = [
            sheet.name
            for sheet in book.sheets_metadata
            if (sheet.typ, sheet.visible) == (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
            and book.get_sheet_by_name(sheet.name).height > 1
        ]
    if options.sheet not in (None, *names):
        raise UserError(f"--sheet {options.sheet}: {path} has the sheets {', '.join(names)}")
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/worksheets/" in name and (cell := _UNCOMPUTED.search(archive.read(name))):
                raise UserError(
                    f"{path}, {name}: the formula in {(cell[1] or b'a cell').decode()} has no "
                    "value, as no spreadsheet has computed it: open the file in one and save it"
                )
    sheet = options.sheet or [*filled, *names][0]
    fact = f"read the sheet '{sheet}', not {', '.join(filled[1:])} (--sheet)"
    return replace(options, sheet=sheet), [fact] * (options.sheet is None and len(filled) > 1)


def _sheet_records(path: Path, layout: ReadOptions) -> Iterator[read_text.Record]:
    """Yield the rows of a sheet that are not empty, the names of the columns first."""
    with CalamineWorkbook.from_path(path) as book:
        rows = book.get_sheet_by_name(layout.sheet or "").iter_rows()
        for number, values in enumerate(rows, start=1):
            cells = [_as_text(value) for value in values]
            if any(cells):
                yield read_text.Record(number, number, cells)


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer():
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case str():
            return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return str(value)


def _json_tables(path: Path, encoding: str | None) -> Iterator[pa.Table]:
    """Yield the rows of a document or of JSON lines, all with the same columns and types.

    These are known at the end only, so the file is read twice.
    """
    types: dict[str, pa.DataType] = {}
    for batch in read_text.batches(_json_rows(path, encoding), operator.itemgetter(1)):
        for name in dict.fromkeys(name for row, _ in batch for name in row):
            kind = _json_type([row.get(name) for row, _ in batch])
            types[name] = _common_type(types.get(name, kind), kind)
    for batch in read_text.batches(_json_rows(path, encoding), operator.itemgetter(1)):
        yield pa.table(
            {name: _json_array([row.get(name) for row, _ in batch], types[name]) for name in types}
        )


def _json_type(values: Sequence[Any]) -> pa.DataType:
    has_booleans = any(isinstance(value, bool) for value in values)
    with contextlib.suppress(*_NO_COMMON_TYPE):
        kind = pa.array(values).type
        # Arrow makes numbers of truth values, and gives each object the keys of all others
        if pa.types.is_boolean(kind) == has_booleans and "struct" not in str(kind):
            return kind
    return pa.json_()


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the type of whole numbers and fractions, for instance; that of JSON if need be."""
    schemas = [pa.schema([("", kind)]) for kind in (first, second)]
    with contextlib.suppress(*_NO_COMMON_TYPE):
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return pa.json_()


def _json_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind != pa.json_():
        return pa.array(values, kind)
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string()).cast(kind)


def _json_lines(path: Path, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1."""
    numbered = enumerate(read_text.text_lines(path, encoding), start=1)
    return ((number, line) for number, line in numbered if not line.isspace())


def _json_rows(path: Path, encoding: str | None) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each row, and about how many characters it has."""
    beginning = [line for _, line in itertools.islice(_json_lines(path, encoding), 2)]
    is_document = len(beginning) < 2 or beginning[0].lstrip().startswith("[")
    if is_document and formats.suffix(path) == ".json":
        text = "".join(read_text.text_lines(path, encoding))
        rows = read_text.parse_json(text, path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(
                f"{path}: expected an array of objects, as DataFrame.to_json(orient='records') "
                f"writes it, found {text.strip()[:40]!r}"
            )
        yield from ((row, len(text) // len(rows)) for row in rows)
        return
    for number, line in _json_lines(path, encoding):
        row = read_text.parse_json(line, path, number)
        if not isinstance(row, dict):
            raise UserError(
                f"{path}, line {number}: expected an object, found {line.strip()[:40]!r} (an "
                "array of objects is read from a .json)"
            )
        yield row, len(line)
