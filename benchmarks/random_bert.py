"""A BERT with random weights, its tokenizer and texts, made from a seed: no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: ``BertConfig`` for exact checks. BERT base has its defaults.
SMALL = {
    "vocab_size": 500,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "initializer_range": 0.1,  # about 1 / sqrt(64): with 0.02 all texts have nearly equal outputs
}


def write_model(directory: Path, sizes: dict[str, Any]) -> Path:
    """Write a model, and a tokenizer that takes each word as a token; return the directory."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    config = BertConfig(**sizes)
    words = [f"word{number}" for number in range(config.vocab_size - len(_SPECIAL))]
    ids = {token: number for number, token in enumerate([*_SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=config.max_position_embeddings,
    )
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    BertModel(config).save_pretrained(directory)
    return directory


def write_texts(path: Path, rows: int, shortest: int, longest: int) -> Path:
    """Write rows with the columns ``text`` and ``label`` to a parquet file; return its path.

    Half of the words are opinions, 80% of them that of the label. ``shortest`` and ``longest`` are
    numbers of words.
    """
    generator = np.random.default_rng(0)
    first_word = {"good": 0, "bad": 20}  # of the opinions of a label, 20 each
    texts, labels = [], []
    for row in range(rows):
        label, other = ("good", "bad") if row % 2 else ("bad", "good")
        words = generator.integers(40, 400, generator.integers(shortest, longest + 1))
        opinions = words[::2]  # a view
        is_of_label = generator.random(len(opinions)) < 0.8
        opinions[:] = np.where(is_of_label, first_word[label], first_word[other])
        opinions += generator.integers(20, size=len(opinions))
        texts.append(" ".join(f"word{word}" for word in words))
        labels.append(label)
    pd.DataFrame({"text": texts, "label": labels}).to_parquet(path)
    return path
