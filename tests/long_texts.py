"""Documents of many lengths read in windows, and these as the library makes them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from finetune import TextRecipe

MOST, STRIDE = 16, 4


class Reviews(TextRecipe):
    training = dict(
        global_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=2,
        precision="fp32",
        disable_tqdm=True,
    )


def reviews(documents: Path, model: str, **options: Any) -> Reviews:
    usual = {"max_length": MOST, "long_texts": "windows", "stride": STRIDE}
    return Reviews(dataset=str(documents), model=model, **(usual | options))


def by_the_library(tokenizer: Any, text: str, stride: int) -> list[list[int]]:
    """As the card of a run says it."""
    tokenizer.truncation_side = "right"
    options = {"max_length": MOST, "truncation": True}
    found = tokenizer(text, stride=stride, return_overflowing_tokens=True, **options)["input_ids"]
    tokenizer.truncation_side = "left"
    found[-1] = tokenizer(text, **options)["input_ids"]
    tokenizer.truncation_side = "right"
    return found


def logits_by_hand(classifier: Any, texts: list[str], how: str) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(classifier.name_or_path)
    found = []
    for text in texts:
        with torch.inference_mode():
            each = classifier(torch.tensor(by_the_library(tokenizer, text, STRIDE))).logits.numpy()
        found.append(each.mean(axis=0) if how == "mean" else each.max(axis=0))
    return np.stack(found)
