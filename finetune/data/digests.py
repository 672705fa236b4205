"""Digests of rows: for duplicates, corrections, and the fingerprint of a data set."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image

from finetune.data import arrow, images
from finetune.runtime import activity

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
_SIZE = 16  # bytes of a digest
#: What ``str.strip`` removes, as a class of characters of RE2.
_SPACE = (
    r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
#: Finds a text whose white space is not single blanks between words.
_NOT_NORMAL = rf"^[{_SPACE}]|[{_SPACE}]$|  |[\n\r\t\x{{a0}}]"
#: Finds a text that is more than white space.
NOT_BLANK = rf"[^{_SPACE}]"
#: Fingerprints by split, column and what ``datasets`` identifies the rows by.
_FINGERPRINTS: dict[tuple[str, ...], str] = {}


def hash_rows(
    rows: Dataset, column: str, numbers: np.ndarray | None = None, *, normalize: bool = False
) -> np.ndarray:
    """Return the hash of what each row has in a column, shape ``(rows, 16)``, uint8.

    Args:
        rows: With the column, of texts, images or vectors of numbers. Where ``text`` is made of
            several columns, their parts are hashed, not how they are joined.
        column: Its name.
        numbers: Row numbers, each once, or None for all rows in order.
        normalize: Whether texts that differ in white space only have the same hash.
    """
    name = stored_column(rows, column)
    rows = rows.select_columns([name])
    if isinstance(rows.features[name], Image):
        rows = rows.cast_column(name, Image(decode=False))
    numbers = np.arange(len(rows)) if numbers is None else numbers
    places = np.empty(len(rows), dtype=np.int64)
    places[numbers] = np.arange(len(numbers))
    hashes = np.zeros((len(numbers), _SIZE), np.uint8)
    done = 0
    for piece, values in arrow.pieces(rows, name, numbers):
        activity.advance("hashing", done, len(numbers))
        done += len(piece)
        if arrow.is_text(values.type) and not values.null_count:
            digests = _hash_texts(values, normalize)
        else:
            digests = [_hash_value(value, normalize) for value in values.to_pylist()]
        hashes[places[piece]] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _SIZE)
    return hashes


def stored_column(rows: Dataset, column: str) -> str:
    """Return the column with what the model reads: the parts of a text that has several."""
    return TEXTS if column == "text" and TEXTS in rows.column_names else column


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of the content of the rows, in order, independent of where they are stored."""
    names = sorted(dataset)
    key = column, *names, *(dataset[name]._fingerprint for name in names)
    if key not in _FINGERPRINTS:
        total = hashlib.sha256()
        for name in names:
            total.update(name.encode())
            hashes = hash_rows(dataset[name], column)
            for labels in arrow.column(dataset[name], "label").chunks:
                texts = (str(label).encode() for label in labels.to_pylist())
                digests = (row.tobytes() for row in hashes[: len(labels)])
                total.update(b"".join(map(bytes.__add__, digests, texts)))
                hashes = hashes[len(labels) :]
        _FINGERPRINTS[key] = total.hexdigest()[:16]
    return _FINGERPRINTS[key]


def seen_in(rows: Dataset, others: Dataset, column: str) -> np.ndarray:
    """Return which rows are also among others, white space aside, shape ``(rows,)``."""
    hashes, others_hashes = (
        to_arrow(hash_rows(part, column, normalize=True)) for part in (rows, others)
    )
    return np.asarray(pc.is_in(hashes, value_set=others_hashes).to_numpy(zero_copy_only=False))


def repeating(rows: Dataset, column: str) -> int:
    """Return how many rows repeat one before them exactly."""
    return len(rows) - int(pc.count_distinct(to_arrow(hash_rows(rows, column))).as_py())


def to_arrow(hashes: np.ndarray) -> pa.FixedSizeBinaryArray:
    """Return hashes of shape ``(rows, width)``, uint8, as an array of Arrow."""
    content = pa.py_buffer(np.ascontiguousarray(hashes))
    kind = pa.binary(hashes.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(hashes), [None, content])


def _hash_texts(values: pa.Array, normalize: bool) -> list[bytes]:
    """Return the hash of each text, from the buffers of Arrow: twice as fast as Python strings."""
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1].tolist()
    view = memoryview(content if content is not None else b"")
    hashes = [_hash(view[begin:end]) for begin, end in itertools.pairwise(ends)]
    if normalize:
        for row in np.flatnonzero(arrow.matching(values, _NOT_NORMAL)).tolist():
            hashes[row] = _hash_value(values[row].as_py(), normalize)
    return hashes


def _hash_value(value: Any, normalize: bool) -> bytes:
    if isinstance(value, dict):
        return _hash(images.read_bytes(value))
    is_list = isinstance(value, list) and bool(value) and isinstance(value[0], str)
    if not (is_list or isinstance(value, str)):
        return _hash(np.asarray(value, dtype=np.float64).tobytes())
    texts = value if is_list else [value]
    parts = [(" ".join(text.split()) if normalize else text).encode() for text in texts]
    if is_list:  # bytes that no other parts have, and no text: 0xff is not in UTF-8
        parts = [b"%d\xff%s" % (len(part), part) for part in parts]
    return _hash(b"".join(parts))


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
