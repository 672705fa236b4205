"""How long the texts of a recipe are, and what becomes of the long ones."""

from __future__ import annotations

import numpy as np

from finetune.data import ROW, lengths
from finetune.data.encoding import Read, characters
from finetune.data.windows import documents_of, first_lengths
from finetune.recipe import TextClassification

#: Characters of a text that are tokenized to know how many tokens the whole has.
_COUNTED = 200_000


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
    return lengths.dominating(documents, recipe.splits["train"][ROW][:])


def sampled(recipe: TextClassification, most: int) -> np.ndarray:
    """Return the tokens of training texts before truncation, shape ``(rows,)``; those of texts of
    more than 200,000 characters are estimated from their beginning.

    Args:
        recipe: Which tokenizes these texts and no others.
        most: How many texts, drawn at random where there are more.
    """
    rows = len(recipe.splits["train"])
    numbers = np.arange(rows)
    if rows > most:
        numbers = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
    whole, encoder = recipe.read_by_model("train"), recipe.encoder()
    scale = np.ones(len(numbers))

    def read(some: np.ndarray) -> list[Read]:
        texts = list[Read]()
        for place, text in zip(some.tolist(), whole(numbers[some]), strict=True):
            texts.append(_bounded(text))
            scale[place] = characters(text) / max(1, characters(texts[-1]))
        return texts

    tokens = np.array([len(each) for each in encoder(read(np.arange(len(numbers))))["input_ids"]])
    counted: np.ndarray = np.rint(encoder.whole_lengths(read, tokens) * scale).astype(np.int64)
    return counted


def _bounded(text: Read) -> Read:
    """Return the beginning of a text, or of each part, by which the tokens of a long one are
    estimated.
    """
    return text[:_COUNTED] if isinstance(text, str) else [part[:_COUNTED] for part in text]
