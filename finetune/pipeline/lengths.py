"""What becomes of the texts of a recipe: how many are long, and how many are unknown."""

from __future__ import annotations

import numpy as np

from finetune.data import ROW, lengths
from finetune.data.windows import documents_of
from finetune.recipe import TextRecipe


def describe_long_texts(recipe: TextRecipe) -> str | None:
    """Return how many of the training texts are longer than the model reads, and what becomes
    of them, for the start of a run; None where the recipe prepares them in another way.
    """
    windows, documents = recipe.windows, documents_of(recipe.prepared["train"])
    if windows is not None and documents is not None:
        return lengths.in_windows(documents, recipe.max_length, windows.shared, recipe.pooling)
    return None if recipe.token_sample is None else lengths.cut(recipe.token_sample)


def check_tokens(recipe: TextRecipe) -> None:
    """Report what the tokenizer does not know of the training texts."""
    sample = recipe.token_sample
    if sample is not None:
        rows = np.asarray(recipe.splits["train"].select_columns(ROW)[sample.rows][ROW])
        recipe.report.add(*lengths.unknown_findings(sample, recipe.model, rows))
