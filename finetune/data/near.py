"""Texts that are nearly the same: MinHash proposes pairs, the Jaccard index of their words decides.

A text is the set of its word pairs. Two texts are nearly the same where at least 80% of the pairs
that either has are in both; of rows with several texts each has to be. Only rows whose signatures
share a band are compared, so that time grows with the rows, not with their square (Leskovec,
Rajaraman and Ullman: Mining of Massive Datasets, chapter 3). docs/decisions/near-duplicates.md has
the reasons.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from functools import lru_cache

import numpy as np
import xxhash
from datasets import Dataset

from finetune.data import arrow
from finetune.runtime import activity, extras

#: The Jaccard index from which on two texts are nearly the same.
SIMILARITY = 0.8
#: Numbers of a signature, and bands of them: a pair of that similarity shares a band but once in
#: twenty million times.
_PERMUTATIONS, _BANDS = 128, 32
#: Rows of a band that the next one is compared with, and pairs that are verified, at most.
_MOST_IN_BAND, _MOST_VERIFIED = 100, 50
#: The similarity as signatures estimate it, below which no pair is verified: 5.7 standard errors.
_LEAST_ESTIMATE = 0.6
_MOST_SETS = 4096  # rows whose word pairs are in memory
#: Scripts without spaces between words: each letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def find_similar(rows: Dataset, column: str, first: int, *, deduplicate: bool) -> np.ndarray:
    """Return for each row from ``first`` on a row before it that is nearly the same.

    A row that is nearly the same as one before it is compared with no later one, so that rows
    without a match are not nearly the same as each other. In memory are 768 bytes a row, and the
    word pairs of a few thousand rows.

    Args:
        rows: The rows, in the order in which they are compared.
        column: Of the texts, or of lists of texts.
        first: The number of the first row that is looked at; those before it are held out.
        deduplicate: Whether the rows from ``first`` on are compared with each other, too.

    Returns:
        The number of the other row, -1 where there is none, shape ``(rows - first,)``.
    """
    extras.require("near duplicates", extras.NEAR)
    from datasketch import MinHash

    signatures = np.zeros((len(rows), _PERMUTATIONS), np.uint32)
    blank, count = MinHash(_PERMUTATIONS, hashfunc=int, scheme="affine32"), 0
    for numbers, values in arrow.pieces(rows, column):
        activity.advance("looking for near duplicates", count, len(rows))
        for row, value in zip(numbers.tolist(), values.to_pylist(), strict=True):
            sketch = blank.copy()
            pairs = [pairs + np.uint64(part) for part, pairs in enumerate(_word_pairs(value))]
            sketch.update_batch((np.concatenate(pairs) & np.uint64(2**32 - 1)).tolist())
            signatures[row] = sketch.hashvalues
        count += len(numbers)
    # the number of each band that a row shares with others, else -1
    bands = np.full((len(rows), _BANDS), -1)
    for place, columns in enumerate(np.split(signatures, _BANDS, axis=1)):
        keys = np.ascontiguousarray(columns).view("V16").ravel()
        _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        bands[:, place] = np.where(counts[codes] > 1, codes * _BANDS + place, -1)
    candidates = np.flatnonzero((bands >= 0).any(axis=1))
    members: dict[int, list[int]] = defaultdict(list)  # rows by band
    matches = np.full(len(rows), -1)
    read_pairs = lru_cache(_MOST_SETS)(lambda row: _word_pairs(rows[row][column]))
    for count, row in enumerate(candidates.tolist()):
        activity.advance("comparing", count, len(candidates))
        bands_of_row = bands[row][bands[row] >= 0].tolist()
        if row >= first:
            rows_in_bands = {other for band in bands_of_row for other in members[band]}
            neighbours = np.array(sorted(rows_in_bands), dtype=np.int64)
            estimates = (signatures[neighbours] == signatures[row]).mean(axis=1)
            likeliest = np.argsort(-estimates, kind="stable")[:_MOST_VERIFIED]
            for other in neighbours[likeliest[estimates[likeliest] >= _LEAST_ESTIMATE]].tolist():
                if min(map(_jaccard, read_pairs(row), read_pairs(other))) >= SIMILARITY:
                    matches[row] = other
                    break
        if row < first or (deduplicate and matches[row] < 0):
            for band in bands_of_row:
                if len(members[band]) < _MOST_IN_BAND:
                    members[band].append(row)
    return matches[first:]


def _word_pairs(value: str | list[str]) -> list[np.ndarray]:
    """Return hashes of the pairs of neighbouring words of each text of a row, sorted, each once."""
    sets = []
    for text in [value] if isinstance(value, str) else value:
        words = _WORD.findall(text.lower()) or [text.strip()]
        pairs = [f"{word} {other}" for word, other in itertools.pairwise(words)] or words
        hashes = [xxhash.xxh3_64_intdigest(pair.encode(errors="surrogatepass")) for pair in pairs]
        sets.append(np.unique(np.array(hashes, np.uint64)))
    return sets


def _jaccard(pairs: np.ndarray, other_pairs: np.ndarray) -> float:
    shared = len(np.intersect1d(pairs, other_pairs, assume_unique=True))
    return shared / (len(pairs) + len(other_pairs) - shared)
