"""Split off ``train``, ``validation`` and ``test``, so that selection never sees the test set.

Exact duplicates are dropped, the splits are split off, then rows are sampled. It depends only on a
seed of its own, not on that of the training, so that runs with other seeds stay comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, DatasetDict, Image

from finetune.runtime import activity

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
MOST_VALIDATION_ROWS = 10_000
#: Rows that a split held out of the others has too.
_LEAKED = {
    "validation": "validation rows that stand in the test set too",
    "train": "training rows that stand in the validation or test set too",
}


def three_way(
    dataset: DatasetDict,
    *,
    column: str,
    seed: int,
    train_samples: int | None,
    eval_samples: int | None,
    note: Callable[[str], None],
) -> DatasetDict:
    """Return the three splits, each in the order of its source.

    Args:
        dataset: A ``train`` split, and ``validation`` and ``test`` where the source has them, with
            ``column`` and ``label``. A test set of 20% and a validation set of 10% of the training
            rows (at most 10,000) are split off where they are missing, stratified.
        column: Rows with the same value here are duplicates; the first is kept. Training rows that
            stand in the source's own test or validation set are dropped as well, and validation
            rows that stand in its test set. The test set is left as it is.
        seed: Decides which rows go where.
        train_samples: Rows to train on, or None for all.
        eval_samples: The most rows of validation and of test each, or None for all.
        note: Takes sentences about the rows dropped.
    """
    splits = dict(dataset)
    held_out: set[bytes] = set()
    for name in ("test", "validation", "train"):  # each is cleared of what is held out so far
        if name not in splits:
            continue
        hashes = pd.Series(list(digests(splits[name], column)), dtype=object)
        dropped = hashes.isin(held_out).to_numpy()
        if count := dropped.sum():
            note(f"dropped {count:,} {_LEAKED[name]}")
        if name == "train":
            repeated = hashes.duplicated().to_numpy() & ~dropped
            if count := repeated.sum():
                note(f"dropped {count:,} exact duplicates")
            dropped = dropped | repeated
        if dropped.any():
            splits[name] = splits[name].select(np.flatnonzero(~dropped))
        held_out.update(hashes)
    if "test" not in splits:
        rows = len(splits["train"])
        splits["train"], splits["test"] = _carve(splits["train"], round(TEST_SHARE * rows), seed)
    if "validation" not in splits:
        size = min(round(VALIDATION_SHARE * len(splits["train"])), MOST_VALIDATION_ROWS)
        splits["train"], splits["validation"] = _carve(splits["train"], size, seed + 1)
    caps = {"train": train_samples, "validation": eval_samples, "test": eval_samples}
    for name, cap in caps.items():
        if cap is not None and cap < len(splits[name]):
            drawn = stratified(_strata(splits[name]), cap, seed + 2)
            splits[name] = splits[name].select(drawn)
    return DatasetDict({name: splits[name] for name in caps})


def fingerprint(dataset: DatasetDict, column: str) -> str:
    """Return a hash of what the rows hold, in their order, wherever they lie."""
    whole = hashlib.sha256()
    for name in sorted(dataset):
        whole.update(name.encode())
        labels = dataset[name]["label"][:]
        for digest, label in zip(digests(dataset[name], column), labels, strict=True):
            whole.update(digest + str(label).encode())
    return whole.hexdigest()[:16]


def digests(rows: Dataset, column: str) -> Iterator[bytes]:
    """Yield a short hash of each value of a column of texts, images or vectors of numbers."""
    rows, done = rows.select_columns([column]), 0
    if isinstance(rows.features[column], Image):
        rows = rows.cast_column(column, Image(decode=False))
    for batch in rows.iter(batch_size=1000):
        activity.advance("hashing", done, len(rows))
        done += len(batch[column])
        for value in batch[column]:
            if isinstance(value, dict):
                content = value["bytes"]
            elif isinstance(value, str):
                content = value.encode()
            else:
                content = np.asarray(value, dtype=np.float64).tobytes()
            yield hashlib.blake2b(content, digest_size=16).digest()


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` rows in which every class keeps its share, sorted.

    scikit-learn's splitter refuses a class of one row, and a draw that leaves fewer rows than
    there are classes; here the largest remainders decide (Hamilton's method), and both work.

    Args:
        labels: Shape ``(rows,)``, the class of each row.
        size: At most ``rows``.
        seed: Decides which rows of a class are drawn.
    """
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
    labels = _strata(rows)
    # the first row of each class stays: training must know every class that is evaluated
    spare = np.setdiff1d(np.arange(len(rows)), np.unique(labels, return_index=True)[1])
    size = min(size, len(spare))
    taken = spare[stratified(labels[spare], size, seed)]
    left = np.setdiff1d(np.arange(len(rows)), taken)
    return rows.select(left), rows.select(taken)


def _strata(rows: Dataset) -> np.ndarray:
    """The class of each row; a single one where the label is a number."""
    if isinstance(rows.features["label"], ClassLabel):
        return np.asarray(rows["label"][:])
    return np.zeros(len(rows), dtype=int)
