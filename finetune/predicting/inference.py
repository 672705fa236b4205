"""Turn rows into logits: the engine behind :class:`finetune.Predictor`, ``predict`` and ``export``.

Rows are tokenized some at a time, computed in batches of similar length, and pooled. A subclass
prepares rows: :class:`TextInference` from the facts of an export, another one as a recipe does. A
:class:`Session` computes batches, with torch or another engine. Neither torch nor transformers is
imported: an export answers without them.
"""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from finetune.data import words
from finetune.data.encoding import Columns, Encoder, Windows, pooled, to_rows
from finetune.data.lengths import cut_by_length
from finetune.predicting.files import TOKENIZER, ExportFacts

_CHARACTERS_AT_ONCE = 2**20  # to encode, each text counted as long as the longest
_MAX_WAITING_BATCHES = 256  # batches: a text of megabytes has many windows
#: The names that ``tokenizers`` has for the inputs of a model.
_NAMES = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
_Logits = Callable[[], Any]
#: The logits of each batch, with the row of each of its inputs, and their order in these rows; and
#: which rows have a value.
Submission = tuple[list[tuple[_Logits, np.ndarray, np.ndarray]], np.ndarray]
#: Inputs of a model; the row of each; and how many tokens each counts, both of shape ``(inputs,)``.
#: A long text may be several inputs, its windows.
Encoded = tuple[Sequence[Mapping[str, Any]], np.ndarray, np.ndarray]
#: The arrays or tensors that a model takes, by name, shape ``(inputs, ...)``.
Batch = Mapping[str, Any]


class Session(Protocol):
    """Computes batches; several threads may call it at once.

    Attributes:
        inputs: The names of the inputs of the model.
    """

    inputs: Collection[str]

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, float32, shape ``(inputs, outputs)``, or of words
        ``(inputs, tokens, outputs)``.
        """


class Inference(ABC):
    """A loaded model: values of rows in, logits out.

    Attributes:
        session: Computes batches.
        width: The number of outputs of the model.
        pooling: How the outputs of windows become those of their text, ``mean`` or ``max``.
        batch_tokens: Tokens of a batch with padding, unless one row has more.
        max_rows: Rows of a batch; None for as many as have these tokens.
        executor: Computes several batches at once; None for the thread of the caller.
    """

    session: Session
    width: int
    pooling: str
    batch_tokens: int = 8192
    max_rows: int | None = 32
    executor: Executor | None = None

    @abstractmethod
    def _encode(self, values: list[Any]) -> Encoded:
        """Return the inputs of the model for the values of one row or more."""

    @abstractmethod
    def _collate(self, inputs: list[Mapping[str, Any]]) -> Batch:
        """Return inputs as a batch, padded."""

    def close(self) -> None:
        """End the threads; batches that are waiting are not computed."""
        if self.executor:
            self.executor.shutdown(cancel_futures=True)

    def __call__(self, values: Sequence[Any]) -> np.ndarray:
        """Return the logits of rows, see :meth:`submit` and :meth:`logits`."""
        return self.logits(self.submit(values))

    def submit(self, values: Sequence[Any]) -> Submission:
        """Start to compute rows, for :meth:`logits`.

        The longest rows come first, so that memory runs out at once or never. Values are what the
        encoder reads of a row: a text, a tuple of texts, or e.g. an image; None where it is
        missing.
        """
        has_value = np.array([value is not None for value in values], dtype=bool)
        rows = [value for value in values if value is not None]
        batches: list[tuple[_Logits, np.ndarray, np.ndarray]] = []
        sizes = np.ones(len(rows), dtype=np.int64)
        if self.executor:  # which computes the longest texts while others are encoded
            for number, row in enumerate(rows):
                if isinstance(row, (str, tuple, list)):
                    sizes[number] = len("".join(row))
        for numbers in cut_by_length(sizes, _CHARACTERS_AT_ONCE):
            inputs, documents, lengths = self._encode([rows[number] for number in numbers])
            for places in cut_by_length(lengths, self.batch_tokens, self.max_rows):
                logits: _Logits = functools.partial(self._compute, inputs, places)
                if self.executor:
                    logits = self.executor.submit(logits).result
                batches.append((logits, numbers[documents[places]], places))
            if self.executor and len(batches) > _MAX_WAITING_BATCHES:
                batches[-_MAX_WAITING_BATCHES][0]()  # until memory for more is free
        return batches, has_value

    def logits(self, submission: Submission) -> np.ndarray:
        """Return the logits of submitted rows, float32, shape ``(rows, outputs)``; 0 for those
        without a value.
        """
        batches, has_value = submission
        logits = np.zeros((len(has_value), self.width), np.float32)
        if batches:
            results, rows, _ = zip(*batches, strict=True)
            outputs = np.concatenate([result() for result in results])
            logits[has_value] = pooled(outputs, np.concatenate(rows), self.pooling)
        return logits

    def _compute(self, inputs: Sequence[Mapping[str, Any]], places: np.ndarray) -> np.ndarray:
        return self.session(self._collate([inputs[int(place)] for place in places]))


class WordOutputs(Inference):
    """Predicts the words of rows, each in one window of its text. The ``labels`` of an input say
    which of its tokens are predicted.
    """

    def logits(self, submission: Submission) -> np.ndarray:
        """Return the logits of the words of submitted rows, with a separator after each row:
        float32, shape ``(places, outputs)``, see :mod:`finetune.tasks.tokens`.
        """
        batches, has_value = submission
        windows: list[tuple[int, int, np.ndarray]] = []
        for result, rows, places in batches:
            windows += zip(rows.tolist(), places.tolist(), result(), strict=True)
        windows.sort(key=itemgetter(0, 1))
        outputs: list[list[np.ndarray]] = [[] for _ in has_value]
        numbers = np.flatnonzero(has_value)
        for row, _, logits in windows:
            outputs[numbers[row]].append(logits)
        separator = np.zeros((1, self.width), np.float32)
        for outputs_of_row in outputs:
            outputs_of_row.append(separator)
        return np.concatenate([separator[:0], *itertools.chain(*outputs)])

    def _compute(self, inputs: Sequence[Mapping[str, Any]], places: np.ndarray) -> Any:
        """Return the logits of the words of each input, shape ``(words, outputs)``."""
        batch = dict(self._collate([inputs[int(place)] for place in places]))
        is_word = np.asarray(batch.pop("labels")) != words.UNLABELLED
        return [row[mask] for row, mask in zip(self.session(batch), is_word, strict=True)]


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
            return self._tokenizer.encode_batch(
                [text], is_pretokenized=True, add_special_tokens=add_special_tokens
            )
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
        self._padding = {"labels": words.UNLABELLED, **facts.padding}
        self._min_tokens = min_tokens
        self._inputs = [name for name in facts.inputs if name in session.inputs]
        if encoding["pooling"] == words.POOLING:
            self._inputs.append("labels")
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
