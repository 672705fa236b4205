"""The model of a run as torch computes it, on rows that its recipe prepares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, DatasetDict, Image, List

from finetune.data import ROW, words
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, to_rows
from finetune.data.lengths import default_budget
from finetune.errors import UserError
from finetune.predicting import Options
from finetune.predicting.inference import Batch, Encoded, Inference, Session, WordOutputs
from finetune.predicting.session import TorchSession
from finetune.recipe.pretrained import TextRecipe
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
        if device == "cpu":
            hardware.use_threads(None)
        self.session = session
        self.batch_tokens = options.batch_tokens or default_budget(device)
        self.max_rows = None
        self.executor = hardware.batch_executor(device)
        self._recipe = recipe
        self._keeps_columns = not run.manifest.arguments.get("remove_unused_columns", True)
        self._names = {*session.inputs, *_LABELS}
        self._collator = recipe.data_collator()
        self.width = recipe.resolved_task.width
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
        name = self._recipe.input_column
        numbers = np.arange(len(values))
        # recipes have the numbers from `load` and may remove them again
        columns: dict[str, Any] = {name: values, ROW: numbers, "id": numbers}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns |= {name: list(map("\n".join, values)), TEXTS: values}
        rows = Dataset.from_dict(columns)
        if isinstance(values[0], dict) and "bytes" in values[0]:
            rows = rows.cast_column(name, Image())
        feature = self._recipe.resolved_task.feature
        label: Any = 0
        if isinstance(feature, List):
            label = [0] * max(0, feature.length)
        return rows.add_column("label", [label] * len(values), feature=feature)


class WordInference(WordOutputs, RecipeInference):
    """Predicts the words of rows."""

    def _dataset(self, values: list[Any]) -> Dataset:
        texts, labels = words.without_tags(values)
        rows = Dataset.from_dict({self._recipe.input_column: texts})
        return rows.add_column("label", labels, feature=self._recipe.resolved_task.feature)

    def _collate(self, inputs: list[Mapping[str, Any]]) -> Batch:
        return dict(self._collator([dict(row) for row in inputs]))
