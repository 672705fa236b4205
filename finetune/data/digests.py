"""Digests of rows: for duplicates, and for the fingerprint of a data set.

Each text is hashed once, from the buffers of Arrow, and no text is a Python string but for those
whose white space has to be normalized. Those of many rows are kept in the cache.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image

from finetune.data import arrow, images, kept
from finetune.runtime import activity

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
_SIZE = 16  # bytes of a digest
#: Rows whose hashes are kept for the next run: these take half a second to compute, less to read.
_KEPT = 100_000
_FOLDER, _VERSION = "finetune-digests", 2
_WHITE_SPACE = ("  ", "\n", "\r", "\t", "\xa0")
#: What ``str.strip`` takes off, as a class of characters of RE2.
_SPACE = (
    r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
#: Finds a text that :func:`_plain` would change: white space at its ends, or any of the others.
_NOT_PLAIN = rf"^[{_SPACE}]|[{_SPACE}]$|  |[\n\r\t\x{{a0}}]"
#: Finds a text that is more than white space.
NOT_BLANK = rf"[^{_SPACE}]"


@dataclass(frozen=True)
class Digests:
    """Hashes of the values of a column.

    Attributes:
        exact: Of each value as it is, shape ``(rows, 16)``, uint8.
        plain: To find duplicates: of a text with its white space normalized, likewise.
        known: Which rows are hashed, shape ``(rows,)``, of booleans.
    """

    exact: np.ndarray
    plain: np.ndarray
    known: np.ndarray

    def of(self, numbers: np.ndarray) -> Digests:
        """Return those of some rows, by their numbers."""
        return Digests(self.exact[numbers], self.plain[numbers], self.known[numbers])


#: By rows and column, so that texts are hashed only once.
_DIGESTS: WeakKeyDictionary[Dataset, dict[str, Digests]] = WeakKeyDictionary()


def digests(rows: Dataset, column: str, wanted: np.ndarray | None = None) -> Digests:
    """Return hashes of the values of a column of texts, images or vectors of numbers.

    Where ``text`` is made of several columns, their parts are hashed, not how they are joined.

    Args:
        rows: With the column.
        column: Its name.
        wanted: The numbers of the rows that are needed, or None for all. What is hashed once is
            not again.
    """
    known = _DIGESTS.setdefault(rows, {})
    if column not in known:
        empty = np.zeros((len(rows), _SIZE), np.uint8)
        known[column] = Digests(empty, empty.copy(), np.zeros(len(rows), bool))
    numbers = _missing(known[column], wanted)
    if len(numbers) < _KEPT:
        _hash_rows(rows, column, numbers, known[column])
        return known[column]
    name = _name(rows, column)
    if name and (found := kept.find(_FOLDER, name)):
        known[column] = Digests(**found)
        numbers = _missing(known[column], wanted)
    if len(numbers):
        _hash_rows(rows, column, numbers, known[column])
        if name:
            kept.keep(_FOLDER, name, **vars(known[column]))
    return known[column]


def _missing(known: Digests, wanted: np.ndarray | None) -> np.ndarray:
    """Return the numbers of the wanted rows that are not hashed."""
    return np.flatnonzero(~known.known) if wanted is None else wanted[~known.known[wanted]]


def _name(rows: Dataset, column: str) -> str:
    """Return under which name hashes are kept; empty if they are not."""
    column = _hashed_column(rows, column)
    if not arrow.is_text(rows.data.schema.field(column).type):
        return ""
    return f"{arrow.content_hash(rows, column)}-{_VERSION}"


def remember(rows: Dataset, column: str, hashes: np.ndarray) -> None:
    """Take hashes of a column that were computed before.

    Args:
        rows: Of which :func:`digests` is then asked.
        column: Of images.
        hashes: Shape ``(rows, 16)``, uint8.
    """
    _DIGESTS.setdefault(rows, {})[column] = Digests(hashes, hashes, np.ones(len(rows), bool))


def select(rows: Dataset, numbers: np.ndarray) -> Dataset:
    """Return ``rows.select(numbers)`` with the known hashes of these rows."""
    if len(numbers) == len(rows) and np.array_equal(numbers, np.arange(len(rows))):
        return rows
    selected: Dataset = rows.select(numbers)
    _DIGESTS[selected] = {name: each.of(numbers) for name, each in _DIGESTS.get(rows, {}).items()}
    return selected


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of the content of the rows, in order, independent of where they are stored."""
    whole = hashlib.sha256()
    for name in sorted(dataset):
        whole.update(name.encode())
        hashes = digests(dataset[name], column).exact
        start = 0
        for chunk in arrow.column(dataset[name], "label").chunks:
            whole.update(_joined(hashes[start : start + len(chunk)], chunk))
            start += len(chunk)
    return whole.hexdigest()[:16]


def seen_in(rows: Dataset, others: Dataset, column: str) -> np.ndarray:
    """Return which rows are also among others, white space aside, shape ``(rows,)``."""
    own, theirs = (packed(digests(each, column).plain) for each in (rows, others))
    return np.asarray(pc.is_in(own, value_set=theirs).to_numpy(zero_copy_only=False))


def repeating(rows: Dataset, column: str) -> int:
    """Return how many rows repeat one before them exactly."""
    return len(rows) - int(pc.count_distinct(packed(digests(rows, column).exact)).as_py())


def packed(hashes: np.ndarray) -> pa.FixedSizeBinaryArray:
    """Return hashes of shape ``(rows, width)``, uint8, as an array of Arrow."""
    content = pa.py_buffer(np.ascontiguousarray(hashes))
    kind = pa.binary(hashes.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(hashes), [None, content])


def _joined(hashes: np.ndarray, labels: pa.Array) -> bytes | memoryview:
    """Return each hash followed by ``str`` of its label."""
    if pa.types.is_integer(labels.type) and not labels.null_count:
        parts = [packed(hashes).cast(pa.binary()), labels.cast(pa.string()).cast(pa.binary())]
        joined = pc.binary_join_element_wise(*parts, b"")
        end = np.frombuffer(joined.buffers()[1], np.int32)[len(joined)] if len(joined) else 0
        return memoryview(joined.buffers()[2] or b"")[:end]
    shown = (str(label).encode() for label in labels.to_pylist())
    return b"".join(each.tobytes() + label for each, label in zip(hashes, shown, strict=True))


def _hashed_column(rows: Dataset, column: str) -> str:
    return TEXTS if column == "text" and TEXTS in rows.column_names else column


def _hash_rows(rows: Dataset, column: str, numbers: np.ndarray, result: Digests) -> None:
    """Write the hashes of the rows of these numbers."""
    column = _hashed_column(rows, column)
    rows, done = rows.select_columns([column]), 0
    if isinstance(rows.features[column], Image):
        rows = rows.cast_column(column, Image(decode=False))
    for some, values in arrow.pieces(rows, column, numbers):
        activity.advance("hashing", done, len(numbers))
        done += len(some)
        if arrow.is_text(values.type) and not values.null_count:
            exact = _hashed_texts(values)
            plain = exact.copy()
            other = np.flatnonzero(pc.match_substring_regex(values, _NOT_PLAIN).to_numpy(False))
            for row in other.tolist():
                plain[row] = np.frombuffer(_hash(_plain(values[row].as_py()).encode()), np.uint8)
        else:
            pairs = [_hashed(value) for value in values.to_pylist()]
            exact, plain = (
                np.frombuffer(b"".join(each), np.uint8).reshape(-1, _SIZE)
                for each in zip(*pairs, strict=True)
            )
        result.exact[some], result.plain[some], result.known[some] = exact, plain, True


def _hashed_texts(values: pa.Array) -> np.ndarray:
    """Return a hash of each text, shape ``(rows, 16)``, uint8."""
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1].tolist()
    view = memoryview(content if content is not None else b"")
    hashed = [_hash(view[begin:end]) for begin, end in itertools.pairwise(ends)]
    return np.frombuffer(b"".join(hashed), np.uint8).reshape(-1, _SIZE)


def _hashed(value: Any) -> tuple[bytes, bytes]:
    """Return the hash of a value, and that to find its duplicates by."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return _hash(_bytes(value)), _hash(_bytes([_plain(part) for part in value]))
    if isinstance(value, dict):
        content = images.read_bytes(value)
    elif isinstance(value, str):
        return _hash(value.encode()), _hash(_plain(value).encode())
    else:
        content = np.asarray(value, dtype=np.float64).tobytes()
    return _hash(content), _hash(content)


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()


def _bytes(parts: list[str]) -> bytes:
    """Return bytes that no other parts have, and no text: 0xff is not in UTF-8."""
    return b"".join(b"%d\xff%s" % (len(part.encode()), part.encode()) for part in parts)


def _plain(text: str) -> str:
    """Return a text with single spaces only; the usual one, which has no others, is not split."""
    is_plain = text == text.strip() and not any(each in text for each in _WHITE_SPACE)
    return text if is_plain else " ".join(text.split())
