"""Logits of rows by the model of a run, in batches of similar length with a fixed token budget.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from finetune.data import ROW
from finetune.data.batches import cut
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, pooled
from finetune.errors import UserError
from finetune.models import cpu
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, hardware

#: Tokens of a batch. On a CPU the activations of a layer then nearly fit into its cache.
TOKENS_ON_CPU, TOKENS_ON_ACCELERATOR = 1024, 65_536
_ROWS_WITHOUT_LENGTH = 64  # of a batch, where rows have no tokens
_TOKENIZED_AT_ONCE = 256  # texts, or windows of them
#: Tokenized rows that wait for the model, at most; a text of megabytes has more windows.
_MOST_WAITING = 2048
_LABELS = ("label", "labels", "label_ids")
#: Inputs of the model, the row of the chunk that each belongs to, and their tokens.
_Inputs = tuple[Sequence[Mapping[str, Any]], np.ndarray, Sequence[int]]
#: Logits, and the row of the chunk that each belongs to.
_Outputs = tuple[np.ndarray, np.ndarray]


class Predictor:
    """The model of a run, ready to predict; None for the default ``batch_tokens`` of the device."""

    def __init__(self, run: Run, bf16: bool, batch_tokens: int | None, cpu_kernels: str) -> None:
        self._recipe = run.recipe(scores=False)
        self._task = run.kind
        self._device = device()
        self._bf16 = bf16
        on_cpu = self._device.type == "cpu"
        self._batch_tokens = batch_tokens or (TOKENS_ON_CPU if on_cpu else TOKENS_ON_ACCELERATOR)
        # a new thread of torch starts with as many threads of its own as there are cores
        self._executor = partial(
            ThreadPoolExecutor,
            hardware.use_threads(None) if on_cpu else 1,
            initializer=partial(torch.set_num_threads, 1) if on_cpu else None,
        )
        model = self._recipe.load_model(run.path, run.labels).eval()
        self._inputs = {*inspect.signature(model.forward).parameters, *_LABELS}
        self._removes_columns = run.manifest.arguments.get("remove_unused_columns", True)
        if self._bf16:
            model.to(torch.bfloat16)
        if on_cpu and cpu_kernels == "auto":
            cpu.for_inference(model, bf16=self._bf16)
        self._model = model.to(self._device)
        self._collate = self._recipe.data_collator()

    def stream(self, chunks: Iterable[list[Any]], reads_ahead: bool) -> Iterator[np.ndarray]:
        """Yield the logits of each chunk, shape ``(rows, outputs)``, float32, in order.

        The longest rows of a chunk come first, so that memory runs out at once or never. With
        ``reads_ahead`` the next chunk is tokenized while the model computes. Rows are as the recipe
        reads them: texts, tuples of texts of several columns, or values of its ``input_column``.
        """
        # the outputs of a chunk with their rows, and more of both; without these it is complete
        waiting: deque[tuple[list[_Outputs], np.ndarray, Future[np.ndarray] | None]] = deque()
        rows_waiting = 0
        pooling = self._recipe.pooling if isinstance(self._recipe, TextRecipe) else "mean"

        def take(most: int) -> Iterator[np.ndarray]:
            nonlocal rows_waiting
            while rows_waiting > most or (waiting and waiting[0][2] is None):
                outputs, rows, logits = waiting.popleft()
                if logits is not None:
                    outputs.append((logits.result(), rows))
                    rows_waiting -= len(rows)
                elif outputs:
                    of_inputs, documents = map(np.concatenate, zip(*outputs, strict=True))
                    yield pooled(of_inputs, documents, pooling)
                else:
                    yield np.zeros((0, self._task.width), np.float32)

        with self._executor() as executor:
            try:
                for values in chunks:
                    outputs: list[_Outputs] = []
                    for inputs, rows, lengths in self._prepare(values):
                        order = np.argsort(-np.asarray(lengths), kind="stable")
                        sizes = cut(np.asarray(lengths)[order], self._batch_tokens)
                        for batch in np.split(order, np.cumsum(sizes)[:-1]):
                            logits = executor.submit(self._forward, inputs, batch)
                            waiting.append((outputs, rows[batch], logits))
                        rows_waiting += len(order)
                        yield from take(_MOST_WAITING)
                    waiting.append((outputs, np.array([], int), None))
                    yield from take(_MOST_WAITING if reads_ahead else 0)
                yield from take(0)
            finally:
                executor.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, rows: list[Any]) -> Iterator[_Inputs]:
        """Yield what the model takes of rows, some at a time, that of the longest rows first."""
        recipe = self._recipe
        if not isinstance(recipe, TextRecipe) or type(recipe).prepare is not TextRecipe.prepare:
            if rows:
                yield self._prepare_by_recipe(rows)
            return
        by_length = np.argsort([-len("".join(row)) for row in rows], kind="stable")
        texts = [rows[number] for number in by_length]
        inputs = recipe.windows.rows(texts) if recipe.windows else _encode(recipe, texts)
        while some := list(islice(inputs, _TOKENIZED_AT_ONCE)):
            numbers, tokens = zip(*some, strict=True)
            yield tokens, by_length[list(numbers)], [len(row["input_ids"]) for row in tokens]

    def _prepare_by_recipe(self, values: list[Any]) -> _Inputs:
        """Return what the model takes of rows that the recipe prepares as in training."""
        from datasets import Dataset, DatasetDict, Features, Image, List

        name = self._recipe.input_column
        features = None
        columns: dict[str, list[Any]] = {name: values}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns = {name: ["\n".join(row) for row in values], TEXTS: values}
        elif all(isinstance(value, dict) and "bytes" in value for value in values):
            features = Features({name: Image()})
        rows = Dataset.from_dict(columns, features)
        label = self._task.feature
        empty = [0] * max(0, label.length) if isinstance(label, List) else 0  # has no effect
        rows = rows.add_column("label", [empty] * len(values), feature=label)
        for number in (ROW, "id"):  # which recipes have from `load` and may remove again
            rows = rows.add_column(number, np.arange(len(values)))
        prepared = self._recipe.prepare(DatasetDict(test=rows))["test"]
        windows_of = documents_of(prepared)
        documents = np.arange(len(prepared)) if windows_of is None else windows_of
        if len(np.unique(documents)) != len(values):
            raise UserError("the recipe's prepare() leaves out rows that are to be predicted")
        if self._removes_columns:
            names = [column for column in prepared.column_names if column in self._inputs]
            prepared = prepared.select_columns(names)
        if "input_ids" in prepared.column_names:
            return prepared, documents, [len(tokens) for tokens in prepared["input_ids"]]
        length = max(1, self._batch_tokens // _ROWS_WITHOUT_LENGTH)
        return prepared, documents, [length] * len(prepared)

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


def _encode(recipe: TextRecipe, texts: list[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    encoder = recipe.encoder()
    for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
        columns = encoder(texts[start : start + _TOKENIZED_AT_ONCE])
        for number, row in enumerate(zip(*columns.values(), strict=True), start):
            yield number, dict(zip(columns, row, strict=True))


def device() -> torch.device:
    """Return the device of this process."""
    if (device := torch.accelerator.current_accelerator(check_available=True)) is None:
        return torch.device("cpu")
    return torch.device(device.type, distributed.ranks().local_rank)
