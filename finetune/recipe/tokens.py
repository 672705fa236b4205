"""The base class of recipes that label words: token classification, such as entity recognition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from finetune.recipe.options import option
from finetune.recipe.pretrained import TextRecipe

if TYPE_CHECKING:
    from datasets import DatasetDict

    from finetune.data.words import WordWindows


class TokenRecipe(TextRecipe):
    """Base class of recipes that label words, on a ``transformers`` model.

    The data has words with a tag each, or texts with spans. The model has an output for each IOB2
    tag, and labels a word by its first token. A long text is read in overlapping windows.
    """

    labels_words = True

    label_column: str = option(
        "", "tags or spans: a column, or the field of a word in its line (unset: detected)"
    )
    token_column: str | None = option(
        None, "words of tags: a column, or such a field, from 1 (unset: detected)", group="labels"
    )
    tag_scheme: Literal["auto", "iob2", "iob1", "iobes", "plain"] = option(
        "auto",
        "how tags are written (BILOU is iobes, types without prefixes are plain)",
        group="labels",
    )
    task: Literal["tokens"] = "tokens"  # type: ignore[assignment]
    head: Literal["probe", "random"] = option(
        "probe", "start of a new last layer: linear model of its inputs, or random", group="model"
    )
    long_texts: Literal["windows"] = "windows"
    pooling: Literal["words"] = "words"  # type: ignore[assignment]

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``text`` and ``label``, the words with their tags, see
        :mod:`finetune.data.tags`. Other columns are kept.
        """
        from finetune.data import tags
        from finetune.data.labels import parse_label_map

        reader = tags.TagReader(
            text=self.text_column,
            tokens=self.token_column,
            labels=self.label_column,
            scheme=self.tag_scheme,
            renames=parse_label_map(self.label_map),
            drop_invalid=self.drop_invalid,
        )
        return reader.read(dataset, self.report)

    def encoding_facts(self) -> dict[str, Any]:
        tokenizer: Any = self.processing_class()
        columns = {"token_columns": self.token_columns, "unk_token_id": tokenizer.unk_token_id}
        return super().encoding_facts() | columns

    @property
    def windows(self) -> WordWindows:
        from finetune.data.words import WordWindows

        return WordWindows(self.encoder(), self.stride)

    @property
    def token_columns(self) -> list[str]:
        """The columns that may have the words of rows to predict."""
        from finetune.data.tags import TOKEN_COLUMNS

        if self.token_column:
            return [self.token_column, *TOKEN_COLUMNS]
        return list(TOKEN_COLUMNS)
