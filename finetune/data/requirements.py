"""What a data set must have before a model can be trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, List, Value

from finetune.data import targets
from finetune.data.columns import describe_columns
from finetune.data.label_columns import list_names, source_rows
from finetune.errors import Report


def require_labelled(dataset: DatasetDict, input_column: str, report: Report) -> None:
    """Refuse raw rows without the columns that a recipe loads, or with labels of another type.

    Raises:
        UserError: With all that is wrong.
    """
    for split, rows in dataset.items():
        missing = [name for name in (input_column, "label") if name not in rows.column_names]
        if missing:
            problem = f"no column {list_names(missing)} in the {split} data"
            report.error(problem + describe_columns(rows, missing[0]))
        elif not (targets.are_classes(rows) or _is_float(rows.features["label"])):
            report.error(
                f"the column 'label' of the {split} data is {rows.features['label']}; this recipe "
                "reads a ClassLabel, a floating-point number, or lists of these"
            )
    report.raise_errors()


def _is_float(feature: Any) -> bool:
    inner = feature.feature if isinstance(feature, List) else feature
    return isinstance(inner, Value) and inner.dtype.startswith("float")


def require_rows(dataset: DatasetDict, names: Sequence[str], report: Report) -> None:
    """Refuse splits without rows, and training rows that have all the same label.

    ``names`` are what the user calls the labels: their column, or several columns of numbers.

    Raises:
        UserError: With all mistakes.
    """
    for split, rows in dataset.items():
        if not len(rows):
            report.error(f"the {split} data has no rows{_list_dropped_rows(report)}")
    _require_different_labels(dataset["train"], names, report)
    report.raise_errors()


def _require_different_labels(train: Dataset, names: Sequence[str], report: Report) -> None:
    """Report training rows that all have the same label: nothing can be learned of them."""
    constant: dict[str, str] = {}
    if not len(train):
        return
    if targets.are_classes(train):
        classes, counts = targets.class_names(train), targets.counts(train)
        if {*counts.values()} <= {len(train)}:
            constant = {names[0]: list_names([classes[number] for number in counts]) or "none"}
    else:
        labels = np.asarray(targets.values(train)).reshape(len(train), -1)
        is_constant = (labels == labels[0]).all(axis=0)
        for place in np.flatnonzero(is_constant).tolist():
            name = names[place] if place < len(names) else f"target {place + 1}"
            constant[name] = f"{labels[0, place]:g}"
    for name, label in constant.items():
        report.error(
            f"all {len(train):,} training rows have the same label in '{name}' ({label}): "
            f"expected two different ones or more{_list_dropped_rows(report)}"
        )


def require_splits(
    dataset: DatasetDict,
    source: DatasetDict,
    names: Sequence[str],
    report: Report,
    *,
    can_rename: bool,
    split_by: Mapping[str, str] | None = None,
) -> None:
    """Refuse splits without rows, and those with classes that training does not have.

    Args:
        dataset: Training, validation and test rows.
        source: The splits that these were made of.
        names: What the user calls the labels, as in :func:`require_rows`.
        report: Gets an error for each mistake.
        can_rename: Whether there is ``--label_map``.
        split_by: The columns that rows were split by, by the options that name them.

    Raises:
        UserError: With all mistakes.
    """
    train = dataset["train"]
    classes, trained = targets.class_names(train), targets.counts(train)
    _require_different_labels(train, names, report)
    for split in ("validation", "test"):
        rows = dataset[split]
        if not len(rows):
            reason = "the data is too small, or most labels occur once"
            report.error(f"no rows are left for {split}: {reason}{_list_dropped_rows(report)}")
        elif unknown := targets.counts(rows).keys() - trained:
            flags = " ".join(f"{flag} {name}" for flag, name in (split_by or {}).items())
            fix = f"the rows are split by {flags}; " if flags else ""
            fix += "rename them by --label_map OLD=NEW, " if can_rename else ""
            fix += f"add training rows for them, or do without: --dataset_splits {split}=none"
            report.error(
                f"the {split} data has labels in '{names[0]}' that the training data does not "
                f"have: {list_names([classes[number] for number in sorted(unknown)])}",
                split=split if split in source else "train",
                rows=[int(source_rows(rows)[targets.first_with(rows, unknown)])],
                fix=fix,
            )
    report.raise_errors()


def _list_dropped_rows(report: Report) -> str:
    """Return which rows were left out so far."""
    dropped = [report.text(item) for item in report.findings if item.name == "dropped_rows"]
    return f" ({'; '.join(dropped)})" if dropped else ""
