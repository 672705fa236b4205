"""Digests of rows: for duplicates, corrections, and the fingerprint of a data set.

Texts are hashed from the buffers of Arrow, batch by batch; no text becomes a Python string, except
those whose white space has to be normalized.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
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
_NOT_PLAIN = rf"^[{_SPACE}]|[{_SPACE}]$|  |[\n\r\t\x{{a0}}]"
#: Finds a text that is more than white space.
NOT_BLANK = rf"[^{_SPACE}]"
#: Fingerprints by split, column and what ``datasets`` identifies the rows by.
_FINGERPRINTS: dict[tuple[str, ...], str] = {}


@dataclass(frozen=True)
class Digests:
    """Digests of the values of a column.

    Attributes:
        exact: Of each value as it is, shape ``(rows, 16)``, uint8.
        plain: To find duplicates: of a text with its white space normalized, likewise.
    """

    exact: np.ndarray
    plain: np.ndarray


def digests(rows: Dataset, column: str, numbers: np.ndarray | None = None) -> Digests:
    """Return the digests of a column of texts, images or vectors of numbers.

    Where ``text`` is made of several columns, their parts are hashed, not how they are joined.

    Args:
        rows: With the column.
        column: Its name.
        numbers: Row numbers, each once, or None for all rows in order.
    """
    name = TEXTS if column == "text" and TEXTS in rows.column_names else column
    rows = rows.select_columns([name])
    if isinstance(rows.features[name], Image):
        rows = rows.cast_column(name, Image(decode=False))
    wanted = np.arange(len(rows)) if numbers is None else numbers
    places = np.empty(len(rows), dtype=np.int64)
    places[wanted] = np.arange(len(wanted))
    exact, plain = (np.zeros((len(wanted), _SIZE), np.uint8) for _ in range(2))
    done = 0
    for piece, values in arrow.pieces(rows, name, wanted):
        activity.advance("hashing", done, len(wanted))
        done += len(piece)
        if arrow.is_text(values.type) and not values.null_count:
            hashes = _hash_texts(values)
            plain_hashes = hashes.copy()
            for row in np.flatnonzero(pc.match_substring_regex(values, _NOT_PLAIN).to_numpy(False)):
                text = " ".join(values[int(row)].as_py().split())
                plain_hashes[row] = np.frombuffer(_hash(text.encode()), np.uint8)
        else:
            pairs = [_hash_value(value) for value in values.to_pylist()]
            hashes, plain_hashes = (
                np.frombuffer(b"".join(side), np.uint8).reshape(-1, _SIZE)
                for side in zip(*pairs, strict=True)
            )
        exact[places[piece]], plain[places[piece]] = hashes, plain_hashes
    return Digests(exact, plain)


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of the content of the rows, in order, independent of where they are stored."""
    names = sorted(dataset)
    key = column, *names, *(dataset[name]._fingerprint for name in names)
    if key not in _FINGERPRINTS:
        whole = hashlib.sha256()
        for name in names:
            whole.update(name.encode())
            hashes, start = digests(dataset[name], column).exact, 0
            for chunk in arrow.column(dataset[name], "label").chunks:
                whole.update(_join_labels(hashes[start : start + len(chunk)], chunk))
                start += len(chunk)
        _FINGERPRINTS[key] = whole.hexdigest()[:16]
    return _FINGERPRINTS[key]


def seen_in(rows: Dataset, others: Dataset, column: str) -> np.ndarray:
    """Return which rows are also among others, white space aside, shape ``(rows,)``."""
    hashes, other_hashes = (packed(digests(part, column).plain) for part in (rows, others))
    return np.asarray(pc.is_in(hashes, value_set=other_hashes).to_numpy(zero_copy_only=False))


def repeating(rows: Dataset, column: str) -> int:
    """Return how many rows repeat one before them exactly."""
    return len(rows) - int(pc.count_distinct(packed(digests(rows, column).exact)).as_py())


def packed(hashes: np.ndarray) -> pa.FixedSizeBinaryArray:
    """Return hashes of shape ``(rows, width)``, uint8, as an array of Arrow."""
    content = pa.py_buffer(np.ascontiguousarray(hashes))
    kind = pa.binary(hashes.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(hashes), [None, content])


def _join_labels(hashes: np.ndarray, labels: pa.Array) -> bytes | memoryview:
    """Return each hash followed by ``str`` of its label."""
    if pa.types.is_integer(labels.type) and not labels.null_count:
        parts = [packed(hashes).cast(pa.binary()), labels.cast(pa.string()).cast(pa.binary())]
        joined = pc.binary_join_element_wise(*parts, b"")
        end = np.frombuffer(joined.buffers()[1], np.int32)[len(joined)] if len(joined) else 0
        return memoryview(joined.buffers()[2] or b"")[:end]
    texts = (str(label).encode() for label in labels.to_pylist())
    return b"".join(row.tobytes() + text for row, text in zip(hashes, texts, strict=True))


def _hash_texts(values: pa.Array) -> np.ndarray:
    """Return a hash of each text, shape ``(rows, 16)``, uint8."""
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1].tolist()
    view = memoryview(content if content is not None else b"")
    hashes = [_hash(view[begin:end]) for begin, end in itertools.pairwise(ends)]
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _SIZE)


def _hash_value(value: Any) -> tuple[bytes, bytes]:
    """Return the hash of a value, and that to find its duplicates by."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return _hash(_join_parts(value)), _hash(_join_parts([" ".join(p.split()) for p in value]))
    if isinstance(value, str):
        return _hash(value.encode()), _hash(" ".join(value.split()).encode())
    if isinstance(value, dict):
        content = images.read_bytes(value)
    else:
        content = np.asarray(value, dtype=np.float64).tobytes()
    return _hash(content), _hash(content)


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()


def _join_parts(parts: list[str]) -> bytes:
    """Return bytes that no other parts have, and no text: 0xff is not in UTF-8."""
    return b"".join(b"%d\xff%s" % (len(part.encode()), part.encode()) for part in parts)
