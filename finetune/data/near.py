"""Texts that are nearly the same: MinHash proposes pairs, the Jaccard index of their words decides.

A text is the set of its word pairs. Two texts resemble each other where at least 80% of the pairs
that either has are in both; of rows with several texts each has to. Only rows whose
signatures share a band are compared, so that time grows with the rows, not with their square
(Leskovec, Rajaraman and Ullman: Mining of Massive Datasets, chapter 3). Why so:
docs/decisions/near-duplicates.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset

from finetune.data import arrow, digests
from finetune.runtime import activity, extras

#: The Jaccard index from which on two texts are nearly the same.
SIMILARITY = 0.8
#: Numbers of a signature, and in how many bands they are: a pair of that similarity shares a band
#: but once in twenty million times.
_PERMUTATIONS, _BANDS = 128, 32
#: Rows of a band that the next one is compared with, and pairs that are verified, at most: else
#: thousands of rows made of one template would be compared with each other.
_MOST_IN_BAND, _MOST_VERIFIED = 100, 50
#: The similarity as signatures estimate it, below which no pair is verified: 5.7 standard errors.
_LEAST_ESTIMATE = 0.6
#: Rows whose word pairs are in memory, and words whose hashes are, at most.
_MOST_SETS, _MOST_WORDS = 4096, 2**18
#: Scripts without spaces between words: each letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


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
    not resemble each other. In memory are signatures of 512 bytes a row, and the word pairs of a
    few thousand rows.

    Args:
        held: Rows of other splits, which come first and are not compared with each other.
        own: The rows.
        column: Of the texts.
        within: Whether rows of ``own`` are compared with each other too.
    """
    extras.require("near duplicates", extras.NEAR)
    parts = [*held, own]
    signatures = np.concatenate([_signatures(part, column) for part in parts])
    first = len(signatures) - len(own.numbers)
    result = Resembling(np.full(len(own.numbers), -1), np.zeros(len(own.numbers)))
    bands, begins = _shared_bands(signatures)
    candidates = np.flatnonzero(np.diff(begins))
    pairs = _PairReader(parts, column)
    members: dict[int, list[int]] = defaultdict(list)
    for done, row in enumerate(candidates.tolist()):
        activity.advance("comparing", done, len(candidates))
        bands_of_row = bands[begins[row] : begins[row + 1]].tolist()
        if row >= first:
            others = {other for band in bands_of_row for other in members[band]}
            match, similarity = _most_similar(row, np.array(sorted(others), int), signatures, pairs)
            if match >= 0:
                result.row[row - first], result.similarity[row - first] = match, similarity
                continue
        if row < first or within:
            for band in bands_of_row:
                if len(members[band]) < _MOST_IN_BAND:
                    members[band].append(row)
    return result


def _most_similar(
    row: int, others: np.ndarray, signatures: np.ndarray, pairs: _PairReader
) -> tuple[int, float]:
    """Return which of other rows a row is nearly the same as, -1 if none, and how similar."""
    if not len(others):
        return -1, 0.0
    estimates = (signatures[others] == signatures[row]).mean(1)
    order = np.argsort(-estimates, kind="stable")[:_MOST_VERIFIED]
    for other in others[order[estimates[order] >= _LEAST_ESTIMATE]].tolist():
        similarity = _jaccard(pairs.read(row), pairs.read(other))
        if similarity >= SIMILARITY:
            return other, similarity
    return -1, 0.0


def _jaccard(sets: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return the Jaccard index of two rows, the lowest of their texts."""
    shared = [
        len(np.intersect1d(one, other, assume_unique=True))
        for one, other in zip(sets, others, strict=True)
    ]
    return min(
        both / (len(one) + len(other) - both)
        for both, one, other in zip(shared, sets, others, strict=True)
    )


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
        shared = np.flatnonzero(counts[codes] > 1)
        rows.append(shared)
        numbers.append(codes[shared] + next_number)
        next_number += len(counts)
    joined = np.concatenate(rows)
    order = np.argsort(joined, kind="stable")
    begins = np.searchsorted(joined[order], np.arange(len(signatures) + 1))
    return np.concatenate(numbers)[order], begins


class _PairReader:
    """Reads the word pairs of rows again when they are compared; the latest stay in memory.

    Args:
        parts: All rows, numbered one part after the other.
        column: Of the texts.
    """

    def __init__(self, parts: Sequence[Part], column: str) -> None:
        self._parts = [
            (part.rows.select_columns([name]), part.numbers, name)
            for part in parts
            for name in [_text_column(part.rows, column)]
        ]
        self._begins = np.cumsum([0, *(len(part.numbers) for part in parts)])
        self.read = lru_cache(_MOST_SETS)(self._read)

    def _read(self, row: int) -> list[np.ndarray]:
        place = int(np.searchsorted(self._begins, row, side="right")) - 1
        rows, numbers, name = self._parts[place]
        value = rows[int(numbers[row - self._begins[place]])][name]
        return _word_pairs(value)


def _signatures(part: Part, column: str) -> np.ndarray:
    """Return the signatures of rows, shape ``(rows, 128)``, uint32."""
    from datasketch import MinHash

    signatures = np.zeros((len(part.numbers), _PERMUTATIONS), np.uint32)
    blank, done = MinHash(_PERMUTATIONS, hashfunc=int, scheme="affine32"), 0
    for places, texts in _texts(part, column):
        activity.advance("looking for near duplicates", done, len(part.numbers))
        for place, value in zip(places.tolist(), texts.to_pylist(), strict=True):
            sets = _word_pairs(value)
            sketch = blank.copy()
            tagged = np.concatenate(
                [pairs + _ODD[1] * np.uint64(n) for n, pairs in enumerate(sets)]
            )
            sketch.update_batch((tagged >> np.uint64(32)).tolist())
            signatures[place] = sketch.hashvalues
        done += len(places)
    return signatures


def _texts(part: Part, column: str) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield the places in ``part.numbers`` of some rows, and their values."""
    name = _text_column(part.rows, column)
    order = np.argsort(part.numbers, kind="stable")
    rows = part.rows.select_columns([name])
    for numbers, values in arrow.pieces(rows, name, part.numbers[order]):
        yield order[np.searchsorted(part.numbers, numbers, sorter=order)], values


def _text_column(rows: Dataset, column: str) -> str:
    return digests.TEXTS if column == "text" and digests.TEXTS in rows.column_names else column


class _WordHashes(dict[str, int]):
    """The hash of each word that was met; far quicker than ``lru_cache``, and cleared when full."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = xxhash.xxh3_64_intdigest(word.encode(errors="surrogatepass"))
        return self[word]


_word_hashes = _WordHashes()


def _word_pairs(value: str | list[str]) -> list[np.ndarray]:
    """Return hashes of the pairs of neighbouring words of each text of a row, sorted, each once.

    A text of a single word has the hash of that word.
    """
    sets = []
    for text in [value] if isinstance(value, str) else value:
        words = _WORD.findall(text.lower()) or [text.strip()]
        single = np.array([_word_hashes[word] for word in words], np.uint64)
        pairs = single[:-1] * _ODD[0] + (single[1:] ^ (single[1:] >> np.uint64(31)))
        sets.append(np.unique(pairs) if len(single) > 1 else single)
    return sets
