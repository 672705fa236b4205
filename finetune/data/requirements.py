"""What a data set must have before a model can be trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from datasets import Dataset, DatasetDict

from finetune.data import ROW, arrow, targets
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
        elif not targets.is_known(feature := rows.features["label"]):
            report.error(
                f"the column 'label' of the {split} data is neither a ClassLabel nor a floating-"
                f"point number, nor a list of these, but {feature}",
                fix="this recipe reads data in its own format only",
            )
        elif targets.are_classes(rows):
            read_label_column(rows, "label", split, report)  # refuses numbers without a name
    report.raise_errors()


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
            report.error(f"the {split} data has no rows{_because(report)}")
    if len(train := dataset["train"]):
        names, present = targets.class_names(train), targets.occurring(train)
        listing = list_names([names[number] for number in sorted(present)]) if names else ""
        if targets.is_set(train):
            if not present:
                report.error(
                    f"no training row has a label: all lists of labels in '{column}' are empty"
                )
            elif targets.all_alike(train):
                report.error(f"all training rows have the same labels in '{column}' ({listing})")
        elif names and len(present) < 2:
            report.error(
                f"the training data has one class only in '{column}' ({listing}): expected two or "
                "more"
            )
    report.raise_errors()


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
        report: Gets an error for each mistake, and a warning for each held-out split of one row.
        can_rename: Whether there is ``--label_map``.
        split_by: The columns that rows were split by, by the options that name them.

    Raises:
        UserError: With all mistakes.
    """
    train = dataset["train"]
    names, trained = targets.class_names(train), targets.occurring(train)
    if len(names) > 1 and len(trained) < 2 and not targets.is_set(train):
        listing = list_names([names[number] for number in trained])
        report.error(
            f"the rows left for training have one class only in '{column}' ({listing})"
            f"{_because(report)}"
        )
    for split in ("validation", "test"):
        rows = dataset[split]
        if not len(rows):
            why = "the data is too small, or most labels occur once"
            report.error(f"no rows are left for {split}: {why}{_because(report)}")
        elif len(rows) == 1:
            report.warning(
                f"the {split} data has one row: a score on it says nothing of other rows"
            )
        if names and (unknown := sorted(targets.occurring(rows) - trained)):
            by = " ".join(f"{flag} {name}" for flag, name in (split_by or {}).items())
            fix = f"the rows are split by {by}; " if by else ""
            fix += "write them as training does, by --label_map OLD=NEW, " if can_rename else ""
            fix += "add training rows for them, or leave them out"
            if len(unknown) == len(targets.occurring(rows)) and not by:
                fix += f"; --dataset_splits {split}=none does not read these rows"
            report.error(
                f"the {split} data has labels in '{column}' that the training data does not have: "
                f"{list_names([names[number] for number in unknown])}",
                split=split if split in source else "train",
                rows=_first_row(rows, unknown),
                fix=fix,
            )
    report.raise_errors()


def _first_row(rows: Dataset, classes: Sequence[int]) -> list[int]:
    """Return the source number of the first row that has one of these classes."""
    cells = arrow.column(rows, "label").to_pylist()
    lists = [cell if isinstance(cell, list) else [cell] for cell in cells]
    place = next(place for place, cell in enumerate(lists) if not set(classes).isdisjoint(cell))
    return [int(source_rows(rows)[place])]


def _because(report: Report) -> str:
    """Return what has been noticed so far: it says which rows were left out."""
    sentences = report.sentences("warning", "info")
    return f" ({'; '.join(sentences)})" if sentences else ""
