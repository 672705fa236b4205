"""The model of a run as torch computes it, on rows that its recipe prepares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Image, List

from finetune.data import ROW, words
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, to_rows
from finetune.data.lengths import default_budget
from finetune.errors import UserError
from finetune.predicting import Options
from finetune.predicting.inference import Batch, Encoded, Inference, Session, Submission
from finetune.predicting.session import TorchSession
from finetune.recipe.pretrained import TextRecipe
from finetune.recipe.tokens import TokenRecipe
from finetune.runtime import distributed, hardware

if TYPE_CHECKING:
    from finetune.recipe.base import Recipe
    from finetune.recipe.run import Run

_ROWS_WITHOUT_LENGTH = 64  # of a batch, where rows have no tokens
_LABELS = ("label", "labels", "label_ids")


class RecipeInference(Inference):
    """Predicts rows, prepared as the recipe of a run does in training.

    Args:
        run: It has a model.
        recipe: That of the run.
        options: With precision and kernels.
        session: That of an engine; None to load the model with torch.
    """

    def __init__(
        self, run: Run, recipe: Recipe, options: Options, session: Session | None = None
    ) -> None:
        if session is None:
            is_bf16 = options.precision == "bf16"
            kernels = options.cpu_kernels
            session = TorchSession(run.model(), bf16=is_bf16, cpu_kernels=kernels)
        device = distributed.device().type
        threads = 1
        one_thread = None
        if device == "cpu":
            threads = hardware.use_threads(None)
            # a new thread of torch starts with as many threads of its own as there are cores
            one_thread = partial(torch.set_num_threads, 1)
        self.session = session
        self.batch_tokens = options.batch_tokens or default_budget(device)
        self.max_rows = None
        self.executor = ThreadPoolExecutor(threads, initializer=one_thread)
        self._recipe = recipe
        self._keeps_columns = not run.manifest.arguments.get("remove_unused_columns", True)
        self._names = {*session.inputs, *_LABELS}
        self._collator = recipe.data_collator()
        self.width = recipe.kind.width
        self.pooling = "mean"
        if isinstance(recipe, TextRecipe):
            self.pooling = recipe.pooling

    def _encode(self, values: list[Any]) -> Encoded:
        recipe = self._recipe
        has_own_prepare = type(recipe).prepare is not TextRecipe.prepare
        if isinstance(recipe, TextRecipe) and not has_own_prepare and recipe.long_texts == "cut":
            # as `prepare` does, which hashes rows and tokenizer first
            columns = recipe.encoder()(values)
            lengths = np.array(list(map(len, columns["input_ids"])))
            return to_rows(columns), np.arange(len(values)), lengths
        prepared = recipe.prepare(DatasetDict(test=self._dataset(values)))["test"]
        rows = documents_of(prepared)
        if rows is None:
            rows = np.arange(len(prepared))
        if not np.array_equal(np.unique(rows), np.arange(len(values))):
            raise UserError("the recipe's prepare() leaves out rows that are to be predicted")
        if not self._keeps_columns:
            names = [column for column in prepared.column_names if column in self._names]
            prepared = prepared.select_columns(names)
        lengths = np.full(len(prepared), max(1, self.batch_tokens // _ROWS_WITHOUT_LENGTH))
        if "input_ids" in prepared.column_names:
            lengths = np.array(list(map(len, prepared["input_ids"])))
        return prepared, rows, lengths

    def _collate(self, inputs: list[Mapping[str, Any]]) -> Batch:
        batch = self._collator([dict(row) for row in inputs])
        return {name: value for name, value in batch.items() if name not in _LABELS}

    def _dataset(self, values: list[Any]) -> Dataset:
        """Return values as raw rows, with labels that have no effect."""
        if isinstance(self._recipe, TokenRecipe):
            return self._recipe.rows_to_predict(values)
        name = self._recipe.input_column
        numbers = np.arange(len(values))
        # recipes have the numbers from `load` and may remove them again
        columns: dict[str, Any] = {name: values, ROW: numbers, "id": numbers}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns |= {name: list(map("\n".join, values)), TEXTS: values}
        rows = Dataset.from_dict(columns)
        if isinstance(values[0], dict) and "bytes" in values[0]:
            rows = rows.cast_column(name, Image())
        feature = self._recipe.kind.feature
        label: Any = 0
        if isinstance(feature, List):
            label = [0] * max(0, feature.length)
        return rows.add_column("label", [label] * len(values), feature=feature)


class WordInference(RecipeInference):
    """Predicts the words of rows, each in one window of its text."""

    def logits(self, submission: Submission) -> np.ndarray:
        """Return the logits of the words of submitted rows, with a separator after each row:
        float32, shape ``(places, outputs)``, see :mod:`finetune.tasks.tokens`.
        """
        batches, has_value = submission
        outputs = [np.zeros((0, self.width), np.float32)]
        rows, windows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for result, rows_of_batch, windows_of_batch in batches:
            logits = result()
            # a window has as many outputs as words; the first column has its place in the batch
            places = logits[:, 0].astype(np.int64)
            outputs.append(logits[:, 1:])
            rows.append(rows_of_batch[places])
            windows.append(windows_of_batch[places])
        numbers = np.flatnonzero(has_value)[np.concatenate(rows)]
        order = np.lexsort((np.concatenate(windows), numbers))
        values = np.concatenate(outputs)[order]
        return words.join_rows(values, numbers[order], len(has_value), 0)

    def _compute(self, inputs: Sequence[Mapping[str, Any]], places: np.ndarray) -> np.ndarray:
        """Return place in the batch and logits of each word, shape ``(words, 1 + outputs)``."""
        batch = dict(self._collator([dict(inputs[int(place)]) for place in places]))
        is_word = batch.pop("labels").numpy() != words.UNLABELLED
        logits = self.session(batch).reshape(*is_word.shape, self.width)
        return np.column_stack([np.nonzero(is_word)[0], logits[is_word]])
