"""Recipes that read files: what the user can say of how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from finetune.data import ROW, split_names
from finetune.recipe.base import Recipe
from finetune.recipe.options import option

if TYPE_CHECKING:
    from datasets import DatasetDict

    from finetune.data.layout import ReadOptions


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

            self.dataset = memory.named(dataset)
        super().__post_init__()

    def read(self) -> DatasetDict:
        """Return the rows of the source, as :meth:`load` has them before labels are read."""
        from finetune.data import sources

        return sources.read(
            self.dataset,
            self.dataset_revision,
            config=self.dataset_config,
            names=self._split_names(),
            options=self.read_options(),
            note=self.note,
        )

    def remark_on_headers(self, dataset: DatasetDict, text: str, label: str) -> None:
        """Note files without a line of names: their first row would be lost without a word.

        Args:
            dataset: As it was read.
            text: The column of the text.
            label: That of the label.
        """
        from finetune.data import conversion, headers, listing, sources
        from finetune.errors import counted
        from finetune.runtime import formats

        if not (self.dataset and sources.is_local(self.dataset)):
            return
        listed = listing.listed(self.dataset, self._split_names())
        for split, rows in dataset.items():
            path = next(iter(listed.files.get(split, ())), None)
            if listed.kind != "rows" or path is None:
                continue
            if formats.suffix(path) not in (*formats.SEPARATORS, formats.SPREADSHEET):
                continue
            names = [name for name in rows.column_names if name != ROW]
            # where others are the text and the label, it is one of names
            if names[0] in (text, label) and (kind := headers.above(names)):
                told = (
                    f"{path.name}: the first line, {names[0]!r}, looks like a {kind}, not like "
                    "names of columns: remove the lines above them"
                )
            elif why := headers.looks_like_row(rows, text, label):
                by = conversion.layout(path, self.read_options()).separator
                usual = {text: "text", label: "label"}
                line = by.join(usual.get(each, f"column_{n}") for n, each in enumerate(names, 1))
                told = (
                    f"{path.name}: the first line looks like a row, not like names of columns "
                    f"({why}), and is not read as a row: add a line {line!r} on top"
                )
            elif headers.of_a_form(rows, text):
                told = (
                    f"{path.name}: below the names are the questions and ImportIds of a form, read "
                    "as rows: remove these two lines"
                )
            elif unnamed := headers.unnamed(rows, [text, label]):
                told = (
                    f"{path.name}: a column without a name has something in "
                    f"{counted(unnamed, 'row')}: is it the rest of a text with "
                    "separators in it? Then put such texts into quotation marks"
                )
            else:
                continue
            self.report.warning(told)

    def places(self, split: str, rows: Sequence[int]) -> str:
        from finetune.data import positions

        options = self.read_options()
        return positions.places(self.dataset, split, rows, options, self._split_names())

    def each_place(self, split: str, rows: Sequence[int]) -> list[str]:
        from finetune.data import positions

        options = self.read_options()
        return positions.each_place(self.dataset, split, rows, options, self._split_names())

    def _split_names(self) -> dict[str, str]:
        """Return what the source calls the splits that are named, ``none`` of one not read."""
        return split_names.named(self.dataset_splits)

    def read_options(self) -> ReadOptions:
        """Return what was said of the files."""
        from finetune.data.layout import ReadOptions

        return ReadOptions(
            quoting=self.csv_quoting,
            separator=self.csv_separator,
            encoding=self.encoding,
            sheet=self.sheet,
        )
