"""Start a new last layer from a linear model of its own inputs, before a training.

Linear probing, then fine-tuning, is better than fine-tuning a random head, in and out of
distribution (Kumar et al., ICLR 2022; Tomihari and Sato, NeurIPS 2024).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from transformers import EvalPrediction, PreTrainedModel

from finetune.data import arrow, caches, digests, encoding
from finetune.data.batches import DRAWN_FROM
from finetune.models import head
from finetune.models.pretrained import FRESH_HEAD
from finetune.recipe import states
from finetune.recipe.states import States
from finetune.runtime import activity, distributed, files, hardware
from finetune.statistics import baselines
from finetune.statistics import linear as linear_models
from finetune.training import steps

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.recipe.base import Recipe
    from finetune.statistics.linear import Linear
    from finetune.tasks.base import Task
    from finetune.training.arguments import FinetuneArguments

#: The most rows that are encoded, and the most of the rows of the planned steps.
_MAX_ROWS, _MAX_SHARE = 20_000, 0.1
_STEP_ROWS = 32  # of an optimizer step, if its rows are counted in tokens
_MAX_VALIDATION_ROWS = 1_000
_VERSION = 1  # increment when the same model and rows should yield other states


def start_head(
    recipe: Recipe, model: torch.nn.Module, arguments: FinetuneArguments | None = None
) -> None:
    """Set a new last layer in place, on every process to the same weights; every process calls it.

    Nothing happens with ``--head random``, if the head is continued, or if the base
    model has random weights.
    """
    if getattr(recipe, "head", "random") != "probe" or not isinstance(model, PreTrainedModel):
        return
    if not getattr(model, FRESH_HEAD, False) or not states.is_pretrained(model):
        return
    layer = head.last_linear(model, recipe.kind.width)
    started = time.perf_counter()
    linear, facts = distributed.on_main_process(lambda: _fit(recipe, model, arguments))
    if linear is not None:
        head.set_weights(layer, linear.weight, linear.bias)
    seconds = time.perf_counter() - started
    recipe.note(f"head: {facts} ({seconds:.1f} s)")


def _fit(
    recipe: Recipe, model: PreTrainedModel, arguments: FinetuneArguments | None
) -> tuple[Linear | None, str]:
    """Return the linear model of the inputs of the last layer, and a text with its score.

    The model is None if its loss on validation rows is high: its weights fit the noise of the
    training rows then, and fine-tuning would start from that.
    """
    encoder = _Encoder(recipe, model, arguments)
    task = recipe.kind
    numbers = sample_rows(recipe, arguments)
    features = encoder.states("train", numbers).head_inputs
    targets = steps.read_labels(recipe.prepared["train"])[numbers]
    is_balanced = arguments is not None and arguments.class_sampling == "balanced"
    has_bias = head.last_linear(model, task.width).bias is not None
    linear = task.fit_linear(features, targets, recipe.weights, is_balanced, has_bias)
    count = min(len(recipe.prepared["validation"]), _MAX_VALIDATION_ROWS)
    labels = steps.read_labels(recipe.prepared["validation"])[:count]
    outputs = linear(encoder.states("validation", np.arange(count)).head_inputs)
    constant = linear(np.broadcast_to(features.mean(axis=0), (count, features.shape[1])))
    scores = recipe.compute_metrics(EvalPrediction(outputs.astype(np.float32), labels))
    name, score = next(iter(scores.items()))
    facts = (
        f"{task.linear_model} of {len(numbers):,} rows has {name} {score:.4f} on {count:,} "
        "validation rows"
    )
    if _loss(task, outputs, labels) > linear_models.LOWEST_LOSS * _loss(task, constant, labels):
        return None, f"random weights, because {facts}, little more than without inputs"
    if task.has_probabilities:
        loss = functools.partial(_loss, task, targets=targets)
        linear = linear.softened(features, loss, has_bias=has_bias)
    return linear, f"starts from {facts}; --head random has random weights"


def _loss(task: Task[Any], outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean loss of outputs, without class weights."""
    return float(task.loss(torch.tensor(outputs), torch.tensor(targets)).mean())


def frozen_baseline(
    recipe: Recipe, arguments: FinetuneArguments, note: Callable[[str], object]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the outputs for the test rows of the baseline "frozen encoder": a linear
    model of the means of the last hidden states. Nothing without a pretrained model.

    ``note`` is called with a sentence if it fails.
    """
    task = recipe.kind
    name = f"{baselines.FROZEN} + {task.linear_model}"
    try:
        model = recipe.build_model(recipe.labels)
        if not isinstance(model, PreTrainedModel) or not states.is_pretrained(model):
            return
        encoder = _Encoder(recipe, model, arguments)
        numbers = sample_rows(recipe, arguments)
        targets = steps.read_labels(recipe.prepared["train"])[numbers]
        if len(numbers) < len(recipe.prepared["train"]):
            note(f"the baseline '{name}' was fitted on {len(numbers):,} training rows")
        features = encoder.states("train", numbers).means
        linear = task.fit_linear(features, targets, None, False, True)
        outputs = encoder.outputs("test", linear)
        if task.thresholds != "none":  # as for the model
            shift = task.fit(encoder.outputs("validation", linear), recipe.targets("validation"))
            outputs = (outputs + shift).astype(outputs.dtype)
    except Exception as error:  # the run is complete without a baseline
        note(baselines.failed(name, error))
        return
    yield name, outputs


def sample_rows(recipe: Recipe, arguments: FinetuneArguments | None) -> np.ndarray:
    """Return the training rows that are encoded, sorted, shape ``(rows,)``."""
    from finetune.data.splits import draw_rows

    rows = recipe.prepared["train"]
    planned = 3 * len(rows)
    if arguments is not None and arguments.max_steps > 0:
        planned = arguments.max_steps * (arguments.global_batch_size or _STEP_ROWS)
    elif arguments is not None:
        planned = round(len(rows) * arguments.num_train_epochs)  # type: ignore[operator]
    count = min(_MAX_ROWS, len(rows), math.ceil(planned * _MAX_SHARE))
    labels = steps.read_labels(rows)
    if labels.ndim == 1 and labels.dtype.kind == "i":
        return draw_rows(labels, count, recipe.split_seed)
    return np.sort(np.random.default_rng(recipe.split_seed).permutation(len(rows))[:count])


class _Encoder:
    """Computes the states of prepared rows, and stores them in the cache.

    Args:
        recipe: The recipe, whose rows are prepared.
        model: A pretrained classifier; it is not changed.
        arguments: Those of the training; None for one on the default device.
    """

    def __init__(
        self, recipe: Recipe, model: PreTrainedModel, arguments: FinetuneArguments | None
    ) -> None:
        self._recipe = recipe
        self._model = model
        if arguments is None:
            self._device = distributed.device()
            self._bf16 = hardware.automatic_precision(self._device.type) == "bf16"
        else:
            self._device = arguments.device
            self._bf16 = arguments.bf16

    def states(self, split: str, numbers: np.ndarray) -> States:
        """Return the states of some rows of a split."""
        rows = self._recipe.prepared[split].select(numbers)
        if DRAWN_FROM in rows.column_names:  # without it the collator does not augment
            rows = rows.remove_columns(DRAWN_FROM)
        path = caches.directory(caches.STATES) / self._key(rows)
        # a file that is missing or damaged is written again
        with contextlib.suppress(OSError, ValueError, KeyError), np.load(path) as arrays:
            return States(arrays["head_inputs"], arrays["means"])
        activity.say(f"encoding {len(rows):,} {split} rows with the pretrained model")
        model = copy.deepcopy(self._model)
        width, collate = self._recipe.kind.width, self._recipe.data_collator()
        encoded = states.encode(model, width, rows, collate, device=self._device, bf16=self._bf16)
        with contextlib.suppress(OSError), files.replacing(path) as new, new.open("wb") as file:
            np.savez(file, head_inputs=encoded.head_inputs, means=encoded.means)
        return encoded

    def outputs(self, split: str, linear: Linear) -> np.ndarray:
        """Return outputs for the means of all rows of a split; of windows, the mean of a text's."""
        rows = self._recipe.prepared[split]
        outputs = linear(self.states(split, np.arange(len(rows))).means)
        documents = encoding.documents_of(rows)
        if documents is not None:
            outputs = encoding.pooled(outputs, documents, "mean")
        return outputs.astype(np.float32)

    def _key(self, rows: Dataset) -> str:
        """Return a hash of everything that decides the states."""
        kind = [_VERSION, self._bf16, self._model.config.model_type, len(rows)]
        total = xxhash.xxh3_128(repr(kind).encode())
        for name, weight in self._model.base_model.named_parameters():
            total.update(name.encode())
            total.update(weight.detach().numpy().tobytes())
        if "input_ids" in rows.column_names:
            tokens = arrow.column(rows, "input_ids").combine_chunks()
            total.update(tokens.flatten().to_numpy().tobytes())
            total.update(tokens.value_lengths().to_numpy().tobytes())
        else:
            processor: Any = self._recipe.processing_class()
            if processor is not None:
                total.update(processor.to_json_string().encode())
            total.update(b"".join(digests.hash_rows(rows, self._recipe.input_column)))
        return total.hexdigest() + ".npz"
