"""Recipes of text: which rows are left out because others are the same, or nearly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from finetune.recipe.labelled import Labelled
from finetune.recipe.options import option
from finetune.runtime import extras

if TYPE_CHECKING:
    from finetune.data.plan import Plan


class Deduplicated(Labelled):
    """Rows of which one is kept where several have the same text."""

    help_group = "splits"
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
        for name in ("drop_duplicates", "drop_overlap"):
            if getattr(self, name) == "near":
                extras.require(f"--{name} near", extras.NEAR)

    def plan(self) -> Plan:
        return dataclasses.replace(
            super().plan(), drop_duplicates=self.drop_duplicates, drop_overlap=self.drop_overlap
        )
