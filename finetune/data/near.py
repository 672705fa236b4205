"""Texts that are nearly the same: MinHash proposes pairs, the Jaccard index of their words decides.

A text is the set of its word pairs. Two texts resemble each other where at least 80% of the pairs
that either has are in both; of rows with several texts each has to. Only what differs between
signatures that share a band is compared, so that time grows with the rows, not with their square
(Leskovec, Rajaraman and Ullman: Mining of Massive Datasets, chapter 3). Why so:
docs/decisions/near-duplicates.md.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset

from finetune.data import arrow, caches, digests
from finetune.runtime import activity, extras

#: The Jaccard index from which on two texts are nearly the same.
SIMILARITY = 0.8
_WORDS = 2
#: Numbers of a signature, and in how many bands they are: a pair of that similarity shares a band
#: but once in twenty million times.
_PERMUTATIONS, _BANDS = 128, 32
#: Rows of a band that the next one is compared with, and pairs that are verified, at most: else
#: thousands of rows made of one template would be compared with each other.
_MOST_IN_BAND, _MOST_VERIFIED = 100, 50
#: The similarity as signatures estimate it, below which no pair is verified: 5.7 standard errors.
_LEAST_ESTIMATE = 0.6
#: Scripts without spaces between words: each letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_FOLDER, _VERSION = "finetune-near", 1
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
#: The signatures of rows, by column, and which are known.
_SIGNATURES: WeakKeyDictionary[Dataset, dict[str, tuple[np.ndarray, np.ndarray]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True)
class Part:
    """Rows of a split.

    Attributes:
        rows: The split.
        numbers: Of the rows that are meant, in the order in which they are compared.
    """

    rows: Dataset
    numbers: np.ndarray


@dataclass(frozen=True)
class Resembling:
    """What rows are nearly the same as.

    Attributes:
        row: For each row the place of the one it resembles, shape ``(rows,)``: among the rows of
            all parts one after the other, -1 where there is none.
        similarity: Their Jaccard index, likewise; 0 where there is none.
    """

    row: np.ndarray
    similarity: np.ndarray


def resembling(held: Sequence[Part], own: Part, column: str, *, within: bool) -> Resembling:
    """Return for each row of ``own`` a row that it is nearly the same as.

    A row that resembles one before it resembles no later one, so that those that resemble none do
    not resemble each other. What was compared before is not again: it stands in the cache.

    Args:
        held: Rows of other splits, which come first and are not compared with each other.
        own: The rows.
        column: Of the texts.
        within: Whether rows of ``own`` are compared with each other too.
    """
    extras.require("near duplicates", extras.NEAR)
    parts = [*held, own]
    key = hashlib.blake2b(f"{_VERSION} {column} {within}".encode(), digest_size=8)
    for part in parts:
        plain = digests.digests(part.rows, column, np.sort(part.numbers)).plain[part.numbers]
        key.update(f"{len(part.numbers)} ".encode() + plain.tobytes())
    if known := caches.load_arrays(_FOLDER, key.hexdigest()):
        return Resembling(**known)
    found = _compared(parts, column, within)
    caches.save_arrays(_FOLDER, key.hexdigest(), row=found.row, similarity=found.similarity)
    return found


def _compared(parts: Sequence[Part], column: str, within: bool) -> Resembling:
    """Return as :func:`resembling` does."""
    signatures = np.concatenate([_signatures(part, column) for part in parts])
    first, own = len(signatures) - len(parts[-1].numbers), parts[-1]
    result = Resembling(np.full(len(own.numbers), -1), np.zeros(len(own.numbers)))
    shared, begins = _shared_bands(signatures)
    there = np.flatnonzero(np.diff(begins))
    sets = _Sets(parts, column, there)
    members: dict[int, list[int]] = defaultdict(list)
    for done, row in enumerate(there.tolist()):
        activity.advance("comparing", done, len(there))
        bands = shared[begins[row] : begins[row + 1]].tolist()
        if row >= first:
            others = np.unique([other for band in bands for other in members[band]]).astype(int)
            like, similarity = _most_similar(row, others, signatures, sets)
            if like >= 0:
                result.row[row - first], result.similarity[row - first] = like, similarity
                continue
        if row < first or within:
            for band in bands:
                if len(members[band]) < _MOST_IN_BAND:
                    members[band].append(row)
    return result


def _most_similar(
    row: int, others: np.ndarray, signatures: np.ndarray, sets: _Sets
) -> tuple[int, float]:
    """Return which of other rows a row is nearly the same as, -1 if none, and how similar."""
    if not len(others):
        return -1, 0.0
    estimates = (signatures[others] == signatures[row]).mean(1)
    order = np.argsort(-estimates, kind="stable")[:_MOST_VERIFIED]
    for place in order[estimates[order] >= _LEAST_ESTIMATE].tolist():
        similarity = sets.similarity(row, int(others[place]))
        if similarity >= SIMILARITY:
            return int(others[place]), similarity
    return -1, 0.0


def _shared_bands(signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the bands that each row shares with others, one row after the other,
    and where each begins, shape ``(rows + 1,)``.
    """
    width = _PERMUTATIONS // _BANDS
    rows, numbers, next_number = [], [], 0
    for band in range(_BANDS):
        mixed = np.zeros(len(signatures), np.uint64)
        for place in range(band * width, (band + 1) * width):
            mixed = (mixed ^ signatures[:, place]) * _ODD[0]
            mixed ^= mixed >> np.uint64(29)
        _, codes, counts = np.unique(mixed, return_inverse=True, return_counts=True)
        several = np.flatnonzero(counts[codes] > 1)
        rows.append(several)
        numbers.append(codes[several] + next_number)
        next_number += len(counts)
    every = np.concatenate(rows)
    order = np.argsort(every, kind="stable")
    begins = np.searchsorted(every[order], np.arange(len(signatures) + 1))
    return np.concatenate(numbers)[order], begins


class _Sets:
    """The word pairs of the rows that are compared.

    Args:
        parts: All rows.
        column: Of the texts.
        wanted: The places of those that are compared, among the rows of all parts, sorted.
    """

    def __init__(self, parts: Sequence[Part], column: str, wanted: np.ndarray) -> None:
        self._sets: dict[int, list[np.ndarray]] = {}
        begin = 0
        for part in parts:
            own = wanted[(wanted >= begin) & (wanted < begin + len(part.numbers))] - begin
            for places, texts in _texts(part.rows, column, part.numbers[own]):
                found = _word_pairs(texts)
                for place, each in zip((own[places] + begin).tolist(), found, strict=True):
                    self._sets[place] = each
            begin += len(part.numbers)

    def similarity(self, one: int, other: int) -> float:
        """Return the Jaccard index of two rows, the lowest of their texts."""
        least = 1.0
        for mine, theirs in zip(self._sets[one], self._sets[other], strict=True):
            both = len(np.intersect1d(mine, theirs, assume_unique=True))
            least = min(least, both / (len(mine) + len(theirs) - both))
        return least


def _signatures(part: Part, column: str) -> np.ndarray:
    """Return the signatures of rows, shape ``(rows, 128)``, uint32."""
    from datasketch import MinHash

    known = _SIGNATURES.setdefault(part.rows, {})
    if column not in known:
        empty = np.zeros((len(part.rows), _PERMUTATIONS), np.uint32)
        known[column] = empty, np.zeros(len(part.rows), bool)
    signatures, are_known = known[column]
    missing = part.numbers[~are_known[part.numbers]]
    blank, done = MinHash(_PERMUTATIONS, hashfunc=int, scheme="affine32"), 0
    for places, texts in _texts(part.rows, column, missing):
        activity.advance("looking for near duplicates", done, len(missing))
        for number, sets in zip(missing[places].tolist(), _word_pairs(texts), strict=True):
            sketch = blank.copy()
            tagged = np.concatenate([each + _ODD[1] * np.uint64(n) for n, each in enumerate(sets)])
            sketch.update_batch((tagged >> np.uint64(32)).tolist())
            signatures[number] = sketch.hashvalues
        are_known[missing[places]] = True
        done += len(places)
    found: np.ndarray = signatures[part.numbers]
    return found


def _texts(
    rows: Dataset, column: str, numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield the places in ``numbers`` of some rows, and their values."""
    if column == "text" and digests.TEXTS in rows.column_names:
        column = digests.TEXTS
    order = np.argsort(numbers, kind="stable")
    rows = rows.select_columns([column])
    for some, values in arrow.pieces(rows, column, numbers[order]):
        yield order[np.searchsorted(numbers, some, sorter=order)], values


class _Hashes(dict[str, int]):
    """The hash of each word."""

    def __missing__(self, word: str) -> int:
        self[word] = hashed = xxhash.xxh3_64_intdigest(word.encode(errors="surrogatepass"))
        return hashed


def _word_pairs(values: pa.Array) -> list[list[np.ndarray]]:
    """Return hashes of the word pairs of each text of each row, sorted, each once."""
    hashes = _Hashes()
    rows = (value if isinstance(value, list) else [value] for value in values.to_pylist())
    return [[_pairs_of(text, hashes) for text in texts] for texts in rows]


def _pairs_of(text: str, hashes: _Hashes) -> np.ndarray:
    """Return the hashes of the pairs of neighbouring words, of a single word its own."""
    words = _WORD.findall(text.lower()) or [text.strip()]
    single = np.array([hashes[word] for word in words], np.uint64)
    if len(single) < _WORDS:
        return single
    return np.unique(single[:-1] * _ODD[0] + (single[1:] ^ (single[1:] >> np.uint64(31))))
