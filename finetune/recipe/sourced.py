"""Recipes that read files: what the user can say of how they are written."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from finetune.data import ROW
from finetune.recipe.base import Recipe
from finetune.recipe.options import option

if TYPE_CHECKING:
    from datasets import DatasetDict

    from finetune.data.sources import Source


class Sourced(Recipe):
    """Rows from the Hub or from files; how a file is written is detected unless it is said."""

    help_group = "data"
    dataset_config: str | None = option(
        None, "configuration of a data set on the Hub that has several"
    )
    dataset_splits: str | None = option(
        None,
        "what the source calls its splits, if not train, validation and test; test=none does not "
        "read the test split, and splits off another one (a test set without labels)",
        "test=NAME,validation=NAME",
    )
    csv_quoting: Literal["auto", "minimal", "none"] = option(
        "auto",
        "quotation marks in a .csv or .tsv: minimal, they enclose fields; none, they are text",
    )
    csv_separator: str | None = option(
        None, "separator of the fields of a .csv or .tsv, such as ';' or tab (unset: detected)"
    )
    encoding: str | None = option(
        None, "encoding of a file of text, such as cp1252 (unset: detected)"
    )
    sheet: str | None = option(None, "sheet of a spreadsheet (unset: the first that has rows)")

    def __post_init__(self) -> None:
        dataset: Any = self.dataset
        if not isinstance(dataset, str):  # rows, which Python can pass
            from finetune.data import memory

            self.dataset = memory.store(dataset)
        super().__post_init__()

    @functools.cached_property
    def row_source(self) -> Source:
        """Where the rows come from, and how they are read."""
        from finetune.data.files_of_splits import parse_split_names
        from finetune.data.read import ReadOptions
        from finetune.data.sources import Source

        options = ReadOptions(
            quoting=self.csv_quoting,
            separator=self.csv_separator,
            encoding=self.encoding,
            sheet=self.sheet,
        )
        names = parse_split_names(self.dataset_splits)
        return Source(self.dataset, self.dataset_revision, self.dataset_config, names, options)

    def read(self) -> DatasetDict:
        """Return the rows of the source, as :meth:`load` has them before labels are read."""
        return self.row_source.load(self.report)

    def warn_of_missing_header(self, dataset: DatasetDict, text: str, label: str) -> None:
        """Report a file whose first line is probably a row: it would be lost without notice.

        Args:
            dataset: As it was read.
            text: The column of the texts.
            label: That of the labels.
        """
        from finetune.data.sources import names_are_values

        if self.row_source.kind != "local":
            return
        for split, rows in dataset.items():
            if column := names_are_values(rows, [text, label]):
                names = [name for name in rows.column_names if name != ROW]
                usual = {text: "text", label: "label"}
                line = ",".join(usual.get(n, f"column_{i}") for i, n in enumerate(names, start=1))
                self.report.warning(
                    f"the first line of the {split} data looks like a row, not like column names: "
                    f"'{column}' is both the name of a column and a value in it",
                    "missing_header",
                    split=split,
                    fix=f"add a line with the names of the columns on top, such as '{line}'",
                )

    def places(self, split: str, rows: Sequence[int]) -> str:
        return self.row_source.locate(split, rows)

    def list_places(self, split: str, rows: Sequence[int]) -> list[str]:
        return self.row_source.list_places(split, rows)
