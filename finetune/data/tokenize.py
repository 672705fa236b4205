"""Tokenize the splits once, truncated but not padded: each batch is padded to its longest row.

A text of megabytes is not tokenized whole: it is first cut where that provably leaves the kept
tokens unchanged, see :func:`shortened`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data import seals
from finetune.data.splits import fingerprint
from finetune.runtime import activity

if TYPE_CHECKING:
    from finetune.data.windows import Windows

#: Characters per token, more than in most texts.
_ROOMY = 8
#: Characters that are tokenized at once where tokens are only counted.
_PIECE = 2**16
#: Rows of a file in the cache: what a process that is killed has to tokenize again.
PART = 50_000
_WHITE_SPACE = " \t\n\r"


#: How arguments of a tokenizer end that say where its files were found.
_FOUND = ("_file", "_or_path", "_files_only", "_dir", "_hash", "token")


def tokenize(
    dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    targets: Callable[[Any], np.ndarray] = np.asarray,
    note: Callable[[str], object] = lambda sentence: None,
    windows: Windows | None = None,
) -> DatasetDict:
    """Return splits with the outputs of the tokenizer, ``labels``, and ``length`` in tokens.

    The cache key is data, tokenizer, ``max_length`` and ``windows``, so every rank and every later
    run reuses the result. ``datasets`` would also hash the padding and truncation that the
    tokenizer was last used with, and so miss its own cache.

    Args:
        dataset: Splits with ``text`` and ``label``.
        tokenizer: Of the model.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
        targets: From the labels of some rows to what a batch has as ``labels``.
        note: Is given a sentence about a cache that was damaged.
        windows: Cuts longer texts into several rows instead, with the number of the text in a
            column :data:`~finetune.data.windows.COLUMN`.
    """
    cutting = [] if windows is None else ["windows", windows.shared]
    own, tokenized = identity(tokenizer), DatasetDict()
    for split, rows in dataset.items():
        content = fingerprint(DatasetDict({split: rows}), "text")
        content += str(rows.features["label"])
        key, parts, known = Hasher.hash([content, own, max_length, *cutting]), [], False
        encode = activity.counted(_encoding(windows), f"tokenizing {split}", len(rows))
        for start in range(0, max(1, len(rows)), PART):
            name, cached = f"{key}-{start}-{PART}" if len(rows) > PART else key, None
            if rows.cache_files:
                cached = Path(rows.cache_files[0]["filename"]).with_name(f"cache-{name}.arrow")
                known = seals.intact(cached, note)
            part = rows.select(range(start, min(start + PART, len(rows))))
            how: dict[str, Any] = {"tokenizer": tokenizer, "max_length": max_length}
            if windows is not None:
                how = {"windows": windows, "start": start}
            parts.append(
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
        tokenized[split] = concatenate_datasets(parts)
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
    return str(Hasher.hash(json.dumps(parts, sort_keys=True, default=str)))


def _encoding(windows: Windows | None) -> Callable[..., dict[str, Any]]:
    """Return what makes rows of a batch of texts."""
    if windows is None:
        return _encode
    from finetune.data.windows import encode

    return encode


def _encode(
    batch: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    targets: Callable[[Any], np.ndarray],
) -> dict[str, Any]:
    texts = shortened(batch["text"], tokenizer, max_length)
    encoded = tokenizer(texts, truncation=True, max_length=max_length)
    return {
        **encoded,
        "labels": targets(batch["label"]),
        "length": [len(tokens) for tokens in encoded["input_ids"]],
    }


def shortened(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[str]:
    """Cut long texts without changing their first ``max_length`` tokens.

    With a tokenizer that truncates on the left, the same for their last tokens.

    A text is cut at white space. The cut is accepted if another word lies between it and the kept
    tokens: then all their words are complete, and the text that is left out cannot change them.
    Otherwise four times as much text is tried, up to the whole text (a single word may be that
    long, or the tokenizer may delete characters). Texts are left whole for tokenizers that know no
    words or are written in Python.

    Args:
        texts: Texts of any length.
        tokenizer: The tokenizer of the model.
        max_length: Tokens to keep, special tokens included.
    """
    result = list(texts)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return result
    from_left = tokenizer.truncation_side == "left"
    size, long = _ROOMY * max_length, list(range(len(result)))
    while long := [number for number in long if len(texts[number]) > 2 * size]:
        parts = [(_tail if from_left else _head)(texts[number], size) for number in long]
        encoded = tokenizer(parts, add_special_tokens=False, verbose=False)
        for place, number in enumerate(long):
            words = encoded.word_ids(place)[:: -1 if from_left else 1]
            if len(words) > max_length and None is not words[max_length - 1] != words[-1]:
                result[number] = parts[place]
        long = [number for number in long if len(result[number]) == len(texts[number])]
        size *= 4
    return result


def _head(text: str, size: int) -> str:
    """Return at most ``size`` characters of a longer text, up to the last white space in them."""
    end = max(text.rfind(character, 0, size) for character in _WHITE_SPACE)
    return text[: max(0, end)].rstrip(_WHITE_SPACE)


def _tail(text: str, size: int) -> str:
    """At most ``size`` characters of the end of a longer text, from the first white space on."""
    starts = (text.find(character, len(text) - size) for character in _WHITE_SPACE)
    first = min((start for start in starts if start >= 0), default=len(text))
    return text[first:].lstrip(_WHITE_SPACE)


def whole_lengths(
    texts: Sequence[str],
    lengths: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> list[int]:
    """Return the token counts of texts without truncation, from their truncated lengths.

    Only texts of ``max_length`` tokens are tokenized again. Those of more than 65,536 characters
    are counted in pieces that end before white space, which is exact if the words of the tokenizer
    do so too, else off by a few tokens per piece.
    """
    result, special = list(lengths), tokenizer.num_special_tokens_to_add()
    again = [number for number, length in enumerate(lengths) if length == max_length]
    pieces = [(number, piece) for number in again for piece in _pieces(texts[number])]
    if pieces:
        words = [piece for _, piece in pieces]
        ids_only = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = tokenizer(words, add_special_tokens=False, verbose=False, **ids_only)["input_ids"]
        for number in again:
            result[number] = special
        for (number, _), tokens in zip(pieces, encoded, strict=True):
            result[number] += len(tokens)
    return result


def _pieces(text: str) -> list[str]:
    pieces = []
    while len(text) > _PIECE:
        end = len(_head(text, _PIECE)) or _PIECE
        pieces.append(text[:end])
        text = text[end:]
    return [*pieces, text]
