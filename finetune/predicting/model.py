"""The model of a run as torch computes it: rows prepared by the recipe, logits of batches.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, Image, List

from finetune.data import ROW, words
from finetune.data.digests import TEXTS
from finetune.data.encoding import documents_of, to_rows
from finetune.data.lengths import default_budget
from finetune.errors import UserError
from finetune.models import cpu
from finetune.predicting.inference import Batch, Encoded, Inference, Session, Submission
from finetune.predicting.request import STANDARD_INPUT, Request, read_lines
from finetune.recipe import TextRecipe, TokenRecipe
from finetune.runtime import distributed, hardware

_ROWS_WITHOUT_LENGTH = 64  # of a batch, where rows have no tokens
_LABELS = ("label", "labels", "label_ids")


class TorchSession(Session):
    """Computes the logits of batches with torch.

    Args:
        model: In evaluation mode; it is changed.
        bf16: Whether to compute in bf16, else in fp32.
        cpu_kernels: ``auto`` for the kernels of :mod:`finetune.models.cpu` on a CPU, or ``off``.

    Attributes:
        inputs: The names of the inputs of the model.
    """

    def __init__(
        self, model: torch.nn.Module, *, bf16: bool = False, cpu_kernels: str | None = "off"
    ) -> None:
        self.inputs = inspect.signature(model.forward).parameters
        self._device = distributed.device()
        self._bf16 = bf16
        if bf16:
            model.to(torch.bfloat16)
        if cpu_kernels == "auto" and self._device.type == "cpu":
            cpu.for_inference(model, bf16=bf16)
        self._model = model.to(self._device)

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, float32, shape ``(inputs, outputs)``."""
        tensors = {}
        for name, values in batch.items():
            tensor = torch.as_tensor(values)
            if self._bf16 and tensor.is_floating_point():
                tensor = tensor.bfloat16()
            tensors[name] = tensor.to(self._device)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**tensors)["logits"]
        return logits.float().reshape(len(logits), -1).cpu().numpy()


class RecipeInference(Inference):
    """Predicts the rows of a request, prepared as the recipe of its run does in training.

    Unless the request has a session, the model is loaded with torch.
    """

    def __init__(self, request: Request) -> None:
        options, session = request.options, request.session
        if session is None:
            is_bf16 = options.precision == "bf16"
            kernels = options.cpu_kernels
            session = TorchSession(request.run.model(), bf16=is_bf16, cpu_kernels=kernels)
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
        self._request = request
        self._names = {*session.inputs, *_LABELS}
        self._collator = request.recipe.data_collator()
        self.width = request.task.width
        self.pooling = "mean"
        if isinstance(request.recipe, TextRecipe):
            self.pooling = request.recipe.pooling

    def _encode(self, values: list[Any]) -> Encoded:
        recipe = self._request.recipe
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
        if self._request.run.manifest.arguments.get("remove_unused_columns", True):
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
        if isinstance(self._request.recipe, TokenRecipe):
            return self._request.recipe.unlabelled(values)
        name = self._request.recipe.input_column
        numbers = np.arange(len(values))
        # recipes have the numbers from `load` and may remove them again
        columns: dict[str, Any] = {name: values, ROW: numbers, "id": numbers}
        if isinstance(values[0], tuple):  # the texts of several columns
            columns |= {name: list(map("\n".join, values)), TEXTS: values}
        rows = Dataset.from_dict(columns)
        if isinstance(values[0], dict) and "bytes" in values[0]:
            rows = rows.cast_column(name, Image())
        feature = self._request.task.feature
        label: Any = 0
        if isinstance(feature, List):
            label = [0] * max(0, feature.length)
        return rows.add_column("label", [label] * len(values), feature=feature)


class WordInference(RecipeInference):
    """Predicts the words of the rows of a request, each in one window of its text."""

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


def predict_chunks(request: Request, numbers: Iterable[int]) -> Iterator[tuple[int, Any, pa.Table]]:
    """Yield number and rows of chunks, and the columns that are added to them.

    Args:
        request: With the rows of its input.
        numbers: Those of the chunks. All lines of the standard input are predicted.

    Raises:
        UserError: If memory runs out, or if a row cannot be predicted.
    """
    cls = WordInference if request.task.labels_words else RecipeInference
    inference = cls(request)
    chunks: Iterable[Any] = ((number, request.chunk(number)) for number in numbers)
    if request.kind == STANDARD_INPUT:
        chunks = enumerate(read_lines(request.rows))

    def submit(number: int, chunk: Any) -> tuple[int, Any, list[Any], Submission]:
        values = request.values(number, chunk)
        return number, chunk, values, inference.submit(values)

    submitted: Iterable[Any] = (submit(number, chunk) for number, chunk in chunks)
    if request.kind != STANDARD_INPUT:  # a line is answered at once
        # the next chunk is read while this one is computed
        submitted = (chunk for chunk, _ in pairwise(chain(submitted, [None])))
    try:
        for number, chunk, values, submission in submitted:
            yield number, chunk, request.added_columns(inference.logits(submission), values)
    except (MemoryError, torch.OutOfMemoryError) as error:
        tokens = inference.batch_tokens
        hint = f"try --batch_tokens {max(1, tokens // 4)}"
        raise UserError(f"out of memory at {tokens:,} tokens per batch; {hint}") from error
    finally:
        inference.close()
