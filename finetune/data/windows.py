"""Overlapping windows over texts of more tokens than a model reads at once.

A text of at most ``max_length`` tokens is one window, its row as if it were truncated. Any other is
cut into windows of exactly ``max_length`` tokens, special tokens included, which share ``stride``
tokens with the next; the last one ends with the text, and shares more. Each is a row, and a column
:data:`COLUMN` has the number of its document; the outputs of a model for them are pooled to those
of the document.

With a fast tokenizer these are the windows of its ``return_overflowing_tokens`` but for the last,
which is what ``truncation_side="left"`` keeps. They are cut here so that a text of megabytes is
never tokenized as one, and for tokenizers in Python.
"""

from __future__ import annotations

import functools
import itertools
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.shortening import pieces
from finetune.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

#: The column of prepared rows with the number of their document in its split.
COLUMN = "document"
#: Characters that are tokenized at once, about.
_TOGETHER = 2**20
_SAMPLE = " ".join(string.ascii_lowercase)
Row = dict[str, list[int]]


@dataclass(frozen=True)
class Windows:
    """Cuts texts into windows.

    Args:
        tokenizer: Of the model.
        max_length: Tokens of a window, special tokens included.
        stride: Tokens that neighbouring windows share; None for a quarter of ``max_length``.

    Raises:
        UserError: if the tokenizer leaves no room for text, or the windows would not advance.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    stride: int | None = None

    def __post_init__(self) -> None:
        special = self.max_length - self.room
        if self.room < 1:
            raise UserError(
                f"--max_length {self.max_length}: the tokenizer adds {special} special tokens, so "
                f"no text is left in a window; expected {special + 1} or more"
            )
        if self.stride is not None and not 0 <= self.stride < self.room:
            raise UserError(
                f"--stride {self.stride}: expected 0 to {self.room - 1} tokens, as a window of "
                f"--max_length {self.max_length} has {self.room} beside {special} special tokens"
            )

    @property
    def room(self) -> int:
        """The tokens of a window that are text."""
        before, after, _ = self._frame
        return self.max_length - before - after

    @property
    def shared(self) -> int:
        """The tokens of text that neighbouring windows share, at least."""
        usual = min(self.max_length // 4, self.room - 1)
        return usual if self.stride is None else self.stride

    @functools.cached_property
    def _frame(self) -> tuple[int, int, Row]:
        """How many special tokens come before and after a text, and the columns of an example."""
        example = dict(self.tokenizer(_SAMPLE, verbose=False))
        (plain,) = self._encoded([_SAMPLE])
        ids = example["input_ids"]
        for before in range(len(ids) - len(plain) + 1):
            if plain and ids[before : before + len(plain)] == plain:
                return before, len(ids) - len(plain) - before, example
        raise UserError(
            f"--long_texts windows: {type(self.tokenizer).__name__} does not put its special "
            "tokens around those of the text; use --long_texts cut"
        )

    def rows(self, texts: Sequence[str]) -> Iterator[tuple[int, Row, bool]]:
        """Yield the windows of texts, in their order, of a few texts or a part of one at a time.

        Yields:
            The number of the text, what the tokenizer returns for the window, and whether it is
            the last one of the text.
        """
        for number, parts in itertools.groupby(self._tokens(texts), key=lambda each: each[0]):
            for ids, is_last in cut((ids for _, ids in parts), self.room, self.shared):
                yield number, self._framed(ids), is_last

    def _tokens(self, texts: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield number and tokens of the texts, piece by piece."""
        numbers, waiting, size = list[int](), list[str](), 0
        for number, text in enumerate(texts):
            for piece in pieces(text):
                numbers.append(number)
                waiting.append(piece)
                size += len(piece)
                if size >= _TOGETHER:
                    yield from zip(numbers, self._encoded(waiting), strict=True)
                    numbers, waiting, size = [], [], 0
        if waiting:
            yield from zip(numbers, self._encoded(waiting), strict=True)

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        ids_only = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False, **ids_only)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _framed(self, ids: list[int]) -> Row:
        """Return the row of a window, with special tokens around its text."""
        before, after, example = self._frame
        row = {}
        for name, values in example.items():
            middle = ids if name == "input_ids" else [values[before]] * len(ids)
            row[name] = [*values[:before], *middle, *values[len(values) - after :]]
        return row


def cut(parts: Iterable[list[int]], room: int, shared: int) -> Iterator[tuple[list[int], bool]]:
    """Yield windows over tokens that come in parts, and whether each is the last one.

    Args:
        parts: The tokens of one text.
        room: Tokens of a window; a text of no more is one window.
        shared: Tokens that neighbouring windows share; the last ends with the text, and may share
            more with the one before.
    """
    tokens, window = list[int](), list[int]()
    for part in parts:
        tokens += part
        start = 0
        while len(tokens) - start > room:
            window = tokens[start : start + room]
            yield window, False
            start += room - shared
        tokens = tokens[start:]
    yield ([*window, *tokens[shared:]][-room:] if window else tokens), True


def encode(
    batch: dict[str, list[Any]],
    start: int,
    windows: Windows,
    targets: Callable[[Any], np.ndarray],
) -> dict[str, Any]:
    """Return the columns of the windows of a batch of texts.

    Args:
        batch: Columns ``text`` and ``label``.
        start: The number of the first row of the batch in its split.
        windows: Cuts them.
        targets: From labels to what a batch has as ``labels``.
    """
    found = [(number, row) for number, row, _ in windows.rows(batch["text"])]
    numbers = np.array([number for number, _ in found], dtype=np.int64)
    names = found[0][1] if found else ()
    return {
        **{name: [row[name] for _, row in found] for name in names},
        "labels": targets(batch["label"])[numbers],
        "length": [len(row["input_ids"]) for _, row in found],
        COLUMN: numbers + start,
    }


def documents_of(rows: Any) -> np.ndarray | None:
    """Return the document of each prepared row, shape ``(rows,)``; None where rows are documents.

    Args:
        rows: A ``datasets.Dataset``, or any other rows, which have no such column.
    """
    if COLUMN not in (getattr(rows, "column_names", None) or ()):
        return None
    if rows.features[COLUMN].dtype != "int64":  # which a recipe has called so
        return None
    return np.asarray(rows.with_format("numpy")[COLUMN][:])


def firsts(documents: np.ndarray) -> np.ndarray:
    """Return the index of the first window of each document, shape ``(documents,)``."""
    return np.asarray(np.unique(documents, return_index=True)[1])


def first_lengths(rows: Dataset) -> np.ndarray:
    """Return the length of each document's first window, shape ``(documents,)``: of the document
    itself, if that is no longer than a window.
    """
    lengths, documents = np.asarray(rows.with_format("numpy")["length"][:]), documents_of(rows)
    return lengths if documents is None else lengths[firsts(documents)]


class Pool:
    """Pools the outputs for windows to one of each document, as they come.

    Args:
        documents: How many there are.
        how: ``mean``, or ``max`` of each output by itself.
    """

    def __init__(self, documents: int, how: str) -> None:
        assert how in ("mean", "max")
        self._how, self._windows = how, np.zeros(documents, dtype=np.int64)
        self._pooled: np.ndarray | None = None

    def add(self, documents: np.ndarray, outputs: np.ndarray) -> None:
        """Take outputs, shape ``(windows, outputs)``, and the numbers of their documents."""
        if self._pooled is None:
            start = 0.0 if self._how == "mean" else -np.inf
            self._pooled = np.full((len(self._windows), *outputs.shape[1:]), start)
        pooling = np.add if self._how == "mean" else np.maximum
        pooling.at(self._pooled, documents, outputs)  # in float64, whatever the outputs are
        np.add.at(self._windows, documents, 1)

    @property
    def outputs(self) -> np.ndarray:
        """What is pooled so far, shape ``(documents, outputs)``, float32."""
        assert self._pooled is not None
        assert self._windows.all()
        pooled = self._pooled
        if self._how == "mean":
            pooled = pooled / self._windows.reshape(-1, *[1] * (pooled.ndim - 1))
        return pooled.astype(np.float32)


def pooled(outputs: np.ndarray, documents: np.ndarray, how: str) -> np.ndarray:
    """Return the outputs of documents, in the order of their numbers, from those of windows.

    Args:
        outputs: Shape ``(windows, outputs)``.
        documents: The document of each window, shape ``(windows,)``.
        how: ``mean`` or ``max``.
    """
    numbers, places = np.unique(documents, return_inverse=True)
    pool = Pool(len(numbers), how)
    pool.add(places, outputs)
    return pool.outputs
