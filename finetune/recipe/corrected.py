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

    relabel: str | None = option(
        None, "suspects.csv of report or check, with the right labels in the column new_label"
    )
    exclude: str | None = option(None, "the same, of rows that are left out")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.corrections: Sequence[Applied] = ()

    def corrected(self, splits: DatasetDict, source: DatasetDict, column: str) -> DatasetDict:
        """Return the splits as the files correct them."""
        if self.relabel is None and self.exclude is None:
            return splits
        from finetune.data import corrections

        splits, self.corrections = corrections.apply(
            splits, source, column, relabel=self.relabel, exclude=self.exclude, note=self.note
        )
        return splits
