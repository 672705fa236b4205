"""Predictions of rows by the model of a run, in batches of similar length with a token budget.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, Image, List

from finetune.data import ROW
from finetune.data.batches import cut_by_length
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, pooled
from finetune.errors import UserError
from finetune.models import cpu
from finetune.predicting import Options
from finetune.recipe import TextRecipe
from finetune.recipe.run import Run
from finetune.runtime import distributed, hardware

#: Tokens of a batch. On a CPU the activations of a layer then nearly fit into its cache.
TOKENS_ON_CPU, TOKENS_ON_ACCELERATOR = 1024, 65_536
_ROWS_WITHOUT_LENGTH = 64  # of a batch, where rows have no tokens
_CHARACTERS_AT_ONCE = 2**20  # to prepare, each text counted as long as the longest
_MAX_WAITING_BATCHES = 256  # batches: a text of megabytes has many windows
_LABELS = ("label", "labels", "label_ids")
#: Inputs of the model, the row that each belongs to, and their tokens.
_Inputs = tuple[Sequence[Mapping[str, Any]], np.ndarray, np.ndarray]
#: Logits of batches that are being computed, with the row of each; and which rows have a value.
Submission = tuple[list[tuple[Future[np.ndarray], np.ndarray]], np.ndarray]


class Predictor:
    """The model of a run, loaded: values of rows in, columns of predictions out.

    ``options`` have a precision and kernels; ``load_model`` is that of the recipe or like it.
    """

    def __init__(self, run: Run, options: Options, load_model: Callable[..., Any]) -> None:
        self._options = options
        self._temperature = float(run.manifest.temperature or 1.0) if options.calibrated else 1.0
        self._recipe = run.recipe(scores=False)
        self._task = run.kind
        self._device: torch.device = distributed.device()
        self._bf16 = options.precision == "bf16"
        on_cpu = self._device.type == "cpu"
        default = TOKENS_ON_CPU if on_cpu else TOKENS_ON_ACCELERATOR
        self._batch_tokens = options.batch_tokens or default
        threads = hardware.use_threads(None) if on_cpu else 1
        # a new thread of torch starts with as many threads of its own as there are cores
        use_one = partial(torch.set_num_threads, 1) if on_cpu else None
        self._executor = ThreadPoolExecutor(threads, initializer=use_one)
        model = load_model(run.path, run.labels).eval()
        self._inputs = {*inspect.signature(model.forward).parameters, *_LABELS}
        self._removes_columns = run.manifest.arguments.get("remove_unused_columns", True)
        if self._bf16:
            model.to(torch.bfloat16)
        if on_cpu and options.cpu_kernels == "auto":
            cpu.for_inference(model, bf16=self._bf16)
        self._model = model.to(self._device)
        self._collate = self._recipe.data_collator()

    def close(self) -> None:
        """End the threads; batches that are waiting are not computed."""
        self._executor.shutdown(cancel_futures=True)

    def submit(self, values: Sequence[Any]) -> Submission:
        """Start to predict rows, for :meth:`columns`.

        The longest rows come first, so that memory runs out at once or never. Values are what the
        recipe reads of a row: a text, a tuple of the texts of several columns, or a value of its
        ``input_column``; None where it is missing.
        """
        has_value = np.ones(len(values), dtype=bool)
        rows = []
        for number, value in enumerate(values):
            if value is None:
                has_value[number] = False
            else:
                rows.append(value)
        sizes = np.ones(len(rows), dtype=np.int64)
        if isinstance(self._recipe, TextRecipe):
            sizes = np.array([len("".join(row)) for row in rows])
        batches = []
        for numbers in cut_by_length(sizes, _CHARACTERS_AT_ONCE):
            inputs, places, lengths = self._prepare([rows[number] for number in numbers])
            for batch in cut_by_length(lengths, self._batch_tokens):
                logits = self._executor.submit(self._forward, inputs, batch)
                batches.append((logits, numbers[places[batch]]))
            if len(batches) > _MAX_WAITING_BATCHES:  # until memory for more is free
                batches[-_MAX_WAITING_BATCHES][0].result()
        return batches, has_value

    def columns(self, submission: Submission) -> pa.Table:
        """Return the columns that are added to submitted rows, null for those without a value."""
        batches, has_value = submission
        logits = np.zeros((len(has_value), self._task.width), np.float32)
        if batches:
            pooling = "mean"
            if isinstance(self._recipe, TextRecipe):
                pooling = self._recipe.pooling
            futures, rows = zip(*batches, strict=True)
            outputs = np.concatenate([future.result() for future in futures])
            logits[has_value] = pooled(outputs, np.concatenate(rows), pooling)
        all_labels = self._options.all_probabilities
        columns = self._task.predicted(logits, self._temperature, all_labels=all_labels)
        kind = pa.string() if self._task.has_one_class else pa.list_(pa.string())
        table = {}
        for name, values in columns.items():
            if isinstance(values, np.ndarray):  # as float32: 0.9812, not 0.9811999797821045
                numbers = pa.array(values.astype(np.float32), mask=~has_value)
                table[name] = numbers.cast(pa.string()).cast(pa.float64())
            else:
                table[name] = pa.array(values, kind, mask=~has_value)
        return pa.table(table)

    def _prepare(self, values: list[Any]) -> _Inputs:
        """Return what the model takes of rows, prepared as in training."""
        recipe = self._recipe
        numbers = np.arange(len(values))
        is_own = type(recipe).prepare is not TextRecipe.prepare
        if isinstance(recipe, TextRecipe) and not is_own and recipe.long_texts == "cut":
            # as `prepare` does, which hashes rows and tokenizer first
            encoded = recipe.encoder()(values)
            tokens = zip(*encoded.values(), strict=True)
            inputs = [dict(zip(encoded, row, strict=True)) for row in tokens]
            return inputs, numbers, np.array([len(row["input_ids"]) for row in inputs])
        name = recipe.input_column
        # recipes have the numbers from `load` and may remove them again
        columns: dict[str, Any] = {name: values, ROW: numbers, "id": numbers}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns |= {name: list(map("\n".join, values)), TEXTS: values}
        rows = Dataset.from_dict(columns)
        if isinstance(values[0], dict) and "bytes" in values[0]:
            rows = rows.cast_column(name, Image())
        label = self._task.feature
        empty: Any = 0  # has no effect
        if isinstance(label, List):
            empty = [0] * max(0, label.length)
        rows = rows.add_column("label", [empty] * len(values), feature=label)
        prepared = recipe.prepare(DatasetDict(test=rows))["test"]
        documents = documents_of(prepared)
        if documents is None:
            documents = np.arange(len(prepared))
        if not np.array_equal(np.unique(documents), numbers):
            raise UserError("the recipe's prepare() leaves out rows that are to be predicted")
        if self._removes_columns:
            names = [column for column in prepared.column_names if column in self._inputs]
            prepared = prepared.select_columns(names)
        lengths = np.full(len(prepared), max(1, self._batch_tokens // _ROWS_WITHOUT_LENGTH))
        if "input_ids" in prepared.column_names:
            lengths = np.array(list(map(len, prepared["input_ids"])))
        return prepared, documents, lengths

    def _forward(self, inputs: Sequence[Mapping[str, Any]], numbers: np.ndarray) -> np.ndarray:
        """Return the logits of some inputs, shape ``(numbers, outputs)``."""
        batch = {}
        for name, value in self._collate([dict(inputs[int(n)]) for n in numbers]).items():
            if name not in _LABELS:
                dtype = value.dtype
                if self._bf16 and torch.is_floating_point(value):
                    dtype = torch.bfloat16
                batch[name] = value.to(self._device, dtype)
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self._model(**batch)["logits"]
            return logits.float().reshape(len(numbers), -1).cpu().numpy()
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of memory at {self._batch_tokens:,} tokens per batch; try --batch_tokens "
                f"{max(1, self._batch_tokens // 4)}"
            ) from error
