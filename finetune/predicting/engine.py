"""Predict rows with the model of a run, sorted by length, in batches of a fixed token budget.

On a CPU every core computes whole batches with one thread: cores that share a matrix product have
to wait for each other after each one. This also makes the logits of a row independent of the
number of threads and processes.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from finetune.data import ROW
from finetune.data.batches import cut, split
from finetune.data.digests import TEXTS
from finetune.data.encoding import Read, characters
from finetune.data.windows import Pool, documents_of
from finetune.errors import UserError
from finetune.models.cpu import kernels
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, precision, threads

if TYPE_CHECKING:
    from datasets import Dataset

#: Called after each batch with the number of rows done.
Advance = Callable[[int], object]
#: Tokens of a batch. On a CPU the activations of a layer then stay in its cache, or nearly.
TOKENS_ON_CPU, TOKENS_ON_ACCELERATOR = 1024, 65_536
_ROWS_WITHOUT_LENGTH = 64
_TOKENIZED_AT_ONCE = 256  # texts, or windows of them
#: Tokenized rows that wait for the model, at most; a text of megabytes has more windows.
_MOST_WAITING = 2048
_LABELS = ("label", "labels", "label_ids")


@dataclass(frozen=True)
class Part:
    """Some of the rows, prepared.

    Attributes:
        rows: What the model takes.
        numbers: The position of each among all rows; of a window, that of its document.
        lengths: The tokens of each.
        is_last: Whether each is the last window of its document.
    """

    rows: Sequence[Mapping[str, Any]] | Dataset
    numbers: np.ndarray
    lengths: Sequence[int]
    is_last: np.ndarray


class Predictor:
    """The model of a run, ready to predict.

    Args:
        run: A run that holds a model.
        precision: ``fp32`` or ``bf16``; None for :func:`default_precision`.
        batch_tokens: Tokens per batch, padding included; None for the default of the device.
        cpu_kernels: ``auto`` or ``off``; None for the setting of the training.

    Attributes:
        recipe: The recipe of the run.
        reads_text: Whether rows are texts, whose tokens can be counted.
    """

    def __init__(
        self,
        run: Run,
        precision: str | None = None,
        batch_tokens: int | None = None,
        cpu_kernels: str | None = None,
    ) -> None:
        self.recipe, self._task = run.recipe(scores=False), run.kind
        self.reads_text = isinstance(self.recipe, TextRecipe)
        self._device, self._bf16 = _device(), (precision or default_precision(run)) == "bf16"
        self._on_cpu = self._device.type == "cpu"
        usual = TOKENS_ON_CPU if self._on_cpu else TOKENS_ON_ACCELERATOR
        self._batch_tokens = batch_tokens or usual
        self._workers = threads.use(None) if self._on_cpu else 1
        model = self.recipe.load_model(run.path, self._task.labels).eval()
        inputs = inspect.signature(model.forward).parameters
        arguments = run.manifest.arguments
        self._kept = {*inputs, *_LABELS} if arguments.get("remove_unused_columns", True) else None
        if self._bf16:
            model.to(torch.bfloat16)
        if self._on_cpu and (cpu_kernels or arguments.get("cpu_kernels", "auto")) == "auto":
            kernels.for_inference(model, bf16=self._bf16)
        self._model = model.to(self._device)
        self._collate = self.recipe.data_collator()

    def texts(self, texts: Sequence[Read], advance: Advance = lambda done: None) -> np.ndarray:
        """Return the logits of texts; a repeated text is computed once.

        Args:
            texts: Texts, or tuples of their parts where the recipe reads several columns; truncated
                here to the ``max_length`` of the recipe, or read in windows whose logits are
                pooled, as in the training.
            advance: Called with the number of texts done.

        Returns:
            Array of shape ``(texts, classes)``, float32, in the order of ``texts``.
        """
        recipe = self.recipe
        assert isinstance(recipe, TextRecipe)
        first = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if type(recipe).prepare is TextRecipe.prepare:
            prepare = self._tokenized if recipe.long_texts == "cut" else self._in_windows
            read: list[Any] = list(first)  # texts alone, where there are windows
            logits = self._logits(prepare(read), len(first), advance)
        else:
            from datasets import Dataset

            columns: dict[str, list[Any]] = {"text": list(first)}
            if recipe.text_columns:
                columns = {"text": ["\n".join(row) for row in first], TEXTS: list(first)}
            logits = self.rows(Dataset.from_dict(columns), advance)
        return logits[[first[text] for text in texts]]

    def _tokenized(self, texts: Sequence[Read]) -> Iterator[Part]:
        """Yield the texts part by part, the longest first, so that the model need not wait."""
        assert isinstance(self.recipe, TextRecipe)
        encoder = self.recipe.encoder()
        order = np.argsort([-characters(text) for text in texts], kind="stable")
        for numbers in np.split(order, range(_TOKENIZED_AT_ONCE, len(order), _TOKENIZED_AT_ONCE)):
            encoded = encoder([texts[number] for number in numbers])
            names, columns = list(encoded), list(encoded.values())
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            lengths = [len(tokens) for tokens in encoded["input_ids"]]
            yield Part(rows, numbers, lengths, np.ones(len(rows), dtype=bool))

    def _in_windows(self, texts: Sequence[str]) -> Iterator[Part]:
        """Yield the windows of texts, those of the longest text first."""
        assert isinstance(self.recipe, TextRecipe)
        windows = self.recipe.windows
        assert windows is not None
        order = np.argsort([-len(text) for text in texts], kind="stable")
        found = windows.rows([texts[number] for number in order])
        while some := list(islice(found, _TOKENIZED_AT_ONCE)):
            numbers, rows, is_last = zip(*some, strict=True)
            lengths = [len(row["input_ids"]) for row in rows]
            yield Part(rows, order[list(numbers)], lengths, np.array(is_last))

    def rows(self, dataset: Dataset, advance: Advance = lambda done: None) -> np.ndarray:
        """Return the logits of raw rows, which the recipe prepares as in training.

        Args:
            dataset: Rows with the ``input_column`` of the recipe.
            advance: Called with the number of rows done.

        Returns:
            Array of shape ``(rows, classes)``, float32, in the order of ``dataset``.
        """
        from datasets import DatasetDict, List

        count, label = len(dataset), self._task.feature
        empty = [0] * max(0, label.length) if isinstance(label, List) else 0  # of no effect
        dataset = dataset.add_column("label", [empty] * count, feature=label)
        dataset = dataset.add_column(ROW, np.arange(count))
        prepared = self.recipe.prepare(DatasetDict(test=dataset))["test"]
        self.recipe.check_prepared(DatasetDict(test=prepared))
        documents = documents_of(prepared)
        if documents is None:
            documents = np.arange(len(prepared))
        is_last = np.append(documents[1:] != documents[:-1], True)
        assert is_last.sum() == count, "a recipe that drops rows as it prepares them"
        if self._kept is not None:
            names = [name for name in prepared.column_names if name in self._kept]
            prepared = prepared.select_columns(names)
        if "input_ids" in prepared.column_names:
            lengths = [len(tokens) for tokens in prepared["input_ids"]]
        else:
            lengths = [max(1, self._batch_tokens // _ROWS_WITHOUT_LENGTH)] * len(prepared)
        return self._logits([Part(prepared, documents, lengths, is_last)], count, advance)

    def _logits(self, parts: Iterable[Part], count: int, advance: Advance) -> np.ndarray:
        """Return the logits of ``count`` rows, longest first: memory runs out at once or never.

        Workers compute while the next part is prepared here, unless so many rows wait already.
        """
        # a thread starts with as many threads of its own as there are cores
        starting = partial(torch.set_num_threads, 1) if self._on_cpu else None
        how = self.recipe.pooling if isinstance(self.recipe, TextRecipe) else "mean"
        pooled, done, waits = Pool(count, how), 0, 0
        waiting: deque[tuple[Part, np.ndarray, Future[np.ndarray]]] = deque()

        def take() -> None:
            nonlocal done, waits
            part, batch, future = waiting.popleft()
            pooled.add(part.numbers[batch], future.result())
            waits -= len(batch)
            done += int(part.is_last[batch].sum())
            advance(done)

        with ThreadPoolExecutor(self._workers, initializer=starting) as pool:
            try:
                for part in parts:
                    for batch in batches(part.lengths, self._batch_tokens):
                        work = pool.submit(self._forward, part.rows, batch)
                        waiting.append((part, batch, work))
                        waits += len(batch)
                    while waits > _MOST_WAITING:
                        take()
                while waiting:
                    take()
            except torch.OutOfMemoryError as error:
                raise UserError(
                    f"out of memory at {self._batch_tokens:,} tokens per batch; try "
                    f"--batch_tokens {max(1, self._batch_tokens // 4)}"
                ) from error
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return pooled.outputs

    def _forward(self, rows: Any, numbers: np.ndarray) -> np.ndarray:
        """Return the logits of some rows, shape ``(numbers, classes)``."""
        batch = {}
        for name, value in self._collate([dict(rows[int(n)]) for n in numbers]).items():
            if name not in _LABELS:
                bf16 = self._bf16 and torch.is_floating_point(value)
                batch[name] = value.to(self._device, torch.bfloat16 if bf16 else value.dtype)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**batch)["logits"]
        return logits.float().reshape(len(numbers), -1).cpu().numpy()


def batches(lengths: Sequence[int], budget: int) -> list[np.ndarray]:
    """Group row numbers into batches of similar length, the longest first.

    Args:
        lengths: Tokens of each row.
        budget: Tokens per batch, padding included; a longer row is a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return split(order, cut(np.asarray(lengths)[order], budget))


def default_precision(run: Run) -> str:
    """Return ``bf16`` for text classification on devices that are faster with it, else ``fp32``.

    bf16 changes probabilities by less than 0.02, but leaves a regression with three digits.
    """
    if not run.kind.bears_bf16 or not isinstance(run.recipe(scores=False), TextRecipe):
        return "fp32"
    return "bf16" if precision.prefers_bf16(_device().type) else "fp32"


def _device() -> torch.device:
    if (device := torch.accelerator.current_accelerator(check_available=True)) is None:
        return torch.device("cpu")
    return torch.device(device.type, distributed.ranks().local_rank)
