"""Tokenizes the splits once, truncated and never padded: each batch is padded to its own longest
row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from datasets import DatasetDict
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data.splits import fingerprint
from finetune.runtime import activity


def tokenize(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> DatasetDict:
    """Splits with what the tokenizer gives, ``labels``, and ``length`` in tokens.

    The result is cached by what it is made of (data, tokenizer, length), so that every rank and
    every later run reads it instead of doing it again. ``datasets`` would hash the tokenizer with
    the padding and truncation it was last used with, and so would not find its own cache.

    Args:
        dataset: Splits with ``text`` and ``label``.
        tokenizer: Of the model.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
    """
    identity, tokenized = _identity(tokenizer), DatasetDict()
    for split, rows in dataset.items():
        content = fingerprint(DatasetDict({split: rows}), "text")
        tokenized[split] = rows.map(
            activity.counted(_encode, f"tokenizing {split}", len(rows)),
            batched=True,
            remove_columns=rows.column_names,
            fn_kwargs={"tokenizer": tokenizer, "max_length": max_length},
            new_fingerprint=Hasher.hash([content, identity, max_length]),
            desc=f"tokenizing {split}",
        )
    return tokenized


def _identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides the tokens, but for the padding and truncation last used."""
    parts: list[Any] = [type(tokenizer).__name__, tokenizer.init_kwargs]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append({**backend, "padding": None, "truncation": None})
    else:
        parts.append(tokenizer.get_vocab())
    return str(Hasher.hash(json.dumps(parts, sort_keys=True, default=str)))


def _encode(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    encoded = tokenizer(batch["text"], truncation=True, max_length=max_length)
    return {
        **encoded,
        "labels": batch["label"],
        "length": [len(tokens) for tokens in encoded["input_ids"]],
    }


def whole_lengths(
    texts: Sequence[str],
    lengths: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> list[int]:
    """Return how many tokens texts have without truncation, from their lengths with it.

    Only those of ``max_length`` tokens are tokenized again.
    """
    cut = [text for text, length in zip(texts, lengths, strict=True) if length == max_length]
    again = iter(tokenizer(cut, verbose=False)["input_ids"] if cut else ())
    return [len(next(again)) if length == max_length else length for length in lengths]
