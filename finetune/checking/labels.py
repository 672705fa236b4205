"""Classes that a model hardly sees or that cannot be measured, and targets far from all others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, List
from scipy.stats import chi2_contingency

from finetune.data import arrow, targets
from finetune.data.files_of_splits import KEYWORDS
from finetune.data.row_findings import EXCLUDE, SUSPICIOUS_SHARE, describe_rows
from finetune.errors import Finding, counted

#: The share of training rows above which a class outweighs all others.
_DOMINANT = 0.9
#: Training rows below which a class is hardly learned.
_FEWEST_ROWS = 10
#: The total variation distance between the class shares of two splits from which they differ, if
#: chance does that with at most this probability.
_LEAST_DISTANCE, _MOST_PROBABLE = 0.1, 0.001
#: Robust standard deviations from the median beyond which a target is far; the factor makes one of
#: a median absolute deviation, for a normal distribution.
_FAR, _MAD_FACTOR = 10, 1.4826
_MOST_NAMED = 5
_SPLIT_COLUMNS = {"split", "set", "fold", "partition", "subset"}


def count_classes(rows: Dataset) -> np.ndarray:
    """Return how many rows have each class, shape ``(classes,)``; empty for numbers."""
    counts = targets.counts(rows)
    names = targets.class_names(rows)
    return np.array([counts.get(number, 0) for number in range(len(names))], dtype=np.int64)


def find_class_problems(splits: DatasetDict) -> list[Finding]:
    """Return what is suspicious in the classes that are trained and tested.

    Args:
        splits: ``train`` and ``test`` with ``label``; numbers have no classes.
    """
    train, names = splits["train"], targets.class_names(splits["train"])
    if not names:
        return []
    findings = []
    counts, noun = count_classes(train), "label" if targets.is_set(train) else "class"
    largest = int(counts.argmax())
    if counts[largest] > _DOMINANT * len(train):
        message = (
            f"{counts[largest] / len(train):.1%} of the training rows have the {noun} "
            f"'{names[largest]}': a model that always says so is hardly ever wrong"
        )
        fix = "--class_weights balanced, and --metrics f1_macro,average_precision"
        if targets.is_set(train):
            fix = "leave the label out, or add rows without it"
        findings.append(_describe_classes("imbalance", message, fix, counts[largest], train))
    small = np.flatnonzero((counts > 0) & (counts < _FEWEST_ROWS))
    small = small[np.argsort(counts[small], kind="stable")]
    untested = np.flatnonzero((counts > 1) & (count_classes(splits["test"]) == 0))
    for name, classes, description, fix in (
        ("few_rows_of_a_class", small, f"with fewer than {_FEWEST_ROWS} training rows", "add rows"),
        ("not_in_test", untested, "of the training rows without a test row", "add test rows"),
    ):
        if len(classes):
            listed = ", ".join(
                f"'{names[number]}' ({counts[number]:,})" for number in classes[:_MOST_NAMED]
            )
            listed += ", ..." * (len(classes) > _MOST_NAMED)
            message = f"{counted(len(classes), noun)} {description}: {listed}"
            fix += ", or merge classes: --label_map OLD=NEW"
            findings.append(_describe_classes(name, message, fix, counts[classes].sum(), train))
    return findings


def _describe_classes(name: str, message: str, fix: str, count: int, rows: Dataset) -> Finding:
    return Finding(
        name=name,
        severity="warning",
        message=message,
        fix=fix,
        count=int(count),
        examined=len(rows),
    )


def find_shifts(source: DatasetDict) -> list[Finding]:
    """Return the validation and test splits whose classes have other shares than in training.

    Args:
        source: The splits as they were read, with ``label``.
    """
    findings = []
    trained, names = count_classes(source["train"]), targets.class_names(source["train"])
    for split in ("validation", "test"):
        if split not in source or not trained.sum() or targets.is_set(source[split]):
            continue
        counts = count_classes(source[split])
        shares, trained_shares = counts / max(1, counts.sum()), trained / trained.sum()
        distances = np.abs(shares - trained_shares)
        is_used = trained + counts > 0
        if (
            is_used.sum() < 2
            or distances.sum() / 2 < _LEAST_DISTANCE
            or chi2_contingency(np.stack([trained, counts])[:, is_used]).pvalue > _MOST_PROBABLE
        ):
            continue
        largest = int(distances.argmax())
        message = (
            f"the classes of the {split} data have other shares than in training: "
            f"'{names[largest]}' has {shares[largest]:.1%} instead of {trained_shares[largest]:.1%}"
        )
        fix = f"if it is the wrong file, --dataset_splits {split}=none splits off other rows"
        findings.append(_describe_classes("shift", message, fix, counts.sum(), source[split]))
    return findings


def find_far_targets(rows: Dataset, split: str, names: Sequence[str]) -> list[Finding]:
    """Return the targets of a regression that are far from all others; nothing for classes.

    Args:
        rows: With ``_row`` and ``label``.
        split: The name of the split in the source.
        names: Of the targets.
    """
    if targets.are_classes(rows) or not len(rows):
        return []
    labels = arrow.column(rows, "label")
    values = pc.list_flatten(labels) if isinstance(rows.features["label"], List) else labels
    columns = values.to_numpy().astype(np.float64).reshape(len(rows), -1)
    findings = []
    for number, column in enumerate(columns.T):
        name = names[number] if len(names) == columns.shape[1] else f"target {number + 1}"
        median = np.median(column)
        scale = _MAD_FACTOR * np.median(np.abs(column - median))
        if scale == 0:
            continue
        distances = np.abs(column - median) / scale
        distant = np.flatnonzero(distances > _FAR)
        is_rare = len(distant) <= SUSPICIOUS_SHARE * len(rows)  # else it is a long tail
        findings += describe_rows(
            "far_targets",
            f"more than {_FAR} robust standard deviations from the median of '{name}', {median:g}; "
            f"the farthest is {column[distances.argmax()]:g}",
            f"is the unit or the decimal point wrong? If so, correct them, or {EXCLUDE}",
            distant,
            rows,
            split,
            severity="warning" if is_rare else "info",
        )
    return findings


def find_split_columns(source: DatasetDict, read: Collection[str]) -> list[Finding]:
    """Return the columns that name the split of each row, and are not read.

    Args:
        source: The splits as they were read.
        read: Columns that are read.
    """
    names = dict[str, None]()
    for rows in source.values():
        for name in rows.column_names:
            if name.lower() in _SPLIT_COLUMNS and name not in read:
                values = arrow.column(rows, name).unique().to_pylist()
                splits = {str(value).strip().lower() for value in values if value is not None}
                if len(splits - {""}) > 1 and splits - {""} <= KEYWORDS.keys():
                    names[name] = None
    return [
        Finding(
            name="split_column",
            severity="warning",
            message=f"'{name}' names the split of each row, and is not read",
            fix="write a file for each split: train.csv, validation.csv, test.csv",
        )
        for name in names
    ]
