"""Yelp reviews, one to five stars, on BERT base cased.

python -m finetune yelp
python -m finetune yelp --train_samples 1000 --eval_samples 500     # a quick try
python -m finetune yelp --embedded --num_processes 2                # no Hub: IMDB, two classes
"""

from finetune import TextRecipe


class Yelp(TextRecipe):
    """Stars of Yelp reviews (650,000 rows, five classes, balanced; Zhang et al., 2015)."""

    label_names = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")
    ordered_labels = True
    training = dict(global_batch_size=32, learning_rate=2e-5, num_train_epochs=4)
    embedded = dict(
        dataset="embedded:imdb",
        model="embedded:minilm",
        train_samples=4000,
        max_length=384,
        truncation="tail",  # the end of a review tells more: docs/decisions/yelp-embedded.md
        global_batch_size=16,
        learning_rate=2e-4,
        num_train_epochs=1,
    )

    dataset: str = "Yelp/yelp_review_full"
    model: str = "google-bert/bert-base-cased"
    max_length: int = 512
