"""Predicts rows with the model of a run: sorted by length, in batches of so many tokens.

On a CPU every core takes batches of its own and computes them with one thread: cores that share
each matrix product wait for each other after every one of them. A row's logits so do not depend on
how many threads or processes there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from finetune import job, precision, threads
from finetune.cpu import allocator, attention
from finetune.cpu.packing import pack
from finetune.errors import UserError
from finetune.recipe import TextClassification
from finetune.run import Run

if TYPE_CHECKING:
    from datasets import Dataset

Advance = Callable[[int], object]
Row = Mapping[str, Any]
#: Tokens of a batch. On a CPU the activations of a layer then stay in its cache, or nearly.
TOKENS_ON_CPU, TOKENS_ON_ACCELERATOR = 1024, 65_536
_ROWS_WITHOUT_LENGTH = 64
_LABELS = ("label", "labels", "label_ids")


class Predictor:
    """The model of a run, ready to predict.

    Args:
        run: With a model.
        precision: ``fp32`` or ``bf16``; None for :func:`default_precision`.
        batch_tokens: Of a batch, padding included; None for what suits the device.
    """

    def __init__(
        self, run: Run, precision: str | None = None, batch_tokens: int | None = None
    ) -> None:
        self.recipe = run.recipe()
        self.labels = run.labels
        self.device = _device()
        self.precision = precision or default_precision(run)
        on_cpu = self.device.type == "cpu"
        self.batch_tokens = batch_tokens or (TOKENS_ON_CPU if on_cpu else TOKENS_ON_ACCELERATOR)
        self._workers = threads.use(None) if on_cpu else 1
        if on_cpu:
            allocator.keep_large_blocks()
        model = self.recipe.load_model(run.path, self.labels).eval()
        inputs = inspect.signature(model.forward).parameters
        arguments = run.manifest.get("arguments", {})
        self._kept = {*inputs, *_LABELS} if arguments.get("remove_unused_columns", True) else None
        if self.precision == "bf16":
            model.to(torch.bfloat16)
            if on_cpu:
                attention.use(model)
        if on_cpu:
            pack(model)
        self._model = model.to(self.device)
        self._collate = self.recipe.data_collator()

    @property
    def reads_text(self) -> bool:
        """Whether rows are text, whose tokens can be counted."""
        return isinstance(self.recipe, TextClassification)

    def texts(self, texts: Sequence[str], advance: Advance | None = None) -> np.ndarray:
        """Logits of texts; what occurs several times is computed once.

        Args:
            texts: Truncated to the ``max_length`` of the recipe.
            advance: Is told after each batch how many rows are done.

        Returns:
            Array of shape ``(texts, classes)``, float32, in the order of ``texts``.
        """
        recipe = self.recipe
        assert isinstance(recipe, TextClassification)
        first = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if type(recipe).prepare is TextClassification.prepare:
            encoded = recipe.processing_class()(
                list(first), truncation=True, max_length=recipe.max_length
            )
            names, columns = list(encoded), list(encoded.values())
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            lengths = [len(row) for row in encoded["input_ids"]]
            logits = self._logits(rows.__getitem__, lengths, advance)
        else:
            from datasets import Dataset

            logits = self.rows(Dataset.from_dict({"text": list(first)}), advance)
        return logits[[first[text] for text in texts]]

    def rows(self, dataset: Dataset, advance: Advance | None = None) -> np.ndarray:
        """Logits of raw rows that the recipe prepares as it does in training.

        Args:
            dataset: With the ``input_column`` of the recipe.
            advance: Is told after each batch how many rows are done.

        Returns:
            Array of shape ``(rows, classes)``, float32, in the order of ``dataset``.
        """
        from datasets import ClassLabel, DatasetDict, Value

        count = len(dataset)
        label = ClassLabel(names=self.labels) if self.labels else Value("float32")
        dataset = dataset.add_column("label", np.zeros(count, dtype=np.int64))  # of no effect
        dataset = dataset.cast_column("label", label).add_column("id", np.arange(count))
        prepared = self.recipe.prepare(DatasetDict(test=dataset))["test"]
        assert len(prepared) == count, "a recipe that drops rows as it prepares them"
        if self._kept is not None:
            names = [name for name in prepared.column_names if name in self._kept]
            prepared = prepared.select_columns(names)
        if "input_ids" in prepared.column_names:
            lengths = [len(tokens) for tokens in prepared["input_ids"]]
        else:
            lengths = [max(1, self.batch_tokens // _ROWS_WITHOUT_LENGTH)] * count
        return self._logits(prepared.__getitem__, lengths, advance)

    def _logits(
        self, row: Callable[[int], Row], lengths: Sequence[int], advance: Advance | None
    ) -> np.ndarray:
        """Of prepared rows; the longest come first, so that memory runs out at once or never."""
        order = batches(lengths, self.batch_tokens)

        def one(batch: np.ndarray) -> torch.Tensor:
            with torch.inference_mode():
                logits = self._forward([row(int(number)) for number in batch])
            if advance is not None:
                advance(len(batch))
            return logits

        try:
            if self._workers == 1:
                found = [one(batch) for batch in order]
            else:
                with ThreadPoolExecutor(self._workers, initializer=_one_thread) as pool:
                    found = list(pool.map(one, order))
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"the device has not the memory for a batch of {self.batch_tokens} tokens: give "
                f"fewer, as with --batch_tokens {max(1, self.batch_tokens // 4)}"
            ) from error
        logits = np.empty((len(lengths), found[0].shape[1]), dtype=np.float32)
        logits[np.concatenate(order)] = torch.cat(found).cpu().numpy()
        return logits

    def _forward(self, rows: list[Row]) -> torch.Tensor:
        batch = {}
        for name, value in self._collate([dict(row) for row in rows]).items():
            if name in _LABELS:
                continue
            if self.precision == "bf16" and torch.is_floating_point(value):
                value = value.to(torch.bfloat16)
            batch[name] = value.to(self.device)
        logits: torch.Tensor = self._model(**batch)["logits"]
        return logits.float().reshape(len(rows), -1)


def batches(lengths: Sequence[int], budget: int) -> list[np.ndarray]:
    """Row numbers in batches of like length, the longest first.

    Args:
        lengths: Tokens of each row.
        budget: Tokens of a batch, padding included; a longer row is a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    found, start = [], 0
    while start < len(order):
        rows = max(1, budget // max(1, lengths[order[start]]))
        found.append(order[start : start + rows])
        start += rows
    return found


def default_precision(run: Run) -> str:
    """``bf16`` for classes of texts where the device multiplies in it, ``fp32`` for all else.

    It is about three times as fast and moves probabilities by less than 0.02; a regression would
    be left with three digits.
    """
    if not run.labels or not isinstance(run.recipe(), TextClassification):
        return "fp32"
    return "bf16" if precision.native_bf16(_device().type) else "fp32"


def _device() -> torch.device:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (
        torch.device("cpu") if device is None else torch.device(device.type, job.ranks().local_rank)
    )


def _one_thread() -> None:
    torch.set_num_threads(1)
