"""Texts in, padded arrays out: as in training, without transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from finetune.data.encoding import Columns, Encoder, Windows, pooled
from finetune.exporting.files import Facts

_ROWS, _TOKENS = 32, 8192  # of a batch, at most
Inputs = dict[str, np.ndarray]  # int64, shape (rows, tokens)
_NAMES = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


class FastTokenizer:
    """What an :class:`Encoder` uses of a fast tokenizer of transformers."""

    def __init__(self, path: Path, facts: Facts) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        # the file has both for others, who take whole batches from it
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = facts.encoding["split_special_tokens"]
        self.sep_token, self.eos_token = facts.encoding["sep_token"], facts.encoding["eos_token"]
        self.truncation_side = "left" if facts.encoding["truncation"] == "tail" else "right"
        self._inputs = facts.inputs

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens that are added to a text or to a pair."""
        return int(self._tokenizer.num_special_tokens_to_add(pair))

    def __call__(
        self,
        text: str | Sequence[str],
        pair: str | None = None,
        *,
        truncation: bool = False,
        max_length: int = 0,
        add_special_tokens: bool = True,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the inputs of the model for a text, a pair of texts, or a list of texts."""
        if truncation and self._tokenizer.truncation is None:  # not in every call: for threads
            self._tokenizer.enable_truncation(max_length, direction=self.truncation_side)
        elif not truncation and self._tokenizer.truncation is not None:
            self._tokenizer.no_truncation()
        if isinstance(text, str):
            row = self._tokenizer.encode(text, pair, add_special_tokens=add_special_tokens)
            return {name: getattr(row, _NAMES[name]) for name in self._inputs}
        rows = self._tokenizer.encode_batch(list(text), add_special_tokens=add_special_tokens)
        columns = {}
        for name in self._inputs:
            columns[name] = [getattr(row, _NAMES[name]) for row in rows]
        return columns


class TextEncoder:
    """Tokenizes, truncates or cuts, and pads texts as facts say; of a run, with its tokenizer."""

    def __init__(self, tokenizer: Any, facts: Facts) -> None:
        encoding = facts.encoding
        columns = len(encoding["columns"])
        self._encoder = Encoder(tokenizer, encoding["max_length"], columns)
        is_cut = encoding["long_texts"] == "cut"
        self._windows = None if is_cut else Windows(self._encoder, encoding["stride"])
        self._padding, self._pooling = facts.padding, encoding["pooling"]
        self._inputs, self._width = facts.inputs, max(1, len(facts.labels))

    def rows(self, texts: Sequence[Any]) -> tuple[list[Columns], np.ndarray]:
        """Return tokenized rows, and the number of the text of each: several windows may be one."""
        if self._windows is not None:
            numbers, windows = [], []
            for number, window in self._windows.rows(texts):
                numbers.append(number)
                windows.append(self._with_token(window))
            return windows, np.array(numbers)
        columns = self._encoder(texts)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return list(map(self._with_token, rows)), np.arange(len(texts))

    def _with_token(self, row: Columns) -> Columns:
        """Return a row with at least one token: some tokenizers have none for an empty text, and
        without one its answer depends on the padding.
        """
        if row["input_ids"]:
            return row
        return {name: [self._padding[name]] for name in row} | {"attention_mask": [1]}

    def batches(self, rows: Sequence[Columns]) -> Iterator[tuple[np.ndarray, Inputs]]:
        """Yield the numbers of the rows of each batch, of similar length, and its padded inputs,
        int64, shape ``(rows, tokens)``.
        """
        lengths = np.array([len(row["input_ids"]) for row in rows])
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            longest = int(lengths[order[0]])
            numbers, order = np.split(order, [min(_ROWS, max(1, _TOKENS // longest))])
            batch = {}
            for name in self._inputs:
                batch[name] = np.full((len(numbers), longest), self._padding[name], np.int64)
                for padded, number in zip(batch[name], numbers, strict=True):
                    tokens = rows[number][name]
                    start = 0
                    if self._padding["side"] == "left":
                        start = longest - len(tokens)
                    padded[start : start + len(tokens)] = tokens
            yield numbers, batch

    def logits(self, texts: Sequence[Any], session: Callable[[Inputs], np.ndarray]) -> np.ndarray:
        """Return the logits of texts, or of tuples of texts: float32, shape ``(rows, outputs)``."""
        rows, numbers = self.rows(texts) if texts else ([], np.zeros(0))
        outputs = np.zeros((len(rows), self._width), np.float32)
        for places, inputs in self.batches(rows):
            outputs[places] = session(inputs)
        if rows:
            return pooled(outputs, numbers, self._pooling)
        return outputs
