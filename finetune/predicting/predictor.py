"""Logits of rows by the model of a run, in batches of similar length with a fixed token budget.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from finetune.data import ROW
from finetune.data.batches import cut
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, pooled
from finetune.errors import UserError
from finetune.models import cpu
from finetune.predicting import Options
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, hardware

#: Tokens of a batch. On a CPU the activations of a layer then nearly fit into its cache.
TOKENS_ON_CPU, TOKENS_ON_ACCELERATOR = 1024, 65_536
_ROWS_WITHOUT_LENGTH = 64  # of a batch, where rows have no tokens
_CHARACTERS_AT_ONCE = 2**20  # that are tokenized, if all texts are as long as the longest
#: Tokens of a chunk that wait for the model, about: a text of megabytes has many windows.
_MOST_WAITING = 2**20
_LABELS = ("label", "labels", "label_ids")
#: Logits of batches, and the row that each belongs to.
Batches = list[tuple[Future[np.ndarray], np.ndarray]]
#: Inputs of the model, the row that each belongs to, and their tokens.
_Inputs = tuple[Sequence[Mapping[str, Any]], np.ndarray, np.ndarray]


class Predictor:
    """The model of a run, ready to predict; the precision and kernels of ``options`` are set."""

    def __init__(self, run: Run, options: Options) -> None:
        self._recipe = run.recipe(scores=False)
        self._task = run.kind
        self._device = device()
        self._bf16 = options.precision == "bf16"
        on_cpu = self._device.type == "cpu"
        default = TOKENS_ON_CPU if on_cpu else TOKENS_ON_ACCELERATOR
        self._batch_tokens = options.batch_tokens or default
        threads = hardware.use_threads(None) if on_cpu else 1
        # a new thread of torch starts with as many threads of its own as there are cores
        use_one = partial(torch.set_num_threads, 1) if on_cpu else None
        self.executor = ThreadPoolExecutor(threads, initializer=use_one)
        self._most_waiting = threads + _MOST_WAITING // self._batch_tokens
        model = self._recipe.load_model(run.path, run.labels).eval()
        self._inputs = {*inspect.signature(model.forward).parameters, *_LABELS}
        self._removes_columns = run.manifest.arguments.get("remove_unused_columns", True)
        if self._bf16:
            model.to(torch.bfloat16)
        if on_cpu and options.cpu_kernels == "auto":
            cpu.for_inference(model, bf16=self._bf16)
        self._model = model.to(self._device)
        self._collate = self._recipe.data_collator()

    def submit(self, values: list[Any]) -> Batches:
        """Return batches of rows whose logits are computed meanwhile, for :meth:`logits`.

        The longest rows come first, so that memory runs out at once or never. Rows are as the
        recipe reads them: texts, tuples of texts of several columns, or values of its
        ``input_column``.
        """
        batches: Batches = []
        for inputs, rows, lengths in self._prepare(values):
            order = np.argsort(-lengths, kind="stable")
            ends = np.cumsum(cut(lengths[order], self._batch_tokens))
            for batch in np.split(order, ends[:-1]):
                batches.append((self.executor.submit(self._forward, inputs, batch), rows[batch]))
            if len(batches) > self._most_waiting:
                batches[-self._most_waiting][0].result()
        return batches

    def logits(self, batches: Batches) -> np.ndarray:
        """Return the logits of submitted rows, shape ``(rows, outputs)``, float32."""
        if not batches:
            return np.zeros((0, self._task.width), np.float32)
        pooling = self._recipe.pooling if isinstance(self._recipe, TextRecipe) else "mean"
        logits = np.concatenate([future.result() for future, _ in batches])
        return pooled(logits, np.concatenate([rows for _, rows in batches]), pooling)

    def _prepare(self, rows: list[Any]) -> Iterator[_Inputs]:
        """Yield what the model takes of rows, some at a time, that of the longest rows first."""
        recipe = self._recipe
        if not rows:
            return
        if not isinstance(recipe, TextRecipe) or type(recipe).prepare is not TextRecipe.prepare:
            yield self._prepare_by_recipe(rows)
            return
        windows = recipe.windows
        encoder = recipe.encoder()
        sizes = np.array([len("".join(row)) for row in rows])
        order = np.argsort(-sizes, kind="stable")
        ends = np.cumsum(cut(sizes[order], _CHARACTERS_AT_ONCE))
        for numbers in np.split(order, ends[:-1]):
            texts = [rows[number] for number in numbers]
            if windows is not None:
                places, inputs = zip(*windows.rows(texts), strict=True)
                numbers = numbers[list(places)]
            else:
                columns = encoder(texts)
                values = zip(*columns.values(), strict=True)
                inputs = tuple(dict(zip(columns, row, strict=True)) for row in values)
            yield inputs, numbers, np.array([len(row["input_ids"]) for row in inputs])

    def _prepare_by_recipe(self, values: list[Any]) -> _Inputs:
        """Return what the model takes of rows that the recipe prepares as in training."""
        from datasets import Dataset, DatasetDict, Image, List

        name = self._recipe.input_column
        numbers = np.arange(len(values))  # which recipes have from `load` and may remove again
        columns: dict[str, Any] = {name: values, ROW: numbers, "id": numbers}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns |= {name: ["\n".join(row) for row in values], TEXTS: values}
        rows = Dataset.from_dict(columns)
        if isinstance(values[0], dict) and "bytes" in values[0]:
            rows = rows.cast_column(name, Image())
        label = self._task.feature
        empty = [0] * max(0, label.length) if isinstance(label, List) else 0  # has no effect
        rows = rows.add_column("label", [empty] * len(values), feature=label)
        prepared = self._recipe.prepare(DatasetDict(test=rows))["test"]
        windows_of = documents_of(prepared)
        documents = np.arange(len(prepared)) if windows_of is None else windows_of
        if len(np.unique(documents)) != len(values):
            raise UserError("the recipe's prepare() leaves out rows that are to be predicted")
        if self._removes_columns:
            names = [column for column in prepared.column_names if column in self._inputs]
            prepared = prepared.select_columns(names)
        lengths = np.full(len(prepared), max(1, self._batch_tokens // _ROWS_WITHOUT_LENGTH))
        if "input_ids" in prepared.column_names:
            lengths = np.array([len(tokens) for tokens in prepared["input_ids"]])
        return prepared, documents, lengths

    def _forward(self, inputs: Sequence[Mapping[str, Any]], numbers: np.ndarray) -> np.ndarray:
        """Return the logits of some inputs, shape ``(numbers, outputs)``."""
        batch = {}
        for name, value in self._collate([dict(inputs[int(n)]) for n in numbers]).items():
            if name not in _LABELS:
                is_cast = self._bf16 and torch.is_floating_point(value)
                batch[name] = value.to(self._device, torch.bfloat16 if is_cast else value.dtype)
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self._model(**batch)["logits"]
            return logits.float().reshape(len(numbers), -1).cpu().numpy()
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of memory at {self._batch_tokens:,} tokens per batch; try --batch_tokens "
                f"{max(1, self._batch_tokens // 4)}"
            ) from error


def device() -> torch.device:
    """Return the device of this process."""
    if (device := torch.accelerator.current_accelerator(check_available=True)) is None:
        return torch.device("cpu")
    return torch.device(device.type, distributed.ranks().local_rank)
