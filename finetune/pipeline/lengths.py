"""How long the texts of a recipe are, and what becomes of the long ones."""

from __future__ import annotations

import numpy as np

from finetune.data import lengths
from finetune.data.windows import documents_of, first_lengths
from finetune.recipe import TextClassification


def of_long_texts(recipe: TextClassification) -> str | None:
    """Return how many of the training texts are longer than the model reads, and what becomes
    of them, for the start of a run; None where the recipe prepares them in another way.
    """
    texts, rows, windows = recipe.splits["train"], recipe.prepared["train"], recipe.windows
    documents = documents_of(rows)
    if windows is not None and documents is not None:
        return lengths.in_windows(documents, recipe.max_length, windows.shared, recipe.pooling)
    if "length" not in rows.column_names or len(rows) != len(texts):
        return None  # of a recipe with its own `prepare`
    return lengths.cut(recipe.read_by_model("train"), first_lengths(rows), recipe.encoder())


def dominating(recipe: TextClassification) -> str | None:
    """Return a sentence if the windows of one text are much of what is trained on."""
    documents = documents_of(recipe.prepared["train"])
    if recipe.long_texts == "cut" or documents is None:
        return None
    return lengths.dominating(documents, recipe.splits["train"]["id"][:])


def sampled(recipe: TextClassification, most: int) -> np.ndarray:
    """Return the tokens of training texts before truncation, shape ``(rows,)``.

    Args:
        recipe: Which tokenizes these texts and no others.
        most: How many texts, drawn at random where there are more.
    """
    rows = len(recipe.splits["train"])
    numbers = np.arange(rows)
    if rows > most:
        numbers = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
    read, encoder = recipe.read_by_model("train"), recipe.encoder()
    tokens = np.array([len(each) for each in encoder(read(numbers))["input_ids"]])
    return encoder.whole_lengths(lambda some: read(numbers[some]), tokens)
