"""Split off ``train``, ``validation`` and ``test``, so that selection never sees the test set.

Exact duplicates (white space aside) are dropped, the splits are split off, then rows are sampled.
The result depends only on a seed of its own, not on the training seed, so that runs with other
seeds stay comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict, Image

from finetune.data import images, stratification, targets
from finetune.errors import UserError, counted
from finetune.runtime import activity

#: Of rows with several columns of text: the parts that the model reads.
TEXTS = "texts"
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
MOST_VALIDATION_ROWS = 10_000
#: The splits that a leaked row of this split was also found in.
_LEAKED_TO = {"validation": "the test set", "train": "the validation or test set"}
_NAMES = {"train": "training", "validation": "validation", "test": "test"}
_WHITE_SPACE = ("  ", "\n", "\r", "\t", "\xa0")
#: By rows and column, so that texts are hashed only once.
_DIGESTS: WeakKeyDictionary[Dataset, dict[str, np.ndarray]] = WeakKeyDictionary()


def three_way(
    dataset: DatasetDict,
    *,
    column: str,
    seed: int,
    train_samples: int | None,
    eval_samples: int | None,
    note: Callable[[str], None],
    keep_contradictions: str = "none",
) -> DatasetDict:
    """Return the three splits, each in the order of its source.

    Args:
        dataset: A ``train`` split, and ``validation`` and ``test`` where the source has them, with
            ``column`` and ``label``. A test set of 20% and a validation set of 10% of the training
            rows (at most 10,000) are split off where they are missing, stratified.
        column: Rows with the same value here are duplicates, also if texts differ in white space;
            the first is kept. Training rows that also occur in the source's own test or validation
            set are dropped too, and so are validation rows that occur in its test set. The test set
            is left as it is.
        seed: Decides which rows go where.
        train_samples: Rows to train on, or None for all.
        eval_samples: Maximum rows of validation and of test, or None for all.
        note: Called with sentences about the rows dropped.
        keep_contradictions: Which training rows to keep of those with the same value but different
            classes: ``none`` or the ``first``. Numeric labels do not contradict each other.

    Raises:
        UserError: if no training rows are left.
    """
    splits, dropped = dict(dataset), list[str]()
    held_out: dict[bytes, int] = {}
    for name in ("test", "validation", "train"):  # each is cleared of what is held out so far
        if name in splits:
            kept = _kept(splits, name, column, held_out, keep_contradictions, dropped.append)
            values = digests(splits[name], column)[:, 1]
            held_out.update(zip(values, targets.row_keys(splits[name]), strict=True))
            if not kept.all():
                splits[name] = _select(splits[name], np.flatnonzero(kept))
    for sentence in dropped:
        note(sentence)
    if not len(splits["train"]):
        raise UserError(f"no training rows are left: {'; '.join(dropped)}")
    if "test" not in splits:
        rows = len(splits["train"])
        splits["train"], splits["test"] = _carve(splits["train"], round(TEST_SHARE * rows), seed)
    if "validation" not in splits:
        size = min(round(VALIDATION_SHARE * len(splits["train"])), MOST_VALIDATION_ROWS)
        splits["train"], splits["validation"] = _carve(splits["train"], size, seed + 1)
    caps = {"train": train_samples, "validation": eval_samples, "test": eval_samples}
    for name, cap in caps.items():
        if cap is not None and cap < len(splits[name]):
            drawn = stratified(targets.strata(splits[name]), cap, seed + 2)
            splits[name] = _select(splits[name], drawn)
    return DatasetDict({name: splits[name] for name in caps})


def _kept(
    splits: dict[str, Dataset],
    name: str,
    column: str,
    held_out: dict[bytes, int],
    keep_contradictions: str,
    note: Callable[[str], None],
) -> np.ndarray:
    """Return whether to keep each row of a split, shape ``(rows,)``; ``note`` gets the reasons."""
    hashes = pd.Series(digests(splits[name], column)[:, 1], dtype=object)
    labels = targets.row_keys(splits[name])
    # not Series.isin, which loses the zero bytes at the end of a value
    leaked = np.fromiter((each in held_out for each in hashes), dtype=bool, count=len(hashes))
    contradictory = _contradictory(hashes, labels) & ~leaked
    if count := leaked.sum():
        other = np.sum([held_out[each] for each in hashes[leaked]] != labels[leaked])
        note(
            f"dropped {counted(count, f'{_NAMES[name]} row')} also found in {_LEAKED_TO[name]}"
            + (f" ({other:,} with a different label)" if other else "")
        )
    rows = counted(contradictory.sum(), f"{_NAMES[name]} row")
    values = counted(hashes[contradictory].nunique(), column.removesuffix("s"))
    several = f"same {column} but different labels ({values})"
    if name != "train":
        if contradictory.any():
            note(f"{rows} with the {several}: no model can be right on all of them")
        return np.asarray(~leaked)
    repeated = hashes.duplicated().to_numpy() & ~leaked
    if contradictory.any() and keep_contradictions == "first":
        lost = counted((repeated & contradictory).sum(), "row")
        note(f"{rows} with the {several}: the first of each is kept, {lost} dropped")
    elif contradictory.any():
        note(f"dropped {rows} with the {several}; --keep_contradictions first keeps one of each")
    if count := (repeated & ~contradictory).sum():
        note(f"dropped {counted(count, 'exact duplicate')}")
    first_only = repeated if keep_contradictions == "first" else repeated | contradictory
    return np.asarray(~leaked & ~first_only)


def _contradictory(hashes: pd.Series, labels: np.ndarray) -> np.ndarray:
    """Return whether the value of each row has several labels, shape ``(rows,)``."""
    codes, values = pd.factorize(hashes)
    first = np.empty(len(values), dtype=labels.dtype)
    first[codes[::-1]] = labels[::-1]
    return np.isin(codes, codes[labels != first[codes]])


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of the content of the rows, in order, independent of where they are stored."""
    whole = hashlib.sha256()
    for name in sorted(dataset):
        whole.update(name.encode())
        labels = dataset[name]["label"][:]
        for digest, label in zip(digests(dataset[name], column)[:, 0], labels, strict=True):
            whole.update(digest + str(label).encode())
    return whole.hexdigest()[:16]


def digests(rows: Dataset, column: str) -> np.ndarray:
    """Return short hashes of each value of a column of texts, images or vectors of numbers.

    Where ``text`` is made of several columns, their parts are hashed, not how they are joined.

    Returns:
        Array of shape ``(rows, 2)`` of bytes objects: of the value as it is, and to find
        duplicates, of a text with its white space normalized. Computed once for the same rows.
    """
    known = _DIGESTS.setdefault(rows, {})
    if column not in known:
        hashes = np.array(list(_hashed(rows, column)), dtype=object)
        known[column] = hashes.reshape(len(rows), 2)
    return known[column]


def remember(rows: Dataset, column: str, hashes: np.ndarray) -> None:
    """Take hashes of a column that were computed before.

    Args:
        rows: Of which :func:`digests` is then asked.
        column: Of images.
        hashes: Shape ``(rows, 16)``, uint8.
    """
    found = np.array([each.tobytes() for each in hashes], dtype=object)
    _DIGESTS.setdefault(rows, {})[column] = np.stack([found, found], axis=1)


def _hashed(rows: Dataset, column: str) -> Iterator[tuple[bytes, bytes]]:
    if column == "text" and TEXTS in rows.column_names:
        column = TEXTS
    rows, done = rows.select_columns([column]), 0
    if isinstance(rows.features[column], Image):
        rows = rows.cast_column(column, Image(decode=False))
    for batch in rows.iter(batch_size=1000):
        activity.advance("hashing", done, len(rows))
        done += len(batch[column])
        for value in batch[column]:
            if isinstance(value, dict):
                content = images.content(value)
            elif isinstance(value, str):
                content = value.encode()
            elif column == TEXTS:
                yield _hash(_bytes(value)), _hash(_bytes([_plain(part) for part in value]))
                continue
            else:
                content = np.asarray(value, dtype=np.float64).tobytes()
            same = other = _hash(content)
            if isinstance(value, str) and (plain := _plain(value)) != value:
                other = _hash(plain.encode())
            yield same, other


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _bytes(parts: list[str]) -> bytes:
    """Return bytes that no other parts have, and no text: 0xff is not in UTF-8."""
    return b"".join(b"%d\xff%s" % (len(part.encode()), part.encode()) for part in parts)


def _plain(text: str) -> str:
    """Return a text with single spaces only; the usual one, which has no others, is not split."""
    is_plain = text == text.strip() and not any(each in text for each in _WHITE_SPACE)
    return text if is_plain else " ".join(text.split())


def _select(rows: Dataset, indices: np.ndarray) -> Dataset:
    """Return ``rows.select(indices)`` with the known hashes of these rows."""
    selected = rows.select(indices)
    _DIGESTS[selected] = {name: each[indices] for name, each in _DIGESTS.get(rows, {}).items()}
    return selected


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` rows in which every class keeps its share, sorted.

    scikit-learn's splitter refuses a class with a single row, and a sample with fewer rows than
    classes; the largest-remainder method (Hamilton's) handles both.

    Args:
        labels: The class of each row, shape ``(rows,)``, or which classes it has, shape
            ``(rows, classes)``.
        size: At most ``rows``.
        seed: Decides which rows of a class are sampled.
    """
    if not size:
        return np.empty(0, dtype=int)
    if labels.ndim == 2:
        return stratification.iterative(labels, size, seed)
    generator = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    shares = counts * (size / len(labels))
    quota = np.floor(shares).astype(int)
    remainders = np.argsort(quota - shares, kind="stable")
    quota[remainders[: size - quota.sum()]] += 1
    drawn = [
        generator.permutation(np.flatnonzero(labels == each))[:take]
        for each, take in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def _carve(rows: Dataset, size: int, seed: int) -> tuple[Dataset, Dataset]:
    labels = targets.strata(rows)
    # the first row of each class stays: training must know every class that is evaluated
    first = np.unique(labels, return_index=True)[1] if labels.ndim == 1 else labels.argmax(axis=0)
    spare = np.setdiff1d(np.arange(len(rows)), first)
    size = min(size, len(spare))
    taken = spare[stratified(labels[spare], size, seed)]
    left = np.setdiff1d(np.arange(len(rows)), taken)
    return _select(rows, left), _select(rows, taken)
