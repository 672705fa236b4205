"""Refuse what would end the process instead of being read, deep nesting and decompression bombs,
and half characters, which cannot be written again.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from finetune.errors import UserError

#: Lists and objects inside each other; pyarrow ends the process at some ten thousand of them.
DEEPEST = 100
#: Data that is more times larger than its file was made to be so, if it is too large as well.
_LARGEST_RATIO = 100
#: Bytes of a chunk of rows, and the share of the available memory that they may take.
_MOST, _SHARE_OF_MEMORY = 2**30, 8
#: Bytes of some rows, of all columns, that may be unpacked without being counted before.
_SMALL = 2**28
#: Bytes of a column that are read at once.
_BUFFER = 2**20
#: Encodings of Parquet: texts, lengths and levels one after the other; and numbers of a dictionary.
_WRITTEN_OUT = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
_BY_NUMBER = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')


def refuse_deep(text: str, place: str) -> None:
    """Refuse JSON that is nested too deeply, before it is parsed; ``place`` is for the message.

    Raises:
        UserError: if it has more than :data:`DEEPEST` lists and objects inside each other.
    """
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):  # or a string, whose brackets are text
        depth += bool(found[1]) - bool(found[2])
        if depth > DEEPEST:
            raise UserError(
                f"{place}: more than {DEEPEST} lists and objects inside each other; expected rows "
                "of plain values"
            )


def refuse_deep_file(path: Path, name: str) -> None:
    """Refuse a file of JSON, gzip or not, that is nested too deeply; ``name`` is for the message.

    Raises:
        UserError: likewise.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with (
        gzip.open(path, "rt", encoding="utf-8", errors="replace")
        if zipped
        else path.open(encoding="utf-8", errors="replace")
    ) as lines:
        for line in lines:
            refuse_deep(line, name)


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse a text that no encoding can write; ``place`` is its position, for the message.

    Raises:
        UserError: if it has an unpaired surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(
            f"{place}: {half} is half of a character (a surrogate): was the text cut in the middle?"
        ) from error


def open_parquet(
    path: Path, about: pq.FileMetaData, size: int, groups: Sequence[int]
) -> tuple[pq.ParquetFile, list[str]]:
    """Open a parquet file.

    Args:
        path: The file.
        about: Its metadata.
        size: Rows that are read at once.
        groups: The row groups that are read.

    Returns:
        The file, and the columns whose texts stay compressed as dictionaries, because unpacked they
        may be far larger than the file says; see :func:`unpacked`.

    Raises:
        UserError: if a column is far larger than its file and than the memory.
    """
    texts: dict[str, dict[int, pq.ColumnChunkMetaData]] = {}
    for number in range(about.num_columns):
        column = about.schema.column(number)
        chunks = {group: about.row_group(group).column(number) for group in groups}
        for chunk in chunks.values():
            unpacked_size = chunk.total_uncompressed_size
            if unpacked_size > _LARGEST_RATIO * max(1, chunk.total_compressed_size):
                _refuse_large(unpacked_size, f"{path}, column '{column.path}'")
        if column.physical_type == "BYTE_ARRAY" and column.path == column.name:
            texts[column.path] = chunks
    dictionaries, left = list[str](), _SMALL
    with _opened(path, about, texts) as file:
        for name, chunks in texts.items():
            most = _most_repeated(file, name, chunks, size)
            if most is None or most > left:
                dictionaries.append(name)
            else:
                left -= most
    return _opened(path, about, dictionaries), dictionaries


def _opened(path: Path, about: pq.FileMetaData, dictionaries: Iterable[str]) -> pq.ParquetFile:
    # read ahead, a row group of 650,000 texts is in memory as a whole
    return pq.ParquetFile(
        path,
        metadata=about,
        read_dictionary=list(dictionaries),
        pre_buffer=False,
        buffer_size=_BUFFER,
    )


def _most_repeated(
    file: pq.ParquetFile, name: str, chunks: Mapping[int, pq.ColumnChunkMetaData], size: int
) -> int | None:
    """Return how many bytes the texts of so many rows have at most beyond those in the file, as one
    text of a dictionary may stand for many; None if that is not known.
    """
    most = 0
    for group, chunk in chunks.items():
        encodings = {*chunk.encodings}
        if not encodings <= _WRITTEN_OUT | _BY_NUMBER:
            return None
        if encodings & _BY_NUMBER and chunk.num_values:
            rows = file.iter_batches(batch_size=1, row_groups=[group], columns=[name])
            first = next(rows).column(0)
            # a single one is perhaps that of the row, and the dictionary comes later
            if not isinstance(first, pa.DictionaryArray) or len(first.dictionary) < 2:
                return None
            most = max(most, size * pc.max(pc.binary_length(first.dictionary)).as_py())
    return most


def unpacked(batches: Sequence[pa.RecordBatch], schema: pa.Schema, place: str) -> pa.Table:
    """Return rows of :func:`open_parquet` with the types of ``schema``, string views as strings.

    Raises:
        UserError: if their texts would take too much of the memory.
    """
    size = 0
    for column in (each for batch in batches for each in batch.columns):
        if pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary)
            size += pc.sum(lengths.take(column.indices)).as_py() or 0
    _refuse_large(size, place)
    for number, field in enumerate(schema):
        if pa.types.is_string_view(field.type):  # to which pyarrow casts no dictionary
            schema = schema.set(number, field.with_type(pa.string()))
    return pa.Table.from_batches(batches).cast(schema)


def _refuse_large(size: int, place: str) -> None:
    most = min(_MOST, psutil.virtual_memory().available // _SHARE_OF_MEMORY)
    if size > most:
        raise UserError(
            f"{place}: {size / 2**30:.2g} GiB decompressed; expected {most / 2**30:.2g} GiB at "
            f"most (1/{_SHARE_OF_MEMORY} of the available memory, no more than {_MOST >> 30} GiB)"
        )
