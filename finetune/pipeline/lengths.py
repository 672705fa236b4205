"""What becomes of the texts of a recipe: how many are long, and how many are unknown."""

from __future__ import annotations

import numpy as np

from finetune.data import ROW
from finetune.data.lengths import unknown_findings
from finetune.data.windows import documents_of
from finetune.recipe import TextRecipe


def describe_long_texts(recipe: TextRecipe) -> str | None:
    """Return how many training texts are longer than ``max_length``, and what becomes of them, for
    the start of a run; None where the recipe prepares them in another way.
    """
    length, documents = recipe.max_length, documents_of(recipe.prepared["train"])
    if recipe.windows is not None and documents is not None:
        counts = np.unique(documents, return_counts=True)[1]
        return (
            f"{len(documents):,} training windows of up to {length} tokens, "
            f"{recipe.windows.shared} shared with the next: {counts.mean():.1f} a document on "
            f"average, at most {counts.max():,}; logits pooled by {recipe.pooling}"
        )
    sample = recipe.token_sample
    if sample is None:
        return None
    share = float((sample.lengths > length).mean())
    approximately = "about " if len(sample.rows) < sample.total else ""
    count = f"{approximately}{round(share * sample.total):,} of {sample.total:,}"
    return f"{count} training texts ({share:.1%}) cut at --max_length {length}"


def check_tokens(recipe: TextRecipe) -> None:
    """Report what the tokenizer does not know of the training texts."""
    sample = recipe.token_sample
    if sample is not None:
        rows = np.asarray(recipe.splits["train"].select_columns(ROW)[sample.rows][ROW])
        recipe.report.add(*unknown_findings(sample, recipe.model, rows))
