"""Sentiment of reviews, positive or negative, on BERT base uncased.

python -m finetune sentiment
python -m finetune sentiment --embedded --num_processes 2    # no Hub: Rotten Tomatoes
"""

from typing import TYPE_CHECKING

from finetune import TextRecipe, UserError

if TYPE_CHECKING:
    from datasets import DatasetDict

NAMES = ("positive", "negative")


class Sentiment(TextRecipe):
    """Reviews labelled positive or negative; other rows are dropped."""

    label_names = NAMES
    training = dict(global_batch_size=32, learning_rate=2e-5, num_train_epochs=3)
    embedded = dict(
        dataset="embedded:rotten-tomatoes",
        model="embedded:minilm",
        text_column="text",
        label_column="label",
        max_length=256,
        learning_rate=1e-4,
        num_train_epochs=1,
    )

    dataset: str = "davidberg/sentiment-reviews"
    model: str = "google-bert/bert-base-uncased"
    text_column: str = "review"
    label_column: str = "division"
    max_length: int = 128

    def load(self) -> "DatasetDict":
        dataset = self.read()
        if self.label_column == "division" and "division" in dataset["train"].column_names:
            dataset = self._only_polar(dataset)
        return self.labelled(dataset)

    def _only_polar(self, dataset: "DatasetDict") -> "DatasetDict":
        """Drop the neutral division, which is not a class here."""
        polar = dataset.filter(_is_polar, input_columns=self.label_column)
        total, left = sum(dataset.num_rows.values()), sum(polar.num_rows.values())
        if not left:
            names = sorted({str(name) for rows in dataset.values() for name in rows["division"]})
            raise UserError(
                "the column 'division' has neither 'positive' nor 'negative' (found: "
                f"{', '.join(map(repr, names[:5]))}); to train on these classes, rename the column "
                "and pass its new name with --label_column"
            )
        if left < total:
            self.note(
                f"dropped {total - left:,} of {total:,} rows whose division is neither positive "
                f"nor negative: {left:,} are left"
            )
        return polar


def _is_polar(division: str | None) -> bool:
    return division in NAMES
