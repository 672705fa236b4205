"""Recipes that read files: what the user can say of how they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from finetune.recipe.base import Recipe
from finetune.recipe.options import option

if TYPE_CHECKING:
    from finetune.data.layout import ReadOptions


class Sourced(Recipe):
    """Rows from the Hub or from files; how a file is written is detected unless it is said."""

    csv_quoting: Literal["auto", "minimal", "none"] = option(
        "auto", "quotation marks in a .csv or .tsv: minimal, around fields; none, text"
    )
    csv_separator: str | None = option(
        None, "what separates the fields of a .csv or .tsv, ';' or tab (unset: detected)"
    )
    encoding: str | None = option(
        None, "encoding of a file of text, such as cp1252 (unset: detected)"
    )

    def read_options(self) -> ReadOptions:
        """Return what was said of the files."""
        from finetune.data.layout import ReadOptions

        return ReadOptions(
            quoting=self.csv_quoting, separator=self.csv_separator, encoding=self.encoding
        )
