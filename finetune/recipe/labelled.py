"""Recipes with labels: which columns hold them, how they are written, and what task they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from finetune.data.comma_list import split_values
from finetune.errors import UserError
from finetune.recipe.options import option
from finetune.recipe.sourced import Sourced
from finetune.runtime import extras

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from finetune.data.label_columns import LabelOptions
    from finetune.data.plan import Plan


class Labelled(Sourced):
    """Rows with a label of any kind, in one column or in several."""

    exclusive: ClassVar[Sequence[tuple[str, str]]] = (("label_column", "label_columns"),)
    help_group = "labels"
    help_groups = dict.fromkeys(("drop_duplicates", "drop_overlap"), "splits")
    label_column: str = option("label", "column that holds the label")
    label_columns: str | None = option(
        None,
        "several label columns instead: each of 0 and 1 (a class each), or of numbers",
        several="NAME,NAME",
    )
    label_separator: str | None = option(
        None, "separator of several labels in a cell of --label_column, such as ';'"
    )
    thresholds: Literal["one", "label", "none"] = option(
        "one",
        "decision thresholds of multi-label tasks, fitted on validation: one for all labels, one "
        "per label, or none",
    )
    task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = option(
        "auto", "kind of labels (auto: detected from the training rows)"
    )
    label_map: str | None = option(
        None,
        "rename labels; labels with the same new name are merged",
        several="LABEL=NAME,LABEL=NAME",
    )
    label_order: str | None = option(
        None, "classes from the lowest to the highest, for --task ordinal", several="NAME,NAME,NAME"
    )
    drop_invalid: bool = option(
        False, "drop rows without a text or a label, instead of refusing them"
    )
    drop_duplicates: Literal["exact", "near"] = option(
        "exact",
        "keep one of the training rows with the same text; near: also of nearly the same text",
    )
    drop_overlap: Literal["exact", "near"] = option(
        "exact",
        "drop training rows whose text is also in the data's own validation or test split; near: "
        "also nearly the same text",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unmapped: Sequence[str] = ()
        mistakes = [*self._contradictions(), *self._mistakes_of_order()]
        if self.label_separator == "":
            mistakes.append("--label_separator: expected a character such as ';', found nothing")
        if mistakes:
            raise UserError(*mistakes)
        for name in ("drop_duplicates", "drop_overlap"):
            if getattr(self, name) == "near":
                extras.require(f"--{name} near", extras.NEAR)

    def plan(self) -> Plan:
        return dataclasses.replace(
            super().plan(), drop_duplicates=self.drop_duplicates, drop_overlap=self.drop_overlap
        )

    def _contradictions(self) -> list[str]:
        """Return a line for each two options of which both are set."""
        own = {each.name: each.default for each in dataclasses.fields(self)}
        return [
            f"--{one} {value} and --{other} {getattr(self, other)}: give one of the two"
            for one, other in self.exclusive
            if getattr(self, other) is not None
            and (value := getattr(self, one)) not in (own[one], self.embedded.get(one))
        ]

    def _mistakes_of_order(self) -> list[str]:
        """Return a line for each thing that is wrong with ``label_order``."""
        names, shown = self._ordered_names, f"--label_order {self.label_order}"
        if self.label_order is None:
            return []
        if self.task not in ("auto", "ordinal"):
            return [f"{shown}: the classes of --task {self.task} have no order; use --task ordinal"]
        if len(names) < 3:
            return [f"{shown}: expected three classes or more, separated by commas"]
        if twice := [each for each in dict.fromkeys(names) if names.count(each) > 1]:
            return [f"{shown}: '{twice[0]}' stands there twice"]
        return []

    def without_effect(self, given: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each option in ``given`` that the others, or the data, leave
        without effect.
        """
        if "thresholds" in given and self.task not in ("auto", "multi_label"):
            return ["--thresholds has no effect: only a task of several labels a row has any"]
        return []

    def label_sources(self) -> dict[str, list[str]]:
        """Return the option that names the columns of labels, and their names."""
        from finetune.data.columns import parse_names

        if columns := parse_names("--label_columns", self.label_columns):
            return {"--label_columns": columns}
        return {"--label_column": [self.label_column]}

    def label_options(self) -> LabelOptions:
        """Return how labels are written."""
        from finetune.data.label_columns import LabelOptions, parse_label_map

        ((_, columns),) = self.label_sources().items()
        return LabelOptions(
            columns=columns,
            task=self.task,
            names=self._ordered_names or self.label_names,
            is_ordered=bool(self.label_order),
            renames=parse_label_map(self.label_map),
            separator=self.label_separator,
            drop_invalid=self.drop_invalid,
        )

    def with_targets(self, dataset: DatasetDict, texts: Sequence[str]) -> DatasetDict:
        """Return the rows with ``label`` as the task has it; a single text is then called ``text``.

        Args:
            dataset: With the columns of labels.
            texts: The columns of texts, none of whose values may be missing.
        """
        from finetune.tasks import decision, kinds

        options = self.label_options()
        columns = decision.read_columns(dataset, texts, options, self.report)
        if is_auto := self.task == decision.AUTO:
            self.task, self.task_reason = decision.decide_task(
                columns["train"], options, self.report
            )
            options = dataclasses.replace(options, task=self.task)
        are_numbers = not kinds.KINDS[options.task].are_named
        self.target_names = options.columns if self.label_columns and are_numbers else []
        self.label_name = options.columns[0]
        encoded = decision.encode_labels(columns, options, self.report)
        self._unmapped = encoded.unmapped
        dataset = dataset.remove_columns([*options.columns])
        if len(texts) == 1 and texts[0] != "text":
            dataset = dataset.rename_column(texts[0], "text")
        dataset = encoded.added_to(dataset)
        in_order = self.task == "single_label" and super().is_ordinal(dataset["train"])
        if is_auto and in_order:
            self.task, self.task_reason = "ordinal", "the classes have the order of the recipe"
        return dataset

    @property
    def _ordered_names(self) -> list[str]:
        """The classes of ``label_order``."""
        return split_values(self.label_order or "")

    def is_ordinal(self, rows: Dataset) -> bool:
        return self.task == "ordinal" or (self.task == "auto" and super().is_ordinal(rows))

    def split(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data import labels
        from finetune.tasks import decision

        labels.check_label_map(self._unmapped, dataset, self.report)
        if self.task == "ordinal":
            decision.check_order(dataset, self.label_options(), self.report)
        self.report.raise_errors()
        return super().split(dataset)
