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

import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from datasets import Dataset, DatasetDict, Image, concatenate_datasets

from finetune.data import arrow, images, targets
from finetune.data.targets import EXCLUDE, MOST_SUSPECTS, RELABEL, report_rows, source_rows
from finetune.errors import Report, Severity, counted
from finetune.runtime import activity, version

if TYPE_CHECKING:
    from finetune.data.splits import Plan

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
_SIZE = 16  # bytes of a digest
#: What ``str.strip`` removes, as characters of RE2; U+2028 and others are of the class Z.
_SPACE = r"\t-\r\x1c-\x20\x{85}\pZ"
#: Finds a text whose white space is not single blanks between words.
_NOT_NORMAL = rf"^[{_SPACE}]|[{_SPACE}]$|  |[\n\r\t\x{{a0}}]"
#: Fingerprints by split, column and what ``datasets`` identifies the rows by.
_FINGERPRINTS: dict[tuple[str, ...], str] = {}
#: The Jaccard index from which on two texts are nearly the same.
_SIMILARITY = 0.8
#: Numbers of a signature, and bands of them: a pair of that similarity shares a band but once in
#: twenty million times.
_PERMUTATIONS, _BANDS = 128, 32
#: Rows of a band that the next one is compared with, and pairs that are verified, at most.
_MOST_IN_BAND, _MOST_VERIFIED = 100, 50
#: The similarity as signatures estimate it, below which no pair is verified: 5.7 standard errors.
_LEAST_ESTIMATE = 0.6
_MOST_SETS = 1024  # rows whose word pairs are in memory
#: Scripts without spaces between words: each letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


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


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan, report: Report
) -> pd.DataFrame:
    """Return the index without leaks, duplicates and contradictions; ``report`` gets findings.

    Validation rows that the test set has are dropped, and training rows that either has. Of
    training rows with the same text and label the first stays, or the oldest. Repeated held-out
    rows stay. The result has a column ``digest``, a code of what the model reads in ``column``,
    white space aside.
    """
    splits = index["split"].cat.categories
    hashes = [hash_rows(dataset[name], column, normalize=True) for name in splits]
    codes = np.asarray(pa.concat_arrays(hashes).dictionary_encode().indices, dtype=np.int64)
    index = index.assign(digest=codes[index.index])
    index["pair"] = index["digest"] * (index["label"].max() + 1) + index["label"]
    remaining: dict[str, pd.DataFrame] = {}
    for split in splits:
        rows = index[index["split"] == split]
        report_part = partial(
            report_rows, report, rows=dataset[split], split=split, examined=len(rows)
        )
        for earlier, held_out in remaining.items():
            is_leaked = rows["digest"].isin(held_out["digest"])
            differing = _count_differing(is_leaked & ~rows["pair"].isin(held_out["pair"]))
            description = f"that are also in the {earlier} data{differing}"
            report_part("overlap", description, "left out", rows["row"][is_leaked])
            rows = rows[~is_leaked]
        pairs = rows.groupby("digest")["pair"]
        is_contradiction = pairs.transform("min") != pairs.transform("max")
        has_classes = targets.are_classes(dataset[split])
        keep_first = plan.keep_contradictions == "first"
        keep_all = not (has_classes or keep_first)
        repeated = _sort_by_time(rows).duplicated("pair" if keep_all else "digest")
        is_repeated = repeated[rows.index]
        is_dropped = is_repeated if keep_all or keep_first else is_repeated | is_contradiction
        fix = "all are kept, in the same split" if keep_all else "left out"
        fix = f"{fix}; --keep_contradictions first keeps one of each"
        duplicates_fix = "left out, one of each is kept"
        if split != "train":
            is_dropped = is_dropped & False
            fix, duplicates_fix = f"no model can be right on all of them; {RELABEL}", EXCLUDE
        elif keep_first:
            count = int((is_repeated & is_contradiction).sum())
            fix = f"the first of each is kept, {count:,} left out"
        texts = counted(rows["digest"][is_contradiction].nunique(), column.removesuffix("s"))
        kind = "labels" if has_classes else "numbers"
        description = f"with the same {column} and different {kind} ({texts})"
        severity: Severity | None = None if has_classes else "info"
        positions = rows["row"][is_contradiction]
        report_part("contradictions", description, fix, positions, severity=severity)
        positions = rows["row"][is_repeated & (keep_all | ~is_contradiction)]
        report_part("duplicates", "that are exact duplicates", duplicates_fix, positions)
        remaining[split] = rows[~is_dropped]
        similar = _find_near(remaining, dataset, column, plan, report_part)
        remaining[split] = remaining[split].drop(similar)
    return pd.concat(remaining.values()).sort_index().drop(columns="pair")


def _find_near(
    frames: dict[str, pd.DataFrame],
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    report_part: Callable[..., None],
) -> pd.Index:
    """Return the rows of the last split that are nearly the same as others, and report them."""
    split, rows = list(frames.items())[-1]
    deduplicate = plan.drop_duplicates == "near" and split == "train"
    held_out = frames if plan.drop_overlap == "near" else {}
    compared = {**held_out, split: _sort_by_time(rows)}
    if len(compared) == 1 and not deduplicate:
        return rows.index[:0]
    name = stored_column(dataset["train"], column)
    texts = [
        dataset[part].select_columns([name]).select(frame["row"])
        for part, frame in compared.items()
    ]
    first = sum(map(len, texts[:-1]))
    matches = _find_similar(concatenate_datasets(texts), name, first, deduplicate=deduplicate)
    similar = compared[split].assign(match=matches)[matches >= 0].sort_index()
    partners = pd.concat(compared.values()).iloc[similar["match"]].set_index(similar.index)
    for part in compared:
        pairs, counterparts = (frame[partners["split"] == part] for frame in (similar, partners))
        place = "another one" if part == split else f"a row of the {part} data"
        differing = _count_differing(pairs["label"] != counterparts["label"])
        numbers = source_rows(dataset[part])[counterparts["row"].to_numpy()[:MOST_SUSPECTS]]
        report_part(
            "near_duplicates" if part == split else "near_overlap",
            f"that are nearly the same as {place}{differing}",
            "left out",
            pairs["row"],
            reasons=[f"near-duplicate of row {number} of {part}" for number in numbers],
        )
    return similar.index


def _sort_by_time(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the oldest first, as they are if they have no times."""
    return rows.sort_values("time", kind="stable") if "time" in rows else rows


def _count_differing(differing: pd.Series) -> str:
    return f" ({differing.sum():,} with another label)" if differing.any() else ""


def _find_similar(rows: Dataset, column: str, first: int, *, deduplicate: bool) -> np.ndarray:
    """Return for each row from ``first`` on a row before it that is nearly the same, or -1.

    Rows before ``first`` are held out, the others compared with each other if ``deduplicate``. A
    row that is nearly the same as one before it is compared with no later one, so that rows without
    a match are not nearly the same as each other. In memory are 768 bytes a row, and the word pairs
    of a few thousand rows.
    """
    version.require_packages("near duplicates", "datasketch")
    from datasketch import MinHash

    signatures = np.zeros((len(rows), _PERMUTATIONS), np.uint32)
    blank, count = MinHash(_PERMUTATIONS, hashfunc=int, scheme="affine32"), 0
    for numbers, values in arrow.pieces(rows, column):
        activity.advance("looking for near duplicates", count, len(rows))
        for row, value in zip(numbers.tolist(), values.to_pylist(), strict=True):
            sketch = blank.copy()
            pairs = (
                (part, pair) for part, pairs in enumerate(_word_pairs(value)) for pair in pairs
            )
            sketch.update_batch([(part + pair) & (2**32 - 1) for part, pair in pairs])
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
                texts = zip(read_pairs(row), read_pairs(other), strict=True)
                if all(len(a & b) >= _SIMILARITY * len(a | b) for a, b in texts):
                    matches[row] = other
                    break
        if row < first or (deduplicate and matches[row] < 0):
            for band in bands_of_row:
                if len(members[band]) < _MOST_IN_BAND:
                    members[band].append(row)
    return matches[first:]


def _word_pairs(value: str | list[str]) -> list[set[int]]:
    """Return hashes of the pairs of neighbouring words of each text of a row."""
    sets = []
    for text in [value] if isinstance(value, str) else value:
        words = _WORD.findall(text.lower()) or [text.strip()]
        pairs = [f"{word} {other}" for word, other in itertools.pairwise(words)] or words
        encoded = (pair.encode(errors="surrogatepass") for pair in pairs)
        sets.append({xxhash.xxh3_64_intdigest(pair) for pair in encoded})
    return sets
