"""Digests of rows, and rows that occur more than once: in two splits, with other labels, exactly
or nearly.

MinHash proposes pairs of texts that are nearly the same, the Jaccard index of their words decides.
A text is the set of its word pairs. Two texts are nearly the same where at least 80% of the pairs
that either has are in both; of rows with several texts each has to be. Only rows whose signatures
share a band are compared, so that time grows with the rows, not with their square (Leskovec,
Rajaraman and Ullman: Mining of Massive Datasets, chapter 3). docs/decisions/near-duplicates.md has
the reasons.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xxhash
from datasets import Dataset, DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher

from finetune.data import arrow, caches, images, targets
from finetune.data.words import UNSPACED
from finetune.errors import Findings, counted
from finetune.runtime import activity, files, internals
from finetune.runtime.importing import require_packages

if TYPE_CHECKING:
    from finetune.data.splits import Plan

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
#: The Jaccard index from which on two texts are nearly the same.
_SIMILARITY = 0.8
#: Numbers of a signature, and bands of them: a pair of that similarity shares a band but once in
#: twenty million times.
_PERMUTATIONS, _BANDS = 128, 32
#: Rows of a band that the next one is compared with, and pairs that are verified, at most.
_MAX_ROWS_IN_BAND, _MAX_VERIFIED_PAIRS = 100, 50
#: What is not the single space between two words, in ASCII.
_BLANKS = ("  ", "\n", "\r", "\t", "\x0b", "\x0c")
#: A part of the keys of cached hashes: another number where the same rows have other hashes.
_VERSION = 2
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def hash_rows(rows: Dataset, column: str, *, normalize: bool = False) -> list[bytes]:
    """Return the hash of 16 bytes of the text, image or vector that each row has in a column.

    Where ``text`` is made of several columns, their parts are hashed, not how they are joined.

    Args:
        rows: The rows.
        column: The column.
        normalize: Whether texts that differ in white space only have the same hash.
    """
    path = None
    name = stored_column(rows, column)
    if rows.cache_files and column == "text":  # files of images may change
        stored, places = internals.stored_rows(rows, name)
        key = [stored.data.select([name]), places, normalize, _VERSION]
        for file in stored.cache_files:
            key.append(os.stat(file["filename"]).st_mtime_ns)
        path = caches.directory("finetune-hashes") / Hasher.hash(key)
        with contextlib.suppress(OSError, ValueError):  # not cached, or damaged
            return list(np.load(path).tolist())
    hashes = np.zeros(len(rows), dtype="V16")
    for numbers, values in arrow.pieces(rows, name):
        activity.advance("hashing", int(numbers[0]), len(rows))
        digests = []
        for value in values.to_pylist():
            content = _content(value, normalize)
            digests.append(hashlib.blake2b(content, digest_size=16).digest())
        hashes[numbers] = digests
    if path is not None:
        with contextlib.suppress(OSError), files.replacing(path) as new, new.open("wb") as file:
            np.save(file, hashes)
    return list(hashes.tolist())


def _content(value: Any, normalize: bool) -> bytes:
    if isinstance(value, dict):
        return images.read_bytes(value)
    if isinstance(value, str):
        if normalize:
            # few texts need the split, which takes five times as long as looking for its reasons
            has_blanks = not value.isascii() or any(map(value.__contains__, _BLANKS))
            if has_blanks or value != value.strip():
                return " ".join(value.split()).encode()
        return value.encode()
    if isinstance(value, list) and value and isinstance(value[0], str):
        # bytes that no other parts have, and no text: 0xff is not in UTF-8
        content = b""
        for text in value:
            part = _content(text, normalize)
            content += b"%d\xff%s" % (len(part), part)
        return content
    return np.asarray(value, dtype=np.float64).tobytes()


def stored_column(rows: Dataset, column: str) -> str:
    """Return the column with what the model reads: the parts of a text that has several."""
    if column == "text" and TEXTS in rows.column_names:
        return TEXTS
    return column


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of the content of the rows, in order, independent of where they are stored."""
    total = hashlib.sha256()
    for name in sorted(dataset):
        labels = (str(label).encode() for label in targets.values(dataset[name]))
        contents = map(bytes.__add__, hash_rows(dataset[name], column), labels)
        total.update(name.encode() + b"".join(contents))
    return total.hexdigest()[:16]


def seen_in(rows: Dataset, reference: Dataset, column: str) -> np.ndarray:
    """Return which rows are also in ``reference``, white space aside, shape ``(rows,)``."""
    # not `isin` of pandas, which converts bytes to a type of NumPy that ends at the last zeros
    reference_hashes = set(hash_rows(reference, column, normalize=True))
    hashes = hash_rows(rows, column, normalize=True)
    return np.array([digest in reference_hashes for digest in hashes], dtype=bool)


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan, report: Findings
) -> pd.DataFrame:
    """Return the index without leaks, duplicates and contradictions.

    Validation rows that the test set has are dropped, and training rows that either has. Of
    training rows with the same text and label the first stays, or the oldest. Repeated held-out
    rows stay. What holds for training rows holds for the last split of the index. The result has a
    column ``digest``, a code of what the model reads in ``column``, white space aside.

    Args:
        index: The row index, see :mod:`finetune.data.splits`.
        dataset: The splits of the source.
        column: The column that the model reads.
        plan: What is dropped.
        report: Gets the findings.
    """
    splits = index["split"].cat.categories
    last = splits[-1]
    hashes = (hash_rows(dataset[name], column, normalize=True) for name in splits)
    codes = pd.factorize(np.array(list(itertools.chain(*hashes)), dtype=object))[0]
    index = index.assign(digest=codes[index.index])
    index["pair"] = index["digest"] * (index["label"].max() + 1) + index["label"]
    if "time" in index:  # the oldest first
        index = index.sort_values(["split", "time"], kind="stable")

    def report_part(
        name: str, description: str, fix: str, rows: pd.DataFrame, **details: Any
    ) -> None:
        for split, positions in rows.sort_index().groupby("split", observed=True)["row"]:
            targets.report_rows(
                report, name, description, fix, positions, dataset[split], str(split), **details
            )

    earliest = index.groupby("digest", sort=False)["split"].transform("min")
    leaked = index[index["split"] > earliest]
    index = index[index["split"] == earliest]
    for (_, split), rows in leaked.groupby(["split", earliest[leaked.index]], observed=True):
        differing = _count_differing(~rows["pair"].isin(index["pair"]))
        description = f"that are also in the {split} data{differing}"
        report_part("overlap", description, "left out", rows)

    pairs = index.groupby("digest", sort=False)["pair"]
    is_contradiction = pairs.transform("min") != pairs.transform("max")
    has_classes = targets.are_classes(dataset["train"])
    keep_first = plan.keep_contradictions == "first"
    keep_all = not (has_classes or keep_first)
    is_repeated = index.duplicated("pair" if keep_all else "digest")
    severity = None if has_classes else "info"
    action = "all are kept, in the same split" if keep_all else "left out"
    action += "; --keep_contradictions first keeps one of each"
    if keep_first:
        count = int((is_repeated & is_contradiction)[index["split"] == last].sum())
        action = f"the first of each is kept, {count:,} left out"
    for split, rows in index.groupby("split", observed=True):
        is_train = split == last
        contradictions = rows[is_contradiction[rows.index]]
        texts = counted(contradictions["digest"].nunique(), column.removesuffix("s"))
        kind = "labels" if has_classes else "numbers"
        description = f"with the same {column} and different {kind} ({texts})"
        fix = action if is_train else f"no model can be right on all of them; {targets.RELABEL}"
        report_part("contradictions", description, fix, contradictions, severity=severity)
        duplicates = rows[(is_repeated & (keep_all | ~is_contradiction))[rows.index]]
        fix = "left out, one of each is kept" if is_train else targets.EXCLUDE
        report_part("duplicates", "that are exact duplicates", fix, duplicates)
    is_dropped = is_repeated if keep_all or keep_first else is_repeated | is_contradiction
    index = index[~is_dropped | (index["split"] != last)]
    similar = _find_near(index, dataset, column, plan, report_part)
    return index.drop(similar).sort_index().drop(columns="pair")


def _find_near(
    index: pd.DataFrame,
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    report_part: Callable[..., None],
) -> pd.Index:
    """Return the rows that are nearly the same as others that stay, and report them."""
    deduplicate = plan.drop_duplicates == "near"
    is_last = index["split"] == index["split"].cat.categories[-1]
    if plan.drop_overlap != "near":
        index = index[is_last & deduplicate]
    if index.empty:
        return index.index
    name = stored_column(dataset["train"], column)
    parts = index.groupby("split", observed=True)["row"]
    selected = [dataset[split].select_columns([name]).select(rows) for split, rows in parts]
    texts = concatenate_datasets(selected)
    matches = _find_similar(
        texts, name, index["split"].cat.codes.to_numpy(), deduplicate=deduplicate
    )
    index = index.assign(match=matches)
    similar = index[matches >= 0].sort_index()
    partners = index.iloc[similar["match"]].set_index(similar.index)
    for (split, part), rows in similar.groupby(["split", partners["split"]], observed=True):
        counterparts = partners.loc[rows.index]
        place = "another one" if part == split else f"a row of the {part} data"
        differing = _count_differing(rows["label"] != counterparts["label"])
        positions = counterparts["row"].to_numpy()[: targets.MAX_SUSPECTS]
        numbers = targets.source_rows(dataset[part])[positions]
        report_part(
            "near_duplicates" if part == split else "near_overlap",
            f"that are nearly the same as {place}{differing}",
            "left out",
            rows,
            suspects=[[f"near-duplicate of row {number} of {part}" for number in numbers]],
        )
    return similar.index


def _count_differing(differing: pd.Series) -> str:
    if differing.any():
        return f" ({differing.sum():,} with another label)"
    return ""


def _find_similar(
    rows: Dataset, column: str, splits: np.ndarray, *, deduplicate: bool
) -> np.ndarray:
    """Return for each row one before it that stays and is nearly the same, or -1.

    Rows are compared with those of other ``splits``, numbers of shape ``(rows,)``, and those of
    training, the last one, also with each other if ``deduplicate``. A row that is nearly the same
    as one before it is compared with no later one, so that rows without a match are not nearly the
    same as each other. In memory are 768 bytes a row, and the word pairs of a few thousand rows.
    """
    require_packages("near duplicates", "datasketch")
    from datasketch import MinHash

    signatures = np.zeros((len(rows), _PERMUTATIONS), np.uint32)
    blank = MinHash(_PERMUTATIONS, hashfunc=int, scheme="affine32")
    for numbers, values in arrow.pieces(rows, column):
        activity.advance("looking for near duplicates", int(numbers[0]), len(rows))
        for row, value in zip(numbers.tolist(), values.to_pylist(), strict=True):
            sketch = blank.copy()
            for part, pairs in enumerate(_word_pairs(value)):
                sketch.update_batch([(part + pair) & (2**32 - 1) for pair in pairs])
            signatures[row] = sketch.hashvalues
    # the number of each band that a row shares with others, else -1
    bands = np.full((len(rows), _BANDS), -1)
    for place, columns in enumerate(np.split(signatures, _BANDS, axis=1)):
        keys = np.ascontiguousarray(columns).view("V16").ravel()
        _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        bands[:, place] = np.where(counts[codes] > 1, codes * _BANDS + place, -1)
    candidates = np.flatnonzero((bands >= 0).any(axis=1))
    members: dict[int, list[int]] = defaultdict(list)  # rows by band
    matches = np.full(len(rows), -1)
    read_pairs = lru_cache(1024)(lambda row: _word_pairs(rows[row][column]))
    for count, row in enumerate(candidates.tolist()):
        activity.advance("comparing", count, len(candidates))
        bands_of_row = bands[row][bands[row] >= 0].tolist()
        is_train = splits[row] == splits.max()
        rows_in_bands = set()
        for band in bands_of_row:
            rows_in_bands.update(members[band])
        neighbours = np.array(sorted(rows_in_bands), dtype=np.int64)
        neighbours = neighbours[is_train | (splits[neighbours] != splits[row])]
        estimates = (signatures[neighbours] == signatures[row]).mean(axis=1)
        likeliest = np.argsort(-estimates, kind="stable")[:_MAX_VERIFIED_PAIRS]
        for other in neighbours[likeliest].tolist():
            texts = zip(read_pairs(row), read_pairs(other), strict=True)
            if all(len(a & b) >= _SIMILARITY * len(a | b) for a, b in texts):
                matches[row] = other
                break
        if matches[row] < 0 and (deduplicate or not is_train):
            for band in bands_of_row:
                if len(members[band]) < _MAX_ROWS_IN_BAND:
                    members[band].append(row)
    return matches


def _word_pairs(value: str | list[str]) -> list[set[int]]:
    """Return hashes of the pairs of neighbouring words of each text of a row."""
    sets = []
    for text in [value] if isinstance(value, str) else value:
        words = _WORD.findall(text.lower()) or [text.strip()]
        pairs = list(map(" ".join, itertools.pairwise(words))) or words
        sets.append(set(map(xxhash.xxh3_64_intdigest, map(str.encode, pairs))))
    return sets
