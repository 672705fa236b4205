"""Texts with labels of any kind, without code: name the file, the columns and a model.

python -m finetune text --dataset tickets.csv --text_column body --label_column queue --model NAME
python -m finetune text --embedded                                  # no Hub: Rotten Tomatoes
"""

from typing import TYPE_CHECKING

from finetune import TextClassification, option

if TYPE_CHECKING:
    from datasets import DatasetDict


class Text(TextClassification):
    """Texts of your own, with labels of any kind."""

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

    dataset: str = ""
    text_column: str = option("", "column that holds the text (unset: the one that obviously does)")
    label_column: str = option(
        "", "column that holds the label (unset: the one that obviously does)"
    )

    def load(self) -> "DatasetDict":
        from finetune.data import columns

        dataset = self.read()
        if self.text_columns:
            if not (self.label_column or self.label_columns):
                texts = self.columns_read()
                self.label_column = columns.chosen_label(dataset["train"], texts)
                self.note(f"columns: '{self.label_column}' is the label")
            return self.labelled(dataset)
        several = self.label_sources().get("--label_columns", [""])[0]
        label = several or self.label_column
        found = columns.chosen(dataset["train"], self.text_column, label)
        if several:
            if not self.text_column:
                self.note(f"columns: '{found[0]}' is the text")
            self.text_column = found[0]
        elif found != (self.text_column, self.label_column):
            self.note(f"columns: '{found[0]}' is the text, '{found[1]}' the label")
            self.text_column, self.label_column = found
        return self.labelled(dataset)
