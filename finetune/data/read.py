"""Read a file of rows into Arrow, once: later starts map the copy in the cache of ``datasets``.

A missing value is None. In ``.csv`` and ``.tsv`` files that is an empty field and nothing else: the
words NA, null and None are text, and so are numbers and dates. In JSON it is null or an absent key;
a column whose values are objects, or have no common type, is kept as JSON text, which ``datasets``
returns as the values that it stands for.

A sheet of a spreadsheet is read as a ``.csv`` of it would be: a number as it was typed, without the
decimals of a whole one, a date as in ISO 8601.
"""

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from datasets.table import MemoryMappedTable
from python_calamine import CalamineError, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from finetune.data import arrow, caches, read_text
from finetune.data.read_text import ReadOptions, Record, batches
from finetune.errors import UserError, suggestion
from finetune.runtime import activity, formats
from finetune.runtime.files import replacing

#: Part of the name of a copy: raise it when the same file is read in another way.
_VERSION = 6
#: Suffixes of the files that can be read, without that of a compression.
READABLE = (*formats.FILES, ".txt")
#: Those of files in which a row is found by its line.
_WITH_LINES = {*formats.TEXTS} - {".json"}
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
_VISIBLE_SHEET = (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_COMMON_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
_FACTS = b"finetune"  # where the schema of a copy has what was detected, as JSON
_NUMBER = "finetune: number of the row"  # the column of a copy that is not of the user
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow


class FileRows(NamedTuple):
    """The rows of a file, memory-mapped.

    Attributes:
        rows: With the columns of the file.
        facts: What of how it is written is not the usual.
        noun: What the file has a number for each row of, ``line`` or ``row``.
        numbers: From 1, int64, shape ``(rows,)``.
    """

    rows: Dataset
    facts: list[str]
    noun: str
    numbers: np.ndarray


def read_file(path: Path, options: ReadOptions) -> FileRows:
    """Return the rows of a file from the cache, which the first call fills.

    A file that is unchanged is not opened; of one that was touched or moved the content decides.
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
        link = _copy_of(state, options)
        with contextlib.suppress(pa.ArrowException, OSError):  # not there, or damaged
            return _open_copy(path, link)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        copy = _copy_of((path.name, digest), options)
        try:
            rows = _open_copy(path, copy)
        except (pa.ArrowException, OSError):
            with replacing(copy) as new:
                _write_copy(path, options, new)
                if _state(path) != state:
                    raise UserError(f"{path} has changed while it was read: start again") from None
            rows = _open_copy(path, copy)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(copy.name)
        return rows


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


def _copy_of(state: tuple[str | int, ...], options: ReadOptions) -> Path:
    key = hashlib.sha256(repr((state, options, _VERSION)).encode()).hexdigest()[:24]
    return caches.directory(caches.FILES) / f"{key}.arrow"


def _state(path: Path) -> tuple[str | int, ...]:
    """Return what differs if a file has changed, or is another one."""
    status = path.stat()
    # a file that is replaced or rewritten may have the modification time of the one before
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return str(path.resolve()), path.name, status.st_size, *times, status.st_ino


def _write_copy(path: Path, options: ReadOptions, copy: Path) -> None:
    """Write the rows of a file as an Arrow stream, and what was detected into its schema."""
    suffix = formats.suffix(path)
    facts: list[str] = []
    if suffix == formats.SPREADSHEET:
        records, facts = _read_sheet(path, options.sheet)
        tables = _record_tables(path, records)
    elif suffix in formats.TEXTS:
        options, facts = read_text.detect(path, options)
        if suffix in formats.SEPARATORS:
            tables = _record_tables(path, read_text.records(path, options))
        elif suffix == ".txt":
            lines = (line.rstrip("\r\n") for line in read_text.text_lines(path, options.encoding))
            tables = (pa.table({"text": batch}) for batch in batches(lines))
        else:
            tables = _json_tables(path, options.encoding)
    else:
        tables = _arrow_tables(path)
    tables = map(arrow.plain, tables)
    first = next(filter(len, tables), None)
    if first is None:
        raise UserError(f"{path} holds no rows")
    schema = first.schema.with_metadata(
        {**(first.schema.metadata or {}), _FACTS: json.dumps(facts)}
    )
    rows = 0
    with copy.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)
            rows += len(table)
            activity.advance(f"reading {path.name}", rows, None)


def _open_copy(path: Path, copy: Path) -> FileRows:
    with copy.open("rb") as file:  # to Arrow, a stream that is cut off between batches is whole
        file.seek(-len(_END_OF_STREAM), os.SEEK_END)
        if file.read() != _END_OF_STREAM:
            raise pa.ArrowInvalid(f"{copy} is cut off")
    table = MemoryMappedTable.from_file(str(copy))
    facts = json.loads(table.schema.metadata[_FACTS])
    noun = "line" if formats.suffix(path) in _WITH_LINES else "row"
    numbers = np.arange(1, len(table) + 1)
    if _NUMBER in table.column_names:
        numbers = table.column(_NUMBER).to_numpy()
        table = table.drop([_NUMBER])
    return FileRows(Dataset(table, fingerprint=copy.resolve().stem), facts, noun, numbers)


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            raise caches.unwritable(error) from error
        raise UserError(f"cannot read {path}: {error}") from error


def _arrow_tables(path: Path) -> Iterator[pa.Table]:
    if formats.suffix(path) == ".parquet":
        # read ahead, a row group of 650,000 texts would be in memory as a whole
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**16)
        schema = file.schema_arrow
        parts = file.iter_batches(batch_size=read_text.ROWS_AT_ONCE)
    else:
        source = pa.memory_map(str(path))
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:  # a stream, as `datasets` writes it
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        schema = table.schema
        parts = table.to_batches(max_chunksize=read_text.ROWS_AT_ONCE)
    read_text.column_names(path, schema.names)
    for part in parts:
        yield pa.Table.from_batches([part]).replace_schema_metadata(schema.metadata)


def _record_tables(path: Path, records: Iterator[Record]) -> Iterator[pa.Table]:
    """Yield rows as tables; all is text, and an empty field a null. The first row has the names of
    the columns; refuse these as another row.
    """
    header = next(records, Record(1, 1, [])).fields
    titles = _as_titles(header)
    names = read_text.column_names(path, header)
    schema = pa.schema([*((name, pa.string()) for name in names), (_NUMBER, pa.int64())])
    for batch in batches(records):
        for record in batch:
            if len(titles) > 1 and _as_titles(record.fields) == titles:
                noun = "line" if formats.suffix(path) in _WITH_LINES else "row"
                place = f"{path}, {noun} {record.first_line}"
                raise UserError(f"{place}: the names of the columns again: remove the line")
        cells = zip(*(record.fields for record in batch), strict=True)
        columns = [[field or None for field in column] for column in cells]
        yield pa.table([*columns, [record.first_line for record in batch]], schema=schema)


def _as_titles(fields: Sequence[str]) -> list[str]:
    """Return fields without what joined files have around the names of their columns."""
    return [field.strip('\ufeff\xa0 \t"').casefold() for field in fields]


def _read_sheet(path: Path, sheet: str | None) -> tuple[Iterator[Record], list[str]]:
    """Return the rows of a sheet that are not empty, and a fact where several visible sheets have
    rows.

    Formulas without a value, which calamine reads as empty, are refused.
    """
    with CalamineWorkbook.from_path(path) as book:
        names = book.sheet_names
        if sheet not in (None, *names):
            raise UserError(f"--sheet {sheet}: {path} has the sheets {', '.join(names)}")
        visible = [s.name for s in book.sheets_metadata if (s.typ, s.visible) == _VISIBLE_SHEET]
        filled = [name for name in visible if book.get_sheet_by_name(name).height > 1]
        name = sheet or [*filled, *names][0]
        rows = book.get_sheet_by_name(name).iter_rows()
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if "/worksheets/" in member and (cell := _UNCOMPUTED.search(archive.read(member))):
                place = f"{path}, {member}, {(cell[1] or b'a cell').decode()}"
                raise UserError(f"{place}: a formula without a value: open and save the file")
    texts = ([_as_text(value) for value in values] for values in rows)
    numbered = enumerate(texts, start=1)
    records = (Record(number, number, cells) for number, cells in numbered if any(cells))
    fact = f"read the sheet '{name}', not {', '.join(filled[1:])} (--sheet)"
    return records, [fact] * (sheet is None and len(filled) > 1)


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
    for batch in batches(_json_rows(path, encoding)):
        for name in dict.fromkeys(name for _, row in batch for name in row):
            values = [row.get(name) for _, row in batch]
            types[name] = _common_type(types.get(name, pa.null()), values)
    for batch in batches(_json_rows(path, encoding)):
        columns: dict[str, Any] = {_NUMBER: [number for number, _ in batch]}
        for name, kind in types.items():
            values = [row.get(name) for _, row in batch]
            if kind == pa.json_():
                values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
            columns[name] = pa.array(values, kind)
        yield pa.table(columns)


def _common_type(kind: pa.DataType, values: Sequence[Any]) -> pa.DataType:
    """Return the type of values and of others of a type, such as of whole numbers and fractions;
    that of JSON if they have none.
    """
    with contextlib.suppress(*_NO_COMMON_TYPE):
        other = pa.array(values).type
        has_booleans = any(isinstance(value, bool) for value in values)
        # Arrow makes numbers of truth values, and gives each object the keys of all others
        if pa.types.is_boolean(other) == has_booleans and "struct" not in str(other):
            schemas = [pa.schema([("", kind)]), pa.schema([("", other)])]
            return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return pa.json_()


def _json_lines(path: Path, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1."""
    numbered = enumerate(read_text.text_lines(path, encoding), start=1)
    return ((number, line) for number, line in numbered if not line.isspace())


def _json_rows(path: Path, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with the number of its line, or of the row in a document."""
    beginning = [line for _, line in itertools.islice(_json_lines(path, encoding), 2)]
    is_document = len(beginning) < 2 or beginning[0].lstrip().startswith("[")
    if is_document and formats.suffix(path) == ".json":
        text = "".join(read_text.text_lines(path, encoding))
        rows = read_text.parse_json(text, path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            expected = "an array of objects, as DataFrame.to_json(orient='records') writes it"
            raise UserError(f"{path}: expected {expected}, found {text.strip()[:40]!r}")
        yield from enumerate(rows, start=1)
        return
    for position, (number, line) in enumerate(_json_lines(path, encoding), start=1):
        row = read_text.parse_json(line, path, number)
        if not isinstance(row, dict):
            hint = "an array is read from a .json"
            content = repr(line.strip()[:40])
            raise UserError(f"{path}, line {number}: expected an object ({hint}), found {content}")
        yield number if formats.suffix(path) in _WITH_LINES else position, row
