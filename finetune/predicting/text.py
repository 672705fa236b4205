"""Texts in, padded arrays out: as in training, without transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from finetune.data.encoding import Encoder, Windows, to_rows
from finetune.predicting.files import TOKENIZER, Facts
from finetune.predicting.inference import Batch, Encoded, Inference, Session

_NAMES = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


class FastTokenizer:
    """What an :class:`Encoder` uses of a fast tokenizer of transformers."""

    def __init__(self, directory: Path, facts: Facts) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
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


class TextInference(Inference):
    """Predicts texts, which are tokenized, truncated or cut, and padded as facts say.

    Args:
        tokenizer: That of a run, or a :class:`FastTokenizer`.
        facts: Those of the export.
        session: Computes batches.
        min_tokens: Shorter texts are padded to it.
    """

    def __init__(self, tokenizer: Any, facts: Facts, session: Session, min_tokens: int = 0) -> None:
        encoding = facts.encoding
        is_head_tail = encoding["truncation"] == "head_tail"
        columns = len(encoding["columns"])
        self._encoder = Encoder(tokenizer, encoding["max_length"], columns, is_head_tail)
        self._encoding = encoding
        self._padding, self._min_tokens = facts.padding, min_tokens
        self._inputs = [name for name in facts.inputs if name in session.inputs]
        self.session = session
        self.width = max(1, len(facts.labels))
        self.pooling = encoding["pooling"]

    def _encode(self, values: list[Any]) -> Encoded:
        if self._encoding["long_texts"] == "cut":
            inputs = to_rows(self._encoder(values))
            rows = np.arange(len(values))
        else:
            windows = Windows(self._encoder, self._encoding["stride"])
            numbers, tokenized = zip(*windows.rows(values), strict=True)
            inputs = list(tokenized)
            rows = np.array(numbers)
        for place, row in enumerate(inputs):
            # some tokenizers have no token for an empty text, whose answer depends on the padding
            if not row["input_ids"]:
                inputs[place] = {name: [self._padding[name]] for name in row}
                inputs[place]["attention_mask"] = [1]
        return inputs, rows, np.array([len(row["input_ids"]) for row in inputs])

    def _collate(self, inputs: list[Mapping[str, Any]]) -> Batch:
        longest = max(self._min_tokens, *(len(row["input_ids"]) for row in inputs))
        batch = {}
        for name in self._inputs:
            batch[name] = np.full((len(inputs), longest), self._padding[name], np.int64)
            for padded, row in zip(batch[name], inputs, strict=True):
                tokens = row[name]
                start = 0
                if self._padding["side"] == "left":
                    start = longest - len(tokens)
                padded[start : start + len(tokens)] = tokens
        return batch
