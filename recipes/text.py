"""Texts with labels of any kind, without code: name the file, the columns and a model.

python -m finetune text --dataset tickets.csv --text_column body --label_column queue --model NAME
python -m finetune text --embedded                                  # no Hub: Rotten Tomatoes
"""

from finetune import TextRecipe


class Text(TextRecipe):
    """Texts of your own, with labels of any kind."""

    training = dict(global_batch_size=32)
    embedded = dict(
        dataset="embedded:rotten-tomatoes",
        model="embedded:minilm",
        max_length=256,
    )
