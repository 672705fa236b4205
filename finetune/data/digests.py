"""Digests of rows: for duplicates, corrections, and the fingerprint of a data set."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image

from finetune.data import arrow, images, targets
from finetune.runtime import activity

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
_SIZE = 16  # bytes of a digest
#: What ``str.strip`` removes, as characters of RE2; U+2028 and others are of the class Z.
_SPACE = r"\t-\r\x1c-\x20\x{85}\pZ"
#: Finds a text whose white space is not single blanks between words.
_NOT_NORMAL = rf"^[{_SPACE}]|[{_SPACE}]$|  |[\n\r\t\x{{a0}}]"
#: Fingerprints by split, column and what ``datasets`` identifies the rows by.
_FINGERPRINTS: dict[tuple[str, ...], str] = {}


def hash_rows(rows: Dataset, column: str, *, normalize: bool = False) -> pa.FixedSizeBinaryArray:
    """Return the hash of 16 bytes of the text, image or vector that each row has in a column.

    Where ``text`` is made of several columns, their parts are hashed, not how they are joined.
    With ``normalize`` texts that differ in white space only have the same hash.
    """
    name = stored_column(rows, column)
    rows = rows.select_columns([name])
    if isinstance(rows.features[name], Image):
        rows = rows.cast_column(name, Image(decode=False))
    hashes, count = np.zeros((len(rows), _SIZE), np.uint8), 0
    for numbers, values in arrow.pieces(rows, name):
        activity.advance("hashing", count, len(rows))
        count += len(numbers)
        if arrow.is_text(values.type) and not values.null_count:
            contents: list[bytes] = values.cast(pa.binary()).to_pylist()
            odd = np.flatnonzero(arrow.matching(values, _NOT_NORMAL)) if normalize else ()
            for place in odd:  # the others are normal already
                contents[place] = _content(values[place].as_py(), normalize)
        else:
            contents = [_content(value, normalize) for value in values.to_pylist()]
        digests = b"".join(hashlib.blake2b(part, digest_size=_SIZE).digest() for part in contents)
        hashes[numbers] = np.frombuffer(digests, np.uint8).reshape(-1, _SIZE)
    buffers = [None, pa.py_buffer(hashes)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_SIZE), len(rows), buffers)


def _content(value: Any, normalize: bool) -> bytes:
    if isinstance(value, dict):
        return images.read_bytes(value)
    if isinstance(value, str):
        return (" ".join(value.split()) if normalize else value).encode()
    if isinstance(value, list) and value and isinstance(value[0], str):
        # bytes that no other parts have, and no text: 0xff is not in UTF-8
        parts = [_content(text, normalize) for text in value]
        return b"".join(b"%d\xff%s" % (len(part), part) for part in parts)
    return np.asarray(value, dtype=np.float64).tobytes()


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
            hashes = hash_rows(dataset[name], column).to_pylist()
            labels = (str(label).encode() for label in targets.values(dataset[name]))
            total.update(name.encode() + b"".join(map(bytes.__add__, hashes, labels)))
        _FINGERPRINTS[key] = total.hexdigest()[:16]
    return _FINGERPRINTS[key]


def seen_in(rows: Dataset, reference: Dataset, column: str) -> np.ndarray:
    """Return which rows are also in ``reference``, white space aside, shape ``(rows,)``."""
    hashes, value_set = (hash_rows(part, column, normalize=True) for part in (rows, reference))
    return np.asarray(pc.is_in(hashes, value_set=value_set).to_numpy(zero_copy_only=False))
