"""Rows that a person corrected: labels that were wrong, rows that do not belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finetune.recipe.declaration import Declared
from finetune.recipe.options import option

if TYPE_CHECKING:
    from datasets import DatasetDict

    from finetune.data.corrections import Applied


class Corrected(Declared):
    """Files of corrections are applied once the splits are made.

    Attributes:
        corrections: What each file did, once the splits are made.
    """

    help_group = "data"
    relabel: str | None = option(
        None,
        "correct labels by a suspects.csv (of report or check) whose column new_label was filled "
        "in; several files are applied in order",
        "FILE,FILE",
    )
    exclude: str | None = option(None, "leave out all rows that such a file lists", "FILE,FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.corrections: Sequence[Applied] = ()

    def files_of_corrections(self) -> dict[str, list[str]]:
        """Return the names of the files, by the option that names them."""
        from finetune.data import comma_list

        return {
            name: comma_list.split_values(getattr(self, name) or "")
            for name in ("relabel", "exclude")
        }

    def corrected(self, splits: DatasetDict, source: DatasetDict, column: str) -> DatasetDict:
        """Return the splits as the files correct them."""
        names = self.files_of_corrections()
        if not any(names.values()):
            return splits
        from finetune.data import corrections

        splits, self.corrections = corrections.apply(
            splits, source, column, report=self.report, **names
        )
        return splits
