"""What a data set must have before a model can be trained on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset, DatasetDict, List, Value

from finetune.data import ROW, targets
from finetune.data.label_columns import list_names, read_label_column, source_rows
from finetune.errors import Report


def require_labelled(dataset: DatasetDict, input_column: str, report: Report) -> None:
    """Refuse raw rows without the columns that a recipe loads, or with labels of another type.

    Raises:
        UserError: With all that is wrong.
    """
    for split, rows in dataset.items():
        names = [name for name in rows.column_names if name != ROW]
        if missing := [name for name in (input_column, "label") if name not in names]:
            report.error(
                f"no column {list_names(missing)} in the {split} data "
                f"(available: {', '.join(names)})"
            )
        elif targets.are_classes(rows):
            read_label_column(rows, "label", split, report)  # refuses numbers without a name
        elif not _is_float(feature := rows.features["label"]):
            report.error(
                f"the column 'label' of the {split} data is neither a ClassLabel nor a floating-"
                f"point number, nor a list of these, but {feature}",
                fix="this recipe reads data in its own format only",
            )
    report.raise_errors()


def _is_float(feature: Any) -> bool:
    inner = feature.feature if isinstance(feature, List) else feature
    return isinstance(inner, Value) and inner.dtype.startswith("float")


def require_rows(dataset: DatasetDict, column: str, report: Report) -> None:
    """Refuse splits without rows, and training rows with a single class.

    Args:
        dataset: Splits with ``label``.
        column: What the user calls that of the labels.
        report: Gets an error for each mistake.

    Raises:
        UserError: With all of them.
    """
    for split, rows in dataset.items():
        if not len(rows):
            report.error(f"the {split} data has no rows{_list_dropped_rows(report)}")
    _require_classes(dataset["train"], column, report)
    report.raise_errors()


def _require_classes(train: Dataset, column: str, report: Report) -> None:
    """Report training rows that all have the same labels."""
    names, counts = targets.class_names(train), targets.counts(train)
    if len(train) and targets.are_classes(train) and {*counts.values()} <= {len(train)}:
        listing = list_names([names[number] for number in counts]) or "none"
        report.error(
            f"all {len(train):,} training rows have the same label in '{column}' ({listing}): "
            f"expected two classes or more{_list_dropped_rows(report)}"
        )


def require_splits(
    dataset: DatasetDict,
    source: DatasetDict,
    column: str,
    report: Report,
    *,
    can_rename: bool,
    split_by: Mapping[str, str] | None = None,
) -> None:
    """Refuse splits without rows, and those with classes that training does not have.

    Args:
        dataset: Training, validation and test rows.
        source: The splits that these were made of.
        column: What the user calls that of the labels.
        report: Gets an error for each mistake.
        can_rename: Whether there is ``--label_map``.
        split_by: The columns that rows were split by, by the options that name them.

    Raises:
        UserError: With all mistakes.
    """
    train = dataset["train"]
    names, trained = targets.class_names(train), targets.counts(train)
    _require_classes(train, column, report)
    for split in ("validation", "test"):
        rows = dataset[split]
        if not len(rows):
            why = "the data is too small, or most labels occur once"
            report.error(f"no rows are left for {split}: {why}{_list_dropped_rows(report)}")
        elif unknown := targets.counts(rows).keys() - trained:
            labels = targets.values(rows)
            place = next(
                place
                for place, label in enumerate(labels)
                if not unknown.isdisjoint(label if isinstance(label, list) else [label])
            )
            flags = " ".join(f"{flag} {name}" for flag, name in (split_by or {}).items())
            fix = f"the rows are split by {flags}; " if flags else ""
            fix += "rename them by --label_map OLD=NEW, " if can_rename else ""
            fix += f"add training rows for them, or do without: --dataset_splits {split}=none"
            report.error(
                f"the {split} data has labels in '{column}' that the training data does not have: "
                f"{list_names([names[number] for number in sorted(unknown)])}",
                split=split if split in source else "train",
                rows=[int(source_rows(rows)[place])],
                fix=fix,
            )
    report.raise_errors()


def _list_dropped_rows(report: Report) -> str:
    """Return which rows were left out so far."""
    dropped = [report.text(item) for item in report.findings if item.name == "dropped_rows"]
    return f" ({'; '.join(dropped)})" if dropped else ""
