"""What every training looks at in its rows, in seconds, and what ``check --deep`` adds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Value

from finetune.checking import texts, words
from finetune.data import arrow, targets
from finetune.data.files_of_splits import KEYWORDS
from finetune.data.repeated import find_near_duplicates
from finetune.data.row_index import Plan
from finetune.errors import Finding, counted
from finetune.runtime import activity

#: The share of training rows above which a class outweighs all others.
_DOMINANT = 0.9
#: Training rows below which a class is hardly learned, and words say nothing about labels.
_FEWEST_ROWS, _FEWEST_FOR_WORDS = 10, 100
_MOST_NAMED = 5
_SPLIT_COLUMNS = {"split", "set", "fold", "partition", "subset"}


def check_rows(
    source: DatasetDict,
    splits: DatasetDict,
    columns: Sequence[str],
    split_by: Collection[str] = (),
) -> list[Finding]:
    """Return what is suspicious in texts and classes.

    Args:
        source: The splits as they were read, with ``_row``, ``label`` and what the model reads.
        splits: Training, validation and test rows made of it.
        columns: The names in the data of the columns that the model reads.
        split_by: The columns that rows are split by.
    """
    findings = []
    for split, rows in source.items():
        findings += texts.find_damaged_texts(rows, split, columns)
    findings += _find_split_columns(source, {*columns, *split_by, "label"})
    return findings + _find_class_problems(splits["train"], splits["test"])


def check_deep(
    source: DatasetDict,
    splits: DatasetDict,
    column: str,
    read: Sequence[str],
    plan: Plan,
) -> list[Finding]:
    """Return what is suspicious in how texts and labels resemble each other; takes minutes.

    Args:
        source: The splits as they were read, with ``_row``, ``label`` and ``column``.
        splits: Training, validation and test rows made of it.
        column: Of the texts.
        read: The names in the data of the columns that the model reads.
        plan: How rows are split: near duplicates that it leaves out are in the report already.
    """
    rows = splits["train"]
    feature = rows.features[column]
    if not (isinstance(feature, Value) and feature.dtype in ("string", "large_string")):
        return [_limit("--deep looks at texts, and this recipe reads none")]
    findings = [
        *find_near_duplicates(source, column, plan),
        *texts.find_other_languages(rows, column),
    ]
    if not isinstance(rows.features["label"], ClassLabel) or len(rows) < _FEWEST_FOR_WORDS:
        limit = f"words and labels were not looked at: expected {_FEWEST_FOR_WORDS} training rows"
        return [*findings, _limit(f"{limit} or more with one class each")]
    activity.say("looking at words and labels")
    sample = words.sample_rows(rows)
    return [
        *findings,
        *words.find_revealing_words(sample, column),
        *words.find_revealing_columns(sample, read),
        *words.find_suspected_labels(sample, column),
    ]


def _limit(message: str) -> Finding:
    return Finding(name="deep", severity="info", message=message)


def _find_class_problems(train: Dataset, test: Dataset) -> list[Finding]:
    """Return the classes that outweigh all others, and that are hardly trained or not tested."""
    names, noun = targets.class_names(train), "label" if targets.is_set(train) else "class"
    if not names:
        return []
    counts, tested = np.zeros((2, len(names)), np.int64)
    for rows, frequencies in ((train, counts), (test, tested)):
        numbers = targets.counts(rows)
        frequencies[[*numbers]] = [*numbers.values()]
    order = np.argsort(counts, kind="stable")
    merge = "or merge classes: --label_map OLD=NEW"
    findings = []
    for name, is_concerned, description, fix in (
        (
            "imbalance",
            counts > _DOMINANT * len(train),
            f"that more than {_DOMINANT:.0%} of the training rows have",
            "--class_weights balanced, and --metrics f1_macro,average_precision",
        ),
        (
            "few_rows_of_a_class",
            (counts > 0) & (counts < _FEWEST_ROWS),
            f"with fewer than {_FEWEST_ROWS} training rows",
            f"add rows, {merge}",
        ),
        (
            "not_in_test",
            (counts > 1) & (tested == 0),
            "of the training rows without a test row",
            f"add test rows, {merge}",
        ),
    ):
        if not is_concerned.any():
            continue
        classes = order[is_concerned[order]]
        listed = [
            f"'{names[number]}' {counts[number] / len(train):.1%} ({counts[number]:,})"
            for number in classes[:_MOST_NAMED]
        ]
        message = f"{counted(len(classes), noun)} {description}: {', '.join(listed)}"
        findings.append(
            Finding(
                name=name,
                severity="warning",
                message=message + ", ..." * (len(classes) > _MOST_NAMED),
                fix=fix,
                count=int(counts[classes].sum()),
                examined=len(train),
            )
        )
    return findings


def _find_split_columns(source: DatasetDict, read: Collection[str]) -> list[Finding]:
    """Return the columns that name the split of each row, and are not read."""
    names = dict[str, None]()
    for rows in source.values():
        for name in rows.column_names:
            if name.lower() in _SPLIT_COLUMNS and name not in read:
                values = arrow.column(rows, name).unique().to_pylist()
                splits = {str(value).strip().lower() for value in values if value is not None}
                splits -= {""}
                if len(splits) > 1 and splits <= KEYWORDS.keys():
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
