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
from finetune.errors import Report, counted
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
    split_by: Collection[str],
    report: Report,
) -> None:
    """Report what is suspicious in texts and classes.

    Args:
        source: The splits as they were read, with ``_row``, ``label`` and what the model reads.
        splits: Training, validation and test rows made of it.
        columns: The names in the data of the columns that the model reads.
        split_by: The columns that rows are split by.
        report: Gets the findings.
    """
    for split, rows in source.items():
        texts.find_damaged_texts(rows, split, columns, report)
    _find_split_columns(source, {*columns, *split_by, "label"}, report)
    _find_class_problems(splits["train"], splits["test"], report)


def check_deep(
    source: DatasetDict,
    splits: DatasetDict,
    column: str,
    read: Sequence[str],
    plan: Plan,
    report: Report,
) -> None:
    """Report what is suspicious in how texts and labels resemble each other; takes minutes.

    Args:
        source: The splits as they were read, with ``_row``, ``label`` and ``column``.
        splits: Training, validation and test rows made of it.
        column: Of the texts.
        read: The names in the data of the columns that the model reads.
        plan: How rows are split: near duplicates that it leaves out are in the report already.
        report: Gets the findings.
    """
    rows = splits["train"]
    feature = rows.features[column]
    if not (isinstance(feature, Value) and feature.dtype in ("string", "large_string")):
        report.info("--deep looks at texts, and this recipe reads none", "deep")
        return
    find_near_duplicates(source, column, plan, report)
    texts.find_other_languages(rows, column, report)
    if not isinstance(rows.features["label"], ClassLabel) or len(rows) < _FEWEST_FOR_WORDS:
        limit = f"expected {_FEWEST_FOR_WORDS} training rows or more with one class each"
        report.info(f"--deep did not look at words and labels: {limit}", "deep")
        return
    activity.say("looking at words and labels")
    sample = words.sample_rows(rows)
    words.find_revealing_words(sample, column, report)
    words.find_revealing_columns(sample, read, report)
    words.find_suspected_labels(sample, column, report)


def _find_class_problems(train: Dataset, test: Dataset, report: Report) -> None:
    """Report classes that outweigh all others, and that are hardly trained or not tested."""
    names, noun = targets.class_names(train), "label" if targets.is_set(train) else "class"
    numbers, tested = range(len(names)), targets.counts(test)
    frequencies = targets.counts(train)
    counts = np.array([frequencies.get(number, 0) for number in numbers], dtype=np.int64)
    is_untested = np.array([number not in tested for number in numbers], dtype=bool)
    merge = "or merge classes: --label_map OLD=NEW"
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
            (counts > 1) & is_untested,
            "of the training rows without a test row",
            f"add test rows, {merge}",
        ),
    ):
        classes = np.flatnonzero(is_concerned)
        classes = classes[np.argsort(counts[classes], kind="stable")]
        listed = [
            f"'{names[number]}' {counts[number] / len(train):.1%} ({counts[number]:,})"
            for number in classes[:_MOST_NAMED]
        ]
        message = f"{counted(len(classes), noun)} {description}: {', '.join(listed)}"
        message += ", ..." * (len(classes) > _MOST_NAMED)
        if len(classes):
            count = int(counts[classes].sum())
            report.warning(message, name, fix=fix, count=count, examined=len(train))


def _find_split_columns(source: DatasetDict, read: Collection[str], report: Report) -> None:
    """Report the columns that name the split of each row, and are not read."""
    for rows in source.values():
        for name in rows.column_names:
            if name.lower() in _SPLIT_COLUMNS and name not in read:
                values = arrow.column(rows, name).unique().drop_null().to_pylist()
                splits = {str(value).strip().lower() for value in values} - {""}
                if len(splits) > 1 and splits <= KEYWORDS.keys():
                    message = f"'{name}' names the split of each row, and is not read"
                    fix = "write a file for each split: train.csv, validation.csv, test.csv"
                    report.warning(message, "split_column", fix=fix)
