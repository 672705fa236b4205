"""Turn rows into logits: the engine behind :class:`finetune.Predictor`, ``predict`` and ``export``.

Rows are tokenized some at a time, computed in batches of similar length, and pooled. A subclass
prepares rows, as a recipe does or from the facts of an export; a :class:`Session` computes batches,
with torch or another engine. Torch is not imported: an export answers without it.
"""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from finetune.data import words
from finetune.data.encoding import pooled
from finetune.data.lengths import cut_by_length

_CHARACTERS_AT_ONCE = 2**20  # to encode, each text counted as long as the longest
_MAX_WAITING_BATCHES = 256  # batches: a text of megabytes has many windows
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
