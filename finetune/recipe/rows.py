"""The rows of a recipe: from its source to labelled rows, and to checked splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datasets import DatasetDict

from finetune.data import corrections, sources
from finetune.data.columns import (
    check_names,
    read_label_columns,
    require_labelled,
    require_rows,
)
from finetune.data.comma_list import split_values
from finetune.data.splits import Plan
from finetune.runtime import hub
from finetune.tasks import decision

if TYPE_CHECKING:
    from finetune.data.labels import LabelOptions
    from finetune.recipe.base import Recipe


def split_plan(recipe: Recipe) -> Plan:
    """Return how the options of a recipe split rows."""
    names = {field.name for field in dataclasses.fields(Plan)} & vars(recipe).keys()
    return Plan(
        seed=recipe.split_seed,
        drop=bool(getattr(recipe, "drop_invalid", False)),
        **{name: getattr(recipe, name) for name in names},
    )


def correction_files(recipe: Recipe) -> dict[str, list[str]]:
    """Return the names of the files of corrections, by the option that names them."""
    options = {"relabel": recipe.relabel, "exclude": recipe.exclude}
    return {name: split_values(value or "") for name, value in options.items()}


def warn_of_missing_header(recipe: Recipe, dataset: DatasetDict, text: str, label: str) -> None:
    """Warn of files whose first line is probably a row, not the names of the columns."""
    if recipe.row_source is None or recipe.row_source.kind != "local":
        return
    for split, rows in dataset.items():
        if column := sources.names_are_values(rows, [text, label]):
            recipe.report.warning(
                f"the first line of the {split} data looks like a row, not like column names: "
                f"'{column}' is both the name of a column and a value in it",
                "missing_header",
                split=split,
                fix="add a first line with the names of the columns, such as 'text,label'",
            )


def add_labels(
    recipe: Recipe, dataset: DatasetDict, texts: Sequence[str], options: LabelOptions
) -> tuple[DatasetDict, str]:
    """Return the rows with ``label`` instead of the columns of labels, and their task.

    A single text is then called ``text``; no value of ``texts`` may be missing.

    Raises:
        UserError: If a label cannot be read, or it is not clear which task they are.
    """
    columns = read_label_columns(dataset, texts, options, recipe.report)
    if options.task == decision.AUTO:
        task, recipe.task_reason = decision.decide_task(columns["train"], options, recipe.report)
        options = dataclasses.replace(options, task=task)
    encoded = decision.encode_labels(columns, options, recipe.report)
    recipe.label_name, recipe.unmapped_labels = options.columns[0], encoded.unmapped
    dataset = dataset.remove_columns([*options.columns])
    if len(texts) == 1 and texts[0] != "text":
        dataset = dataset.rename_column(texts[0], "text")
    return encoded.added_to(dataset), options.task


def read_source(recipe: Recipe) -> DatasetDict:
    """Return what a recipe loads, numbered, with labels.

    Raises:
        UserError: If columns are missing, or there are no rows.
    """
    hub.require({**vars(recipe), "model": None}, embedded=bool(recipe.embedded))
    dataset = sources.number_rows(recipe.load())
    require_labelled(dataset, recipe.input_column, recipe.report)
    require_rows(dataset, recipe.target_names or [recipe.label_name], recipe.report)
    return dataset


def make_splits(recipe: Recipe) -> DatasetDict:
    """Return the splits of a recipe's source, corrected and checked.

    Raises:
        UserError: With all errors of the report, if there are any.
    """
    from finetune.checking.rows import check_rows

    source, report = recipe.source, recipe.report
    check_names(source, recipe.unmapped_labels, report)
    report.raise_errors()
    dataset = recipe.split(source)
    if any((files := correction_files(recipe)).values()):
        dataset, recipe.corrections = corrections.apply(
            dataset, source, recipe.input_column, report=report, **files
        )
    require_rows(dataset, recipe.target_names or [recipe.label_name], report, source)
    split_by = [name for name in (recipe.group_column, recipe.time_column) if name is not None]
    check_rows(source, dataset, recipe.columns_read(), split_by, report)
    return dataset
