"""Tokenize the splits once, truncated but not padded: each batch is padded to its longest row.

A text of megabytes is not tokenized whole, see :mod:`finetune.data.shortening`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data import parts, seals
from finetune.data.digests import TEXTS, fingerprint
from finetune.data.encoding import Encoder
from finetune.runtime import activity

if TYPE_CHECKING:
    from finetune.data.windows import Windows

#: Rows of a file in the cache: what a process that is killed has to tokenize again.
PART = 50_000
#: How arguments of a tokenizer end that say where its files were found.
_FOUND = ("_file", "_or_path", "_files_only", "_dir", "_hash", "token")


def tokenize(
    dataset: DatasetDict,
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray] = np.asarray,
    note: Callable[[str], object] = lambda sentence: None,
    windows: Windows | None = None,
) -> DatasetDict:
    """Return splits with the outputs of the tokenizer, ``labels``, and ``length`` in tokens.

    The cache key is data, tokenizer and how rows are truncated or cut into windows, so every rank
    and every later run reuses the result. ``datasets`` would also hash the padding and truncation
    that the tokenizer was last used with, and so miss its own cache.

    Args:
        dataset: Splits with ``text``, or the ``texts`` of several columns, and ``label``.
        encoder: From texts to tokens.
        targets: From the labels of some rows to what a batch has as ``labels``.
        note: Is given a sentence about a cache that was damaged.
        windows: Cuts longer texts into several rows instead, with the number of the text in a
            column :data:`~finetune.data.windows.COLUMN`.
    """
    own, tokenized = [identity(encoder.tokenizer), encoder.max_length], DatasetDict()
    if windows is not None:
        own += ["windows", windows.shared]
    elif encoder.truncation == "head_tail":  # the others are sides of the tokenizer
        own.append(encoder.truncation)
    for split, rows in dataset.items():
        content = fingerprint(DatasetDict({split: rows}), "text")
        content += str(rows.features["label"])
        key, done, known = Hasher.hash([content, *own]), [], False
        encode = activity.counted(_encoding(windows), f"tokenizing {split}", len(rows))
        for start in range(0, max(1, len(rows)), PART):
            name, cached = f"{key}-{start}-{PART}" if len(rows) > PART else key, None
            if rows.cache_files:
                cached = Path(rows.cache_files[0]["filename"]).with_name(f"cache-{name}.arrow")
                known = seals.intact(cached, note)
            part = rows.select(range(start, min(start + PART, len(rows))))
            how: dict[str, Any] = {"encoder": encoder}
            if windows is not None:
                how = {"windows": windows, "start": start}
            done.append(
                part.map(
                    encode,
                    batched=True,
                    with_indices=windows is not None,
                    remove_columns=rows.column_names,
                    fn_kwargs={**how, "targets": targets},
                    new_fingerprint=name,
                    cache_file_name=cached and str(cached),
                    load_from_cache_file=known,
                    desc=f"tokenizing {split}",
                )
            )
            if cached is not None and not known and cached.exists():
                seals.seal(cached)
        tokenized[split] = concatenate_datasets(done)
    return tokenized


def identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of the tokenizer without the padding and truncation that it last used."""
    parts: list[Any] = [type(tokenizer).__name__, tokenizer.truncation_side]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append({**backend, "padding": None, "truncation": None})
    else:  # how it was found, and where, is no part of it
        known = tokenizer.init_kwargs.items()
        kwargs = {name: each for name, each in known if not name.endswith(_FOUND)}
        parts += [tokenizer.get_vocab(), kwargs]
    if tokenizer.split_special_tokens:
        parts.append("split_special_tokens")
    return str(Hasher.hash(json.dumps(parts, sort_keys=True, default=str)))


def _encoding(windows: Windows | None) -> Callable[..., dict[str, Any]]:
    """Return what makes rows of a batch of texts."""
    if windows is None:
        return _encode
    from finetune.data.windows import encode

    return encode


def _encode(
    batch: dict[str, list[Any]], encoder: Encoder, targets: Callable[[Any], np.ndarray]
) -> dict[str, Any]:
    encoded = encoder(parts.read_by_model(batch, several=TEXTS in batch))
    return {
        **encoded,
        "labels": targets(batch["label"]),
        "length": [len(tokens) for tokens in encoded["input_ids"]],
    }
