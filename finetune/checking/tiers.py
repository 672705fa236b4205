"""What every training looks at in its rows, in seconds, and what ``check --deep`` adds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from datasets import ClassLabel, DatasetDict, Value

from finetune.checking import labels, texts, words
from finetune.data.repeated import find_near_duplicates
from finetune.data.row_index import Plan
from finetune.errors import Finding
from finetune.runtime import activity

#: Training rows below which words say nothing about labels.
_FEWEST_ROWS = 100


def check_rows(
    source: DatasetDict,
    splits: DatasetDict,
    columns: Sequence[str],
    targets: Sequence[str] = ("label",),
    split_by: Collection[str] = (),
) -> list[Finding]:
    """Return what is suspicious in texts, classes and numbers.

    Args:
        source: The splits as they were read, with ``_row``, ``label`` and what the model reads.
        splits: Training, validation and test rows made of it.
        columns: The names in the data of the columns that the model reads.
        targets: The names of targets that are numbers.
        split_by: The columns that rows are split by.
    """
    findings = []
    for split, rows in source.items():
        findings += texts.find_damaged_texts(rows, split, columns)
        findings += labels.find_far_targets(rows, split, targets)
    findings += labels.find_split_columns(source, {*columns, *split_by, "label"})
    return [*findings, *labels.find_class_problems(splits), *labels.find_shifts(source)]


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
    only = "here only near duplicates and languages were looked for"
    if not isinstance(rows.features["label"], ClassLabel):
        return [*findings, _limit(f"--deep checks labels of one class a row; {only}")]
    if len(rows) < _FEWEST_ROWS:
        return [*findings, _limit(f"--deep checks labels from {_FEWEST_ROWS} rows on; {only}")]
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
