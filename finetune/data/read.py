"""Read a file of rows into Arrow. Later runs memory-map the copy in the cache of ``datasets``.

Missing values are None. In ``.csv`` and ``.tsv`` files only an empty field is missing: NA, null and
None are text, and so are numbers and dates. In JSON null and an absent key are missing. A column of
objects, or of values without a common type, is stored as JSON text, which ``datasets`` decodes when
it is read.

A spreadsheet is read like a ``.csv`` exported from it: whole numbers without decimals, dates in
ISO 8601.
"""

import contextlib
import datetime
import errno
import hashlib
import itertools
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from datasets.table import MemoryMappedTable
from datasets.utils.py_utils import iter_batched
from python_calamine import CalamineError, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from finetune.data import arrow, caches, read_text
from finetune.data.read_text import ROWS_AT_ONCE, ReadOptions, Record, refuse_pointer
from finetune.errors import UserError, suggestion
from finetune.runtime import activity, formats
from finetune.runtime.files import hash_file, replacing

#: Part of the name of a cached copy: increase it when the same file should yield other rows.
_VERSION = 9
#: Suffixes of the files that can be read, without the suffix of a compression.
READABLE = (*formats.FILES, ".txt")
#: Suffixes of the files whose rows have line numbers.
_WITH_LINES = set(formats.TEXTS) - {".json"}
#: The XML of a cell with a formula but no value; with `t="str"` the value is an empty text.
_UNCOMPUTED = re.compile(
    rb'<c\b(?![^>]*\bt="str")(?:[^>]*?\br="(\w+)")?[^>]*>\s*'
    rb"<f\b(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>"
)
#: Errors of the file readers and of the disk.
_UNREADABLE = (
    CalamineError,
    NotImplementedError,
    OSError,
    RecursionError,
    ValueError,
    pa.ArrowException,
    zipfile.BadZipFile,
)
_VISIBLE_SHEET = (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_COMMON_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
_FACTS = b"finetune"  # the key in the schema of a copy for the detected facts, as JSON
_NUMBER = "finetune: number of the row"  # the column of a copy with line or row numbers


class FileRows(NamedTuple):
    """The rows of a file, memory-mapped.

    Attributes:
        rows: The rows, with the columns of the file.
        facts: Sentences about an unusual encoding, separator, quoting or sheet.
        noun: What ``numbers`` count: ``line`` or ``row``.
        numbers: The line or row number of each row, from 1, int64, shape ``(rows,)``.
    """

    rows: Dataset
    facts: list[str]
    noun: str
    numbers: np.ndarray


def read_file(path: Path, options: ReadOptions) -> FileRows:
    """Return the rows of a file from the cache, which the first call fills.

    An unchanged file is not opened again; if it was touched or moved, its sha256 is compared.
    Options that are not set are detected; unusual results are in the facts.

    Raises:
        UserError: If the file is malformed (with the line, if it has lines), if it has no rows, or
            if an option does not apply to its format.
    """
    kinds = {"--encoding": formats.TEXTS, "--sheet": (formats.SPREADSHEET,)}
    mistakes = []
    for flag, value in options.flags.items():
        suffixes = kinds.get(flag, tuple(formats.SEPARATORS))
        if formats.suffix(path) not in suffixes:
            listed = ", ".join(suffixes)
            mistakes.append(f"{flag} {value}: does not apply to {path}, only to {listed}")
    if mistakes:
        raise UserError(*mistakes)
    with _explain(path):
        state = _state(path)
        link = _copy_of(state, options)
        with contextlib.suppress(pa.ArrowException, OSError):  # missing or damaged
            return _open_copy(path, link)
        with path.open("rb") as file:
            refuse_pointer(file.read(64), str(path))
        copy = _copy_of((path.name, hash_file(path)), options)
        try:
            rows = _open_copy(path, copy)
        except (pa.ArrowException, OSError):
            with replacing(copy) as new:
                _write_copy(path, options, new)
                if _state(path) != state:
                    raise UserError(f"{path} changed while it was read: start again") from None
            rows = _open_copy(path, copy)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(copy.name)
        return rows


def read_whole_text(path: Path, options: ReadOptions) -> tuple[str, str]:
    """Return the text of a whole file and its encoding; raise a ``UserError`` if it is not text."""
    with _explain(path):
        encoding = read_text.encoding_of(path, options.encoding)
        text = "".join(read_text.text_lines(path, encoding))
    refuse_pointer(text[:64].encode(), str(path))
    return text, encoding


def existing(name: str) -> Path:
    """Return the path of a file or directory; raise a ``UserError`` if it does not exist."""
    path = Path(name).expanduser()
    if not path.exists():
        names = [other.name for other in path.parent.glob("*")]
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, names)}")
    return path


def _copy_of(state: tuple[str | int, ...], options: ReadOptions) -> Path:
    key = hashlib.sha256(repr((state, options, _VERSION)).encode()).hexdigest()[:24]
    return caches.directory("finetune-files") / f"{key}.arrow"


def _state(path: Path) -> tuple[str | int, ...]:
    """Return the path, size, times and inode of a file, to detect changes."""
    status = path.stat()
    return (
        str(path.resolve()),
        path.name,
        status.st_size,
        status.st_mtime_ns,  # a file that was replaced may have that of the old one
        status.st_ctime_ns,
        status.st_ino,
    )


def _write_copy(path: Path, options: ReadOptions, copy: Path) -> None:
    """Write the rows of a file as an Arrow stream, with the facts in its schema."""
    suffix = formats.suffix(path)
    facts: list[str] = []
    if suffix == formats.SPREADSHEET:
        records, facts = _read_sheet(path, options.sheet)
        tables = _record_tables(path, records)
    elif suffix in formats.TEXTS:
        options, facts = read_text.detect(path, options)
        if options.are_words(path):
            lines = read_text.text_lines(path, options.encoding)
            sentences = iter_batched(_sentences(path, lines), ROWS_AT_ONCE)
            tables = map(pa.Table.from_pylist, map(list, sentences))
        elif suffix in formats.SEPARATORS:
            tables = _record_tables(path, read_text.records(path, options))
        elif suffix == ".txt":
            lines = (line.rstrip("\r\n") for line in read_text.text_lines(path, options.encoding))
            tables = (pa.table({"text": batch}) for batch in iter_batched(lines, ROWS_AT_ONCE))
        else:
            tables = _json_tables(path, options.encoding)
    else:
        tables = _arrow_tables(path)
    tables = map(arrow.with_supported_types, tables)
    first = next(filter(len, tables), None)
    if first is None:
        raise UserError(f"{path} has no rows")
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
    arrow.require_whole(copy)
    copy = copy.resolve()  # a later start opens it by a link
    table = MemoryMappedTable.from_file(str(copy))
    facts = json.loads(table.schema.metadata[_FACTS])
    noun = "line" if formats.suffix(path) in _WITH_LINES else "row"
    numbers = np.arange(1, len(table) + 1)
    if _NUMBER in table.column_names:
        numbers = table.column(_NUMBER).to_numpy()
        table = table.drop([_NUMBER])
    return FileRows(Dataset(table, fingerprint=copy.stem), facts, noun, numbers)


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
        # with `pre_buffer`, a whole row group, e.g. 650,000 texts, would be in memory
        file = pq.ParquetFile(path.absolute(), pre_buffer=False, buffer_size=2**16)
        schema = file.schema_arrow
        parts = file.iter_batches(batch_size=ROWS_AT_ONCE)
    else:
        source = pa.memory_map(str(path))
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:  # a stream, as `datasets` writes it
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        schema = table.schema
        parts = table.to_batches(max_chunksize=ROWS_AT_ONCE)
    read_text.column_names(path, schema.names)
    for part in parts:
        yield pa.Table.from_batches([part]).replace_schema_metadata(schema.metadata)


def _sentences(path: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a file with a word a line, and blank lines between them: CoNLL.

    Fields are separated by tabs if the first word has one, else by blanks. The columns are ``1``,
    ``2`` and so on, lists with an item for each word; and if the file begins with a line
    ``-DOCSTART-``, ``document`` with the number of these lines so far.

    Raises:
        UserError: With the line that has an empty word, or more or fewer fields than the first.
    """
    separator: str | None = None
    width = documents = 0
    words: list[list[str]] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        content = line.strip()
        is_document = content.split()[:1] == ["-DOCSTART-"]
        if content and not is_document:
            if not width and "\t" in content:
                separator = "\t"
            fields = [field.strip() for field in line.rstrip("\r\n").split(separator)]
            width = width or len(fields)
            if len(fields) != width or not fields[0]:
                kind = "tabs" if separator else "blanks"
                raise UserError(
                    f"{path}, line {number}: expected a word and {width - 1} more fields, "
                    f"separated by {kind} as in the first line, found {content[:40]!r}"
                )
            words.append(fields)
        elif words:
            row: dict[str, Any] = {_NUMBER: number - len(words)}
            for place, column in enumerate(zip(*words, strict=True), start=1):
                row[str(place)] = list(column)
            if documents:
                row["document"] = str(documents)
            yield row
            words = []
        if is_document and (documents or not width):
            documents += 1


def _record_tables(path: Path, records: Iterator[Record]) -> Iterator[pa.Table]:
    """Yield records as tables of texts; an empty field is null. The first record has the column
    names. Another row with these names, as where files were joined, raises a ``UserError``.
    """
    header = next(records, Record(1, 1, [])).fields
    names = read_text.column_names(path, header)
    schema = pa.schema([*((name, pa.string()) for name in names), (_NUMBER, pa.int64())])
    for batch in iter_batched(records, ROWS_AT_ONCE):
        first_lines, _, rows = zip(*batch, strict=True)
        for first_line, fields in zip(first_lines, rows, strict=True):
            # the second of joined files may begin with a byte order mark
            if fields[1:] == header[1:] and fields[0].strip('\ufeff"') == header[0] and header[1:]:
                noun = "line" if formats.suffix(path) in _WITH_LINES else "row"
                raise UserError(f"{path}, {noun} {first_line}: repeats the header")
        columns: list[Any] = []
        for column in zip(*rows, strict=True):
            columns.append([field or None for field in column])
        yield pa.table([*columns, first_lines], schema=schema)


def _read_sheet(path: Path, sheet: str | None) -> tuple[Iterator[Record], list[str]]:
    """Return the non-empty rows of a sheet, and a fact if several visible sheets have rows.

    Raises:
        UserError: If there is no such sheet, or a formula without a value: calamine reads it as "".
    """
    with CalamineWorkbook.from_path(path) as book:
        names = book.sheet_names
        if sheet not in (None, *names):
            raise UserError(f"--sheet {sheet}: not in {path} (it has: {', '.join(names)})")
        visible = [s.name for s in book.sheets_metadata if (s.typ, s.visible) == _VISIBLE_SHEET]
        filled = [name for name in visible if book.get_sheet_by_name(name).height > 1]
        name = sheet or [*filled, *names][0]
        rows = book.get_sheet_by_name(name).iter_rows()
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if "/worksheets/" in member and (cell := _UNCOMPUTED.search(archive.read(member))):
                place = f"{path}, {member}, {(cell[1] or b'a cell').decode()}"
                raise UserError(f"{place}: formula without a value: open and save it in Excel")
    texts = (list(map(_as_text, values)) for values in rows)
    numbered = enumerate(texts, start=1)
    records = (Record(number, number, cells) for number, cells in numbered if any(cells))
    facts = []
    if sheet is None and len(filled) > 1:
        facts.append(f"read the sheet '{name}', not {', '.join(filled[1:])} (--sheet)")
    return records, facts


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 1e16:  # above, not every digit is known
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
    return str(value)


def _json_tables(path: Path, encoding: str | None) -> Iterator[pa.Table]:
    """Yield the rows of a JSON document or of JSON lines as tables with the same schema.

    The schema is only known after the last row, so the file is read twice.
    """
    types: dict[str, pa.DataType] = {}
    for batch in iter_batched(_json_rows(path, encoding), ROWS_AT_ONCE):
        _, rows = zip(*batch, strict=True)
        for name in dict.fromkeys(itertools.chain(*rows)):
            values = [row.get(name) for row in rows]
            types[name] = _common_type(types.get(name, pa.null()), values)
    for batch in iter_batched(_json_rows(path, encoding), ROWS_AT_ONCE):
        numbers, rows = zip(*batch, strict=True)
        columns: dict[str, Any] = {_NUMBER: numbers}
        for name, kind in types.items():
            values = [row.get(name) for row in rows]
            if kind == pa.json_():
                values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
            columns[name] = pa.array(values, kind)
        yield pa.table(columns)


def _common_type(kind: pa.DataType, values: Sequence[Any]) -> pa.DataType:
    """Return the common type of ``kind`` and of ``values``, e.g. float64 for integers and floats;
    the JSON type if there is none.
    """
    with contextlib.suppress(*_NO_COMMON_TYPE):
        other = pa.array(values).type
        has_booleans = any(isinstance(value, bool) for value in values)
        # Arrow would convert booleans to numbers, and add the keys of all objects to each object
        if pa.types.is_boolean(other) == has_booleans and "struct" not in str(other):
            schemas = [pa.schema([("", kind)]), pa.schema([("", other)])]
            return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return pa.json_()


def _json_rows(path: Path, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with its line number, or with its row number in a ``.json``."""
    has_row_numbers = formats.suffix(path) == ".json"
    lines = filter(str.strip, read_text.text_lines(path, encoding))
    beginning = list(itertools.islice(lines, 2))
    if has_row_numbers and (len(beginning) < 2 or beginning[0].lstrip().startswith("[")):
        text = "".join(read_text.text_lines(path, encoding))
        rows = read_text.parse_json(text, path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            expected = "an array of objects, as from DataFrame.to_json(orient='records')"
            raise UserError(f"{path}: expected {expected}, found {text.strip()[:40]!r}")
        yield from enumerate(rows, start=1)
        return
    count = 0
    for number, line in enumerate(read_text.text_lines(path, encoding), start=1):
        if line.isspace():
            continue
        row = read_text.parse_json(line, path, number)
        if not isinstance(row, dict):
            hint = "arrays are read from .json files"
            content = repr(line.strip()[:40])
            raise UserError(f"{path}, line {number}: expected an object ({hint}), found {content}")
        count += 1
        yield count if has_row_numbers else number, row
