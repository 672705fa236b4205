"""Read files of rows chunk by chunk, for training, evaluation and prediction alike.

A file is always cut into the same chunks, whichever process reads it, so that processes can divide
the chunks among themselves and an interrupted prediction can be resumed.

A missing value is None. In ``.csv`` and ``.tsv`` files it is an empty field, quoted or not, and
nothing else: the words NA, null and None are text. In JSON lines it is null or an absent key, in
parquet a null; there an empty text is a value. In a ``.txt`` file every line is a text, even if
blank, so that every line gets a prediction. In a ``.csv`` or ``.tsv`` of one column a blank line is
an empty field, elsewhere not a row.

How a file of text is compressed, encoded, separated and quoted, :mod:`finetune.data.layout` and
:mod:`finetune.data.delimited` find out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune.data import charsets, columnar, delimited, json_documents, spreadsheet
from finetune.data import lines as of_lines
from finetune.data.delimited import Parse, Placed, Row, Unparsed
from finetune.data.layout import USUAL, Layout, ReadOptions, detected, opened, two_encodings
from finetune.data.lines import Line
from finetune.errors import UserError, suggestion
from finetune.runtime import formats
from finetune.runtime.formats import SEPARATORS

#: Enough rows to sort by length, few enough to hold in memory and to redo.
CHUNK_ROWS = 1024

Rows = list[Row]
#: Returns whether the chunk of this number is for this process.
Mine = Callable[[int], bool]
#: Rows, or how many there are in a chunk of another process, and where in the input they end:
#: bytes, or rows where they can be counted.
Read = tuple[Rows | pa.Table | int, int]
Reader = Callable[[Path], Iterator[Read]]
#: Joins lines to rows as they are, and returns what parses some of them.
Splitter = Callable[[Path, Layout, Iterator[Line]], tuple[Iterator[Unparsed], Parse]]
#: Positions that a message names.
SHOWN_PLACES = 5
#: The formats that an option is for, and how to say that.
_READ_WITH = {
    "--csv_quoting": (tuple(SEPARATORS), "a .csv or .tsv file"),
    "--csv_separator": (tuple(SEPARATORS), "a .csv or .tsv file"),
    "--encoding": (formats.TEXTS, "a file of text"),
    "--sheet": ((formats.SPREADSHEET,), "a spreadsheet"),
}
_HINTS = {
    **dict.fromkeys((".xls", ".xlsb", ".ods"), "save it as .xlsx"),
    ".parquet.gz": "it is compressed: gunzip -k FILE",
    ".xz": "it is compressed: unxz -k FILE",
    **dict.fromkeys((".gz", ".bz2", ".zst"), "what is in it has to be in its name, as .csv.gz"),
    ".zip": "what is in it has to be in its name, as .csv.zip; or unzip it",
}


@dataclass(frozen=True)
class Chunk:
    """Some rows of the input.

    Attributes:
        number: Of the chunk, from 0.
        rows: As dictionaries, or as a table where the columns have types of their own.
        end: Where it ends in the input: bytes of a text, rows of anything else, also of a
            compressed text.
        skipped: How many rows it has, if it is another process's: they were counted, not parsed,
            and ``rows`` is empty.
    """

    number: int
    rows: Rows | pa.Table
    end: int = 0
    skipped: int = 0

    def __len__(self) -> int:
        return self.skipped or len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Their names, in the order in which they occur."""
        if not isinstance(self.rows, list):
            return list(self.rows.column_names)
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def values(self, column: str) -> list[Any]:
        """Return one column; None where a row has no such value."""
        if isinstance(self.rows, list):
            return [row.get(column) for row in self.rows]
        return list(self.rows.column(column).to_pylist())

    def table(self) -> pa.Table:
        """Return the rows as a table; the types of dictionaries are inferred."""
        if not isinstance(self.rows, list):
            return self.rows
        return pa.table({name: self.values(name) for name in self.columns})

    def dictionaries(self) -> Rows:
        """Return the rows as Python's own values."""
        return self.rows if isinstance(self.rows, list) else list(self.rows.to_pylist())


def existing(name: str) -> Path:
    """Return the path of a file or a directory.

    Raises:
        UserError: if it does not exist; the most similar name in its directory is suggested.
    """
    path = Path(name).expanduser()
    if not path.exists():
        there = [each.name for each in path.parent.glob("*")] if path.parent.exists() else []
        raise UserError(f"no such file or directory: {name}{suggestion(path.name, there)}")
    return path


def chunks(
    path: Path,
    reader: Reader | None = None,
    layout: Layout | None = None,
    mine: Mine = lambda number: True,
) -> Iterator[Chunk]:
    """Read the rows of a file in order.

    Chunks of other processes are counted as cheaply as is exact: row groups are not read, lines
    that are rows not decoded, quoted fields only told apart. A malformed row in them is told by the
    process that parses it.

    Args:
        path: A file whose suffix is one of :data:`READERS`, in upper or lower case.
        reader: Reads an input that is not a file; it may have no rows.
        layout: Of a file of text, as :func:`inspected` returns it; None to detect it.
        mine: Which chunks to parse.

    Raises:
        UserError: if the file is malformed, with the line; or if it holds no rows.
    """
    number = -1
    if reader is None and layout is None:
        layout = inspected(path)[0]
    rows_of = reader or partial(_read, layout or USUAL, mine)
    with _explained(path):
        for number, (rows, end) in enumerate(rows_of(path)):
            if mine(number):
                yield Chunk(number, rows, end)
            else:
                yield Chunk(number, [], end, rows if isinstance(rows, int) else len(rows))
    if number < 0 and reader is None:
        raise UserError(f"{path} holds no rows")


def _read(layout: Layout, mine: Mine, path: Path) -> Iterator[Read]:
    return READERS[formats.suffix(path)](layout, path, mine)


def how_to_convert(path: Path) -> str:
    """Return a hint for a file of another format; empty if there is none."""
    hint = _HINTS.get(formats.suffix(path), "").replace("FILE", path.name)
    return hint and f"; {hint}"


def inspected(path: Path, options: ReadOptions | None = None) -> tuple[Layout, str]:
    """Return how a file is to be read, and a sentence for the user; empty if it is as usual.

    Args:
        path: A file of any format.
        options: What the user says of it.

    Raises:
        UserError: if an option is not for such a file, or it cannot be read.
    """
    options, suffix = options or ReadOptions(), formats.suffix(path)
    for flag, value in options.named.items():
        suffixes, expected = _READ_WITH[flag]
        if suffix not in suffixes:
            raise UserError(f"{flag} {value}: {path} is not {expected}")
    if suffix == formats.SPREADSHEET:
        with _explained(path):
            sheet, sentence = spreadsheet.chosen(path, options.sheet)
        return Layout(sheet=sheet), sentence
    if suffix not in formats.TEXTS:
        return USUAL, ""
    with _explained(path):
        layout, sentence = detected(path, options)
    if suffix not in SEPARATORS:
        return layout, sentence
    with _explained(path):
        quoting, of_quoting = delimited.quoting(path, layout, options.quoting)
    told = "; ".join(each for each in (sentence, of_quoting) if each)
    layout = replace(layout, quoting=quoting)
    with _explained(path):
        return replace(layout, lines_are_rows=delimited.lines_are_rows(path, layout)), told


def whole(path: Path, options: ReadOptions) -> str:
    """Return the text of a ``.txt`` file that is a single row.

    Raises:
        UserError: if it is no text.
    """
    with _explained(path):
        layout = detected(path, options)[0]
        with opened(path) as file:
            return file.read().decode(layout.encoding)


def places(path: Path, rows: Sequence[int], layout: Layout | None = None) -> str:
    """Return the positions of the first few of some rows in a file: ``lines 5, 9``.

    Args:
        path: A file; in a format without lines, rows are counted from 1.
        rows: Row numbers, from 0, sorted; at least one.
        layout: As :func:`inspected` returns it; the usual one if None.
    """
    noun, numbers = positions(path, rows[:SHOWN_PLACES], layout)
    return shown_places(noun, numbers) + ", ..." * (len(rows) > SHOWN_PLACES)


def positions(
    path: Path, rows: Sequence[int], layout: Layout | None = None
) -> tuple[str, list[int]]:
    """Return what a position is called, ``line`` or ``row``, and that of each of some rows.

    Args:
        path: As of :func:`places`.
        rows: Row numbers, from 0, in any order; the file is read once, up to the last.
        layout: As of :func:`places`.
    """
    layout = layout or Layout(separator=SEPARATORS.get(formats.suffix(path), ","))
    wanted, end = {*rows}, max(rows) + 1
    if splitter := _SPLITTERS.get(formats.suffix(path)):
        with opened(path) as binary, delimited.long_fields():
            lines = of_lines.split(path, layout, binary)
            unparsed, _ = splitter(path, layout, lines)
            some = enumerate(itertools.islice(unparsed, end))
            found = {row: first for row, (first, _, _) in some if row in wanted}
        return "line", [found[row] for row in rows]
    if layout.sheet:
        several = enumerate(itertools.islice(spreadsheet.rows(path, layout.sheet), end))
        found = {row: number for row, (number, _) in several if row in wanted}
        return "row", [found[row] for row in rows]
    return "row", [row + 1 for row in rows]


def shown_places(noun: str, numbers: Sequence[int]) -> str:
    """Return positions in words: ``lines 5, 9``."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a ``UserError``.

    Raises:
        UserError: with the line, where it is known.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_throughout(path, error) from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _not_throughout(path: Path, error: UnicodeDecodeError) -> UserError:
    """Return the refusal of a file that begins in an encoding and does not go on in it."""
    encoding, where = error.encoding.replace("_", "-"), ""
    if encoding == "utf-8" and (refusal := two_encodings(path)):
        return refusal
    if not encoding.startswith(("utf-16", "utf-32")):  # of which a byte is no end of a line
        with opened(path) as lines:
            numbered = enumerate(lines, start=1)
            is_right = partial(charsets.decodes, encoding=encoding)
            wrong = (f"line {n}, " for n, each in numbered if not is_right(each))
            where = next(wrong, "")
    return UserError(
        f"{path} is not {encoding} throughout: {error.reason} ({where}byte "
        f"{error.object[error.start]:#x}); --encoding NAME reads all of it in another, such as "
        f"{'cp1252' if encoding == 'utf-8' else 'utf-8'}; or correct that line"
    )


def _of_text(splitter: Splitter, layout: Layout, path: Path, mine: Mine) -> Iterator[Read]:
    """Yield the rows of a text file, a chunk at a time."""
    is_compressed, rows = bool(formats.compression(path)), 0
    with opened(path) as binary:
        lines = of_lines.split(path, layout, binary)
        with delimited.long_fields():
            unparsed, parse = splitter(path, layout, lines)
        for number in itertools.count():
            some = itertools.islice(unparsed, CHUNK_ROWS)
            parsed = parse(some) if mine(number) else None
            with delimited.long_fields():
                read = sum(1 for _ in some) if parsed is None else [row for _, _, row in parsed]
            if not read:
                return
            rows += len(read) if isinstance(read, list) else read
            yield read, rows if is_compressed else binary.tell()


def _delimited(layout: Layout, path: Path, mine: Mine) -> Iterator[Read]:
    """Yield tables whose columns are all text."""
    before = 0
    for rows, end in _of_text(delimited.split, layout, path, mine):
        if not isinstance(rows, list):
            before += rows
            yield rows, end
            continue
        schema = pa.schema([(name, pa.string()) for name in rows[0]])
        table = pa.Table.from_pylist(rows, schema=schema)
        if wrong := delimited.no_row(table):
            where = places(path, [before + row for row in wrong[0]], layout)
            raise UserError(f"{path}, {where}: {wrong[1]}")
        before += len(rows)
        yield table, end


def _json_lines(
    path: Path, layout: Layout, lines: Iterator[Line]
) -> tuple[Iterator[Unparsed], Parse]:
    decode = of_lines.decoder(lines, layout)

    def parse(some: Iterable[Unparsed]) -> Iterator[Placed]:
        for number, _, line in some:
            yield number, number, json_documents.of_line(decode(line), f"{path}, line {number}")

    return ((n, n, line) for n, line in of_lines.not_blank(lines, layout)), parse


def sliced(rows: Sequence[Any]) -> Iterator[Read]:
    """Return rows that are in memory, a chunk at a time."""
    for start in range(0, len(rows), CHUNK_ROWS):
        some = rows[start : start + CHUNK_ROWS]
        yield some, start + len(some)


def _lines(_: Path, layout: Layout, lines: Iterator[Line]) -> tuple[Iterator[Unparsed], Parse]:
    decode = of_lines.decoder(lines, layout)

    def parse(some: Iterable[Unparsed]) -> Iterator[Placed]:
        for number, _, line in some:
            yield number, number, {"text": decode(line).removesuffix("\n").removesuffix("\r")}

    return ((n, n, line) for n, line in enumerate(lines, start=1)), parse


def _json(layout: Layout, path: Path, mine: Mine) -> Iterator[Read]:
    """Yield the rows of a JSON document; JSON lines may have that suffix, too."""
    with opened(path) as binary:
        lines = io.TextIOWrapper(binary, encoding=layout.encoding)
        first, second = (next((line for line in lines if line.strip()), "") for _ in range(2))
        if json_documents.is_object(first) and json_documents.is_object(second):
            yield from _of_text(_json_lines, layout, path, mine)
            return
        text = first + second + lines.read()
    yield from sliced(json_documents.rows(text, path))


def _of_sheet(layout: Layout, path: Path, mine: Mine) -> Iterator[Read]:
    """Yield the rows of a spreadsheet as tables whose columns are all text."""
    found, end = (row for _, row in spreadsheet.rows(path, layout.sheet)), 0
    for number in itertools.count():
        if not (some := list(itertools.islice(found, CHUNK_ROWS))):
            return
        end += len(some)
        schema = pa.schema([(name, pa.string()) for name in some[0]])
        yield pa.Table.from_pylist(some, schema=schema) if mine(number) else len(some), end


_SPLITTERS: dict[str, Splitter] = {
    **dict.fromkeys(SEPARATORS, delimited.split),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".txt": _lines,
}
#: By the suffix of a file.
READERS: dict[str, Callable[[Layout, Path, Mine], Iterator[Read]]] = {
    **{suffix: partial(_of_text, splitter) for suffix, splitter in _SPLITTERS.items()},
    **dict.fromkeys(SEPARATORS, _delimited),
    ".json": _json,
    ".parquet": lambda layout, path, mine: columnar.parquet(path, CHUNK_ROWS, mine),
    ".arrow": lambda layout, path, mine: columnar.arrow(path, CHUNK_ROWS),
    ".feather": lambda layout, path, mine: columnar.arrow(path, CHUNK_ROWS),
    formats.SPREADSHEET: _of_sheet,
}
#: Suffixes of formats that are read line by line.
WITH_LINES = tuple(_SPLITTERS)
