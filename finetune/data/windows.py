"""Overlapping windows over texts of more tokens than a model reads at once.

A text of at most ``max_length`` tokens is one window. Any other is cut into windows of exactly
``max_length`` tokens, special tokens included, which share ``stride`` tokens with the next; the
last one ends with the text, and shares more. Each is a row, and a column :data:`COLUMN` has the
number of its document; the outputs of a model for them are pooled to those of the document.

With a fast tokenizer these are the windows of its ``return_overflowing_tokens`` but for the last,
which is what ``truncation_side="left"`` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.encoding import Columns, Encoder, token_ids
from finetune.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

#: The column of prepared rows with the number of their document in its split.
COLUMN = "document"


@dataclass(frozen=True)
class Windows:
    """Cuts texts into windows.

    Args:
        encoder: From texts to tokens; its ``max_length`` is that of a window.
        stride: Tokens that neighbouring windows share; None for a quarter of ``max_length``.

    Raises:
        UserError: If the tokenizer leaves no room for text, or the windows would not advance.
    """

    encoder: Encoder
    stride: int | None = None

    def __post_init__(self) -> None:
        special = self.encoder.frame.size
        limit = f"--max_length {self.encoder.max_length}, {special} of them special tokens"
        if self.room < 1:
            raise UserError(f"{limit}: leaves no room for text in a window")
        if not 0 <= self.shared < self.room:
            raise UserError(f"--stride {self.stride}: expected 0 to {self.room - 1} with {limit}")

    @property
    def room(self) -> int:
        """The tokens of a window that are text."""
        return self.encoder.max_length - self.encoder.frame.size

    @property
    def shared(self) -> int:
        """The tokens of text that neighbouring windows share, at least."""
        quarter = min(self.encoder.max_length // 4, self.room - 1)
        return quarter if self.stride is None else self.stride

    def rows(self, texts: Sequence[str]) -> Iterator[tuple[int, Columns]]:
        """Yield the number of its text for each window, and what the tokenizer returns for it."""
        for number, ids in enumerate(token_ids(self.encoder.tokenizer, texts)):
            self.encoder.refuse_ends([texts[number]], [ids], 0)
            starts = range(0, len(ids) - self.room, self.room - self.shared)
            for start in (*starts, max(0, len(ids) - self.room)):
                yield number, self.encoder.frame.row(ids[start : start + self.room])


def documents_of(rows: Any) -> np.ndarray | None:
    """Return the document of each prepared row, shape ``(rows,)``; None if rows are documents."""
    if COLUMN not in (getattr(rows, "column_names", None) or ()):
        return None
    if rows.features[COLUMN].dtype != "int64":  # which a recipe has called so
        return None
    return np.asarray(rows.with_format("numpy")[COLUMN][:])


def firsts(documents: np.ndarray) -> np.ndarray:
    """Return the index of the first window of each document, shape ``(documents,)``."""
    return np.asarray(np.unique(documents, return_index=True)[1])


def first_lengths(rows: Dataset) -> np.ndarray:
    """Return the tokens of each document's first window, shape ``(documents,)``: of the document,
    unless the window is full.
    """
    lengths, documents = np.asarray(rows.with_format("numpy")["length"][:]), documents_of(rows)
    return lengths if documents is None else lengths[firsts(documents)]


class Pool:
    """Pools the outputs for windows to those of documents, as they come, by ``mean`` or ``max``."""

    def __init__(self, documents: int, pooling: str) -> None:
        assert pooling in ("mean", "max")
        self._how, self._windows = pooling, np.zeros(documents, dtype=np.int64)
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
        """The outputs of the documents, shape ``(documents, outputs)``, float32."""
        assert self._pooled is not None
        assert self._windows.all()
        counts = self._windows.reshape(-1, *[1] * (self._pooled.ndim - 1))
        divisors = counts if self._how == "mean" else 1
        return np.asarray(self._pooled / divisors, dtype=np.float32)


def pooled(outputs: np.ndarray, documents: np.ndarray, pooling: str) -> np.ndarray:
    """Return the outputs of documents, in the order of their numbers, from those of windows."""
    numbers, places = np.unique(documents, return_inverse=True)
    pool = Pool(len(numbers), pooling)
    pool.add(places, outputs)
    return pool.outputs
