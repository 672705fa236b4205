"""Texts in, padded arrays out: as in training, without transformers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from finetune.data import words
from finetune.data.encoding import Columns, Encoder, Windows, to_rows
from finetune.predicting.files import TOKENIZER, ExportFacts
from finetune.predicting.inference import Batch, Encoded, Inference, Session, WordOutputs

_NAMES = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


class FastTokenizer:
    """What an :class:`Encoder` uses of a fast tokenizer of transformers."""

    is_fast = True

    def __init__(self, directory: Path, facts: ExportFacts) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        # the file has both for others, who take whole batches from it
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = facts.encoding["split_special_tokens"]
        self.sep_token, self.eos_token = facts.encoding["sep_token"], facts.encoding["eos_token"]
        self.unk_token_id = facts.encoding.get("unk_token_id")
        self.pad_token_id = facts.padding["input_ids"]
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
        is_split_into_words: bool = False,
        **_: Any,
    ) -> Any:
        """Return the inputs of the model for a text, a pair of texts, or a list of texts; for the
        words of a text a list with the ``Encoding`` of ``tokenizers``.
        """
        if truncation and self._tokenizer.truncation is None:  # not in every call: for threads
            self._tokenizer.enable_truncation(max_length, direction=self.truncation_side)
        elif not truncation and self._tokenizer.truncation is not None:
            self._tokenizer.no_truncation()
        if is_split_into_words:
            special = {"add_special_tokens": add_special_tokens}
            return self._tokenizer.encode_batch([text], is_pretokenized=True, **special)
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

    def __init__(
        self, tokenizer: Any, facts: ExportFacts, session: Session, min_tokens: int = 0
    ) -> None:
        encoding = facts.encoding
        is_head_tail = encoding["truncation"] == "head_tail"
        columns = len(encoding["columns"])
        self._encoder = Encoder(tokenizer, encoding["max_length"], columns, is_head_tail)
        self._encoding = encoding
        self._padding, self._min_tokens = dict(facts.padding), min_tokens
        self._inputs = [name for name in facts.inputs if name in session.inputs]
        self.session = session
        self.width = max(1, len(facts.labels))
        self.pooling = encoding["pooling"]

    def _encode(self, values: list[Any]) -> Encoded:
        if self._encoding["long_texts"] == "cut":
            inputs = to_rows(self._encoder(values))
            rows = np.arange(len(values))
        else:
            numbers, tokenized = zip(*self._windows(values), strict=True)
            inputs = list(tokenized)
            rows = np.array(numbers)
        for place, row in enumerate(inputs):
            # some tokenizers have no token for an empty text, whose answer depends on the padding
            if not row["input_ids"]:
                inputs[place] = {name: [self._padding[name]] for name in row}
                inputs[place]["attention_mask"] = [1]
        return inputs, rows, np.array([len(row["input_ids"]) for row in inputs])

    def _windows(self, values: list[Any]) -> Iterator[tuple[int, Columns]]:
        """Yield the row of each window, and the window."""
        return Windows(self._encoder, self._encoding["stride"]).rows(values)

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


class WordTextInference(WordOutputs, TextInference):
    """Predicts the words of texts, or of lists of words."""

    def __init__(
        self, tokenizer: Any, facts: ExportFacts, session: Session, min_tokens: int = 0
    ) -> None:
        super().__init__(tokenizer, facts, session, min_tokens)
        self._inputs.append("labels")
        self._padding["labels"] = words.UNLABELLED

    def _windows(self, values: list[Any]) -> Iterator[tuple[int, Columns]]:
        windows = words.WordWindows(self._encoder, self._encoding["stride"])
        return windows.rows(*words.without_tags(values))


def text_inference(
    tokenizer: Any, facts: ExportFacts, session: Session, min_tokens: int = 0
) -> TextInference:
    """Return a :class:`TextInference` for texts, or for the words of texts, as facts say."""
    cls = TextInference
    if facts.encoding["pooling"] == words.POOLING:
        cls = WordTextInference
    return cls(tokenizer, facts, session, min_tokens)
