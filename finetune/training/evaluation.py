"""The rows of an evaluation: sorted by length before, and put back in order after.

The library gathers outputs batch by batch. They are concatenated once, at the end; its own
container concatenates at every batch, which is quadratic in rows x classes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
from transformers import EvalPrediction

from finetune.data import batches, windows

#: What the library fills up with, where batches are of different widths.
_PADDING = -100


@dataclass(frozen=True)
class RowOrder:
    """How the rows of an evaluation are ordered, and pooled where they are windows of documents.

    Attributes:
        order: The row of the data at each place of the evaluation; None if it is the same.
        documents: The document of each row of the data; None where rows are documents.
        pooling: ``mean`` or ``max`` of the outputs for the windows of a document.
    """

    order: np.ndarray | None = None
    documents: np.ndarray | None = None
    pooling: str | None = None

    @classmethod
    def by_length(cls, dataset: Any, column: str, pooling: str | None) -> RowOrder:
        """Return the order from the longest row to the shortest, which pads least."""
        documents = windows.documents_of(dataset) if pooling else None
        lengths = None
        if isinstance(dataset, datasets.Dataset):
            lengths = batches.lengths_of(dataset, column)
        order = None if lengths is None else np.argsort(-lengths, kind="stable")
        return cls(order, documents, pooling)

    def restore(self, prediction: EvalPrediction) -> EvalPrediction:
        """Return arrays in the order of the data, one row a document, of lists of batches."""
        outputs = self._concatenate(prediction.predictions)
        labels = self._concatenate(prediction.label_ids)
        inputs = self._concatenate(prediction.inputs)
        losses = self._concatenate(prediction.losses)
        if self.documents is not None and self.pooling is not None:
            outputs = windows.pooled(outputs, self.documents, self.pooling)
            first = windows.firsts(self.documents)
            labels = None if labels is None else labels[first]
            inputs = None if inputs is None else inputs[first]
        return EvalPrediction(outputs, labels, inputs, losses)

    def _concatenate(self, arrays: Any) -> Any:
        if not arrays:
            return None
        if arrays[0].ndim > 1:
            width = max(array.shape[1] for array in arrays)
            arrays = [_pad(array, width) for array in arrays]
        rows = np.concatenate(arrays)
        return rows if self.order is None else rows[np.argsort(self.order)]


def _pad(array: np.ndarray, width: int) -> np.ndarray:
    missing = width - array.shape[1]
    if not missing:
        return array
    widths = [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, widths, constant_values=_PADDING)


@contextlib.contextmanager
def quiet_workers(workers: int) -> Iterator[None]:
    """Keep each forked worker from warning that tokenizers do not run in parallel in it."""
    name = "TOKENIZERS_PARALLELISM"
    if not workers or name in os.environ:
        yield
        return
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name, None)
