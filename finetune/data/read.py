"""Read a file of rows into Arrow, once: later starts map the copy in the cache of ``datasets``.

The copy is keyed by the content of the file and by what the user said about it. A small record of
size, modification time and inode spares opening a file that has not changed since.

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
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from datasets.exceptions import DatasetGenerationError
from python_calamine import CalamineError, CalamineWorkbook, SheetVisibleEnum

from finetune.data import arrow, caches, read_json, read_text
from finetune.data.read_text import ReadOptions as ReadOptions  # of callers
from finetune.errors import UserError, suggestion
from finetune.runtime import activity, formats, hub
from finetune.runtime.files import write_whole

if TYPE_CHECKING:
    from finetune.errors import Report

#: Part of the key of a copy: raise it when the same file is read in another way.
VERSION = 4
#: The folders of the copies, and of the records of files, in the cache of ``datasets``.
FOLDER, RECORDS = "finetune-files", "finetune-records"
#: Suffixes of the files that can be read, without that of a compression.
READABLE = (*formats.FILES, ".txt")
#: Those whose first row has the names of the columns.
_WITH_RECORDS = (*formats.SEPARATORS, formats.SPREADSHEET)
_ROWS_AT_ONCE = 1024
#: How a spreadsheet writes characters that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")
#: The attributes and the content of a cell that has any.
_CELL = re.compile(rb"<c\b([^>]*)(?<!/)>(.*?)</c>", re.S)
#: Errors of what reads a file, and of the disk.
_UNREADABLE = (
    *(CalamineError, NotImplementedError, OSError, RecursionError, ValueError),
    *(pa.ArrowException, zipfile.BadZipFile),
)

#: The rows of a file, how it was read, and the facts that the user is told.
Copy = tuple[datasets.Dataset, ReadOptions, list[str]]


def read_file(path: Path, options: ReadOptions, report: Report | None = None) -> datasets.Dataset:
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
        numbers = read_json.record_lines(path, layout.encoding)
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


#: Keeps `datasets` from replacing `open` and `Path` here by versions that open URLs, as it does in
#: the module of each builder (5.2, `streaming.extend_module_for_streaming`).
_patched_for_streaming = True


class _FileBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]  # datasets is not typed
    """Copies one file into the cache; its description holds what was detected, as JSON."""

    def __init__(self, path: Path, options: ReadOptions, key: str) -> None:
        self.path, self.options = path, options
        super().__init__(
            cache_dir=str(hub.caches()["datasets"]),
            dataset_name=FOLDER,
            config_name=key,
            config_id=key,
        )

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator("train")]

    def _generate_tables(self) -> Iterator[tuple[Any, pa.Table]]:
        layout, facts, rows = self.options, list[str](), 0
        if (suffix := formats.suffix(self.path)) == formats.SPREADSHEET:
            layout, facts = _choose_sheet(self.path, layout)
        elif suffix in formats.TEXTS:
            layout, facts = read_text.detect(self.path, layout)
        self.info.description = json.dumps([asdict(layout), facts])
        for number, table in enumerate(_tables(self.path, layout)):
            yield datasets.builder.Key(0, number), table
            rows += len(table)
            activity.advance(f"reading {self.path.name}", rows, None)
        if not rows:
            raise UserError(f"{self.path} holds no rows")


def _tables(path: Path, layout: ReadOptions) -> Iterator[pa.Table]:
    """Return the rows of a file; ``layout`` says how it is read."""
    suffix = formats.suffix(path)
    if suffix in _WITH_RECORDS:
        return read_text.tables(record.fields for record in _records(path, layout))
    if suffix not in formats.TEXTS:
        return _arrow_tables(path)
    return (read_text.line_tables if suffix == ".txt" else read_json.tables)(path, layout.encoding)


def _records(path: Path, layout: ReadOptions) -> Iterator[read_text.Record]:
    is_sheet = formats.suffix(path) == formats.SPREADSHEET
    return (_sheet_records if is_sheet else read_text.records)(path, layout)


def _arrow_tables(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet or Arrow file in types that ``datasets`` has."""
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
        target = arrow.stored(schema)
        for batch in batches:
            yield arrow.decoded(pa.Table.from_batches([batch])).cast(target)


def _choose_sheet(path: Path, options: ReadOptions) -> tuple[ReadOptions, list[str]]:
    """Return how a spreadsheet is read, and a fact where several visible sheets have rows.

    Raises:
        UserError: If it cannot be read, has no such sheet, or holds formulas without a value.
    """
    filled, facts = [], list[str]()
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
    _refuse_formulas_without_value(path)
    if options.sheet is None and len(filled) > 1:
        facts = [f"read the sheet '{filled[0]}', not {', '.join(filled[1:])} (--sheet)"]
    return replace(options, sheet=options.sheet or filled[0]), facts


def _sheet_records(path: Path, options: ReadOptions) -> Iterator[read_text.Record]:
    """Yield the rows of a sheet that are not empty, the names of the columns first.

    Raises:
        UserError: If two columns have one name, or a value stands in a column without one.
    """
    header: list[str] = []
    with CalamineWorkbook.from_path(path) as book:
        for number, values in enumerate(
            book.get_sheet_by_name(options.sheet or "").iter_rows(), start=1
        ):
            cells = [_as_text(value) for value in values]
            if not any(cells):
                continue
            if not header:
                while not cells[-1]:
                    cells.pop()
                header = [*cells]
                read_text.refuse_repeated(path, header)
            elif any(cells[len(header) :]):
                raise UserError(
                    f"{path}, sheet '{options.sheet}', row {number}: a value is in a column "
                    "without a name"
                )
            cells += [""] * len(header)  # of a row that is shorter
            yield read_text.Record(number, number, cells[: len(header)])


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


def _refuse_formulas_without_value(path: Path) -> None:
    """Refuse cells whose formula no program has computed: calamine reads them as empty."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            content = archive.read(name) if "/worksheets/" in name else b""
            for attributes, inner in _CELL.findall(content) if b"<f" in content else ():
                # a text that is empty is a value, which only its type tells
                has_value = b't="str"' in attributes or re.search(rb"<v>[^<]|<is>", inner)
                if re.search(rb"<f[\s/>]", inner) and not has_value:
                    cell = re.search(rb'\br="(\w+)"', attributes)
                    raise UserError(
                        f"{path}, {name}: the formula in {cell[1].decode() if cell else 'a cell'} "
                        "has no value, as no spreadsheet has computed it: open the file in one "
                        "and save it"
                    )


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
    with _explain(path), without_progress_bars():
        digest = _digest(path)
        facts = (digest, formats.suffix(path), formats.compression(path), options, VERSION)
        key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
        copy = _load_copy(path, options, key)
        if copy is None:
            _FileBuilder(path, options, key).download_and_prepare(verification_mode="no_checks")
            if _digest(path) != digest:
                shutil.rmtree(_folder(key))
                raise UserError(f"{path} has changed while it was read: start again")
            copy = _load_copy(path, options, key)
            assert copy is not None
        return copy


def _load_copy(path: Path, options: ReadOptions, key: str) -> Copy | None:
    """Return a copy, mapped into memory; None if there is none. A damaged one is removed.

    The library renames a copy into its place when it is complete; beside it another process may be
    writing one.
    """
    if not _folder(key).exists():
        return None
    with contextlib.suppress(pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        builder = _FileBuilder(path, options, key)
        (layout, facts), rows = json.loads(builder.info.description), builder.as_dataset("train")
        if len(rows) == builder.info.splits["train"].num_examples:
            return rows, ReadOptions(**layout), facts
    shutil.rmtree(_folder(key))
    return None


def _folder(key: str) -> Path:
    """Return where the library keeps a copy: below the version of its builder."""
    return caches.place(FOLDER, key) / "0.0.0"


def _digest(path: Path) -> str:
    """Return the hash of a file, which is read only if its size, times or inode have changed."""
    status = path.stat()
    # a file that is replaced or rewritten may have the modification time of the one before
    times = (status.st_mtime_ns, status.st_ctime_ns)
    facts = (str(path.resolve()), status.st_size, *times, status.st_ino)
    record = caches.place(RECORDS, hashlib.sha256(repr(facts).encode()).hexdigest()[:24])
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        return record.read_text(encoding="ascii")
    with path.open("rb") as file:
        digest = str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())
    record.parent.mkdir(parents=True, exist_ok=True)
    write_whole(record, digest)
    return digest


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep the library from drawing a bar of its own; progress is reported as an activity."""
    was_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not was_disabled:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a ``UserError``."""
    try:
        yield
    except DatasetGenerationError as error:
        with _explain(path):
            raise error.__cause__ or OSError(str(error)) from None
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EROFS):
            raise caches.unwritable(error) from error
        raise UserError(f"cannot read {path}: {error}") from error
