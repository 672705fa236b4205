"""Recipes with labels: which columns hold them, how they are written, and what task they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from finetune.data.several import values_in
from finetune.errors import UserError
from finetune.recipe.options import option
from finetune.recipe.sourced import Sourced

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from finetune.tasks.reading import Reading


class Labelled(Sourced):
    """Rows with a label of any kind, in one column or in several."""

    exclusive: ClassVar[Sequence[tuple[str, str]]] = (("label_column", "label_columns"),)
    help_group = "labels"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unmapped: Sequence[str] = ()
        mistakes = [*self._contradictions(), *self._mistakes_of_order()]
        if self.label_separator == "":
            mistakes.append("--label_separator: expected a character such as ';', found nothing")
        if mistakes:
            raise UserError(*mistakes)

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
        from finetune.data.findings import names_in

        if several := names_in("--label_columns", self.label_columns):
            return {"--label_columns": several}
        return {"--label_column": [self.label_column]}

    def reading(self) -> Reading:
        """Return how labels are read, those of one column from the column ``label``."""
        from finetune.data import labels
        from finetune.tasks.reading import Reading

        ((_, columns),) = self.label_sources().items()
        return Reading(
            task=self.task,
            columns=columns if self.label_columns else ["label"],
            names=self._ordered_names or self.label_names,
            ordered=bool(self.label_order),
            renamed=labels.mapping(self.label_map or ""),
            separator=self.label_separator,
            shown=columns,
            drop=self.drop_invalid,
            places=self.places,
        )

    def with_targets(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``label`` as the task has it; the data decides an open task."""
        from finetune.tasks import kinds, reading

        how = self.reading()
        if is_auto := self.task == reading.AUTO:
            self.task, self.task_reason = reading.decided(dataset["train"], how, self.note)
            how = dataclasses.replace(how, task=self.task)
        are_numbers = not kinds.KINDS[how.task].are_named
        self.target_names = how.columns if self.label_columns and are_numbers else []
        self.label_name = how.shown[0]
        dataset, self._unmapped = reading.encoded(dataset, how, self.note)
        in_order = self.task == "single_label" and super().is_ordinal(dataset["train"])
        if is_auto and in_order:
            self.task, self.task_reason = "ordinal", "the classes have the order of the recipe"
        return dataset

    @property
    def _ordered_names(self) -> list[str]:
        """The classes of ``label_order``."""
        return values_in(self.label_order or "")

    def is_ordinal(self, rows: Dataset) -> bool:
        return self.task == "ordinal" or (self.task == "auto" and super().is_ordinal(rows))

    def split(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data import labels

        labels.refuse_unmapped(self._unmapped, dataset)
        if self.task == "ordinal":
            from finetune.tasks import orders

            orders.refuse_unordered(
                dataset,
                self._ordered_names,
                self.label_names,
                self.reading().called,
                self.places,
            )
        return super().split(dataset)
