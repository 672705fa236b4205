"""Start a new last layer from a linear model of its own inputs, before a training.

Linear probing, then fine-tuning, is better than fine-tuning a random head, in and out of
distribution (Kumar et al., ICLR 2022; Tomihari and Sato, NeurIPS 2024).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from transformers import EvalPrediction, PreTrainedModel

from finetune.data import caches, digests, encoding, words
from finetune.data.batches import DRAWN_FROM
from finetune.models import families, head
from finetune.models.pretrained import FRESH_HEAD, is_pretrained
from finetune.recipe import states
from finetune.recipe.states import States
from finetune.runtime import activity, distributed, files, hardware
from finetune.statistics import baselines
from finetune.statistics.linear import LOSS_SHARE, Linear
from finetune.tasks.losses import class_weights
from finetune.training import steps
from finetune.training.callbacks import explained

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.recipe.base import Recipe
    from finetune.tasks.base import Task
    from finetune.training.arguments import FinetuneArguments

#: The most rows that are encoded, and the most of the rows of the planned steps.
_MAX_ROWS, _MAX_SHARE = 20_000, 0.1
_MAX_WORDS = 50_000  # that are labelled in them, about
_STEP_ROWS = 32  # of an optimizer step, if its rows are counted in tokens
_MAX_VALIDATION_ROWS = 1_000
#: The least distance of inputs from their mean, as a share of their length. Of MiniLM it is 0.55;
#: with one of its layers 0.003, where the weights of a regression, and so the gradients of the
#: layer below, are 200 times as large as usual.
_MIN_SPREAD = 0.01
#: Attribute of a model: the linear model that its head was started with.
_REGRESSION = "_regression_of_head"
NOTE = "head: "  # what notes about the start of a head begin with
_LESS_MEMORY = "--head random, a smaller --max_length, or --precision bf16"
_VERSION = 2  # increment when the same model and rows should yield other states


def start_head(
    recipe: Recipe, model: torch.nn.Module, arguments: FinetuneArguments | None = None
) -> None:
    """Set a new last layer in place, on every process to the same weights; every process calls it.

    Nothing happens with ``--head random``, if the head is continued, or if the base
    model has random weights.

    Args:
        recipe: The recipe, with prepared rows.
        model: The model, which was made by ``recipe.new_model()``.
        arguments: Those of the training; None for one on the default device.
    """
    if recipe.initial_head == "random" or not getattr(model, FRESH_HEAD, False):
        return
    started = time.perf_counter()
    used = arguments or _default_arguments(model)

    def fit() -> tuple[Linear | None, str]:
        with explained(used, "encoding rows for the head", _LESS_MEMORY):
            return _fit(recipe, model, used)

    linear, note = distributed.on_main_process(fit)
    if linear is not None:
        weights = {"weight": torch.tensor(linear.weight), "bias": torch.tensor(linear.bias)}
        # a layer without a bias ignores it
        head.last_linear(model, recipe.resolved_task.width).load_state_dict(weights, strict=False)
        setattr(model, _REGRESSION, linear)
    if note:
        recipe.note(f"{NOTE}{note} ({time.perf_counter() - started:.1f} s)")


def _default_arguments(model: Any) -> Any:
    """Return what is read of training arguments, for a training on the default device."""
    device = distributed.device()
    bf16 = hardware.automatic_precision(device.type) == "bf16"
    return SimpleNamespace(
        device=device,
        bf16=bf16 and model.config.model_type not in families.OVERFLOWING,
        cpu_kernels="auto",
        class_sampling="none",
        max_steps=-1,
        num_train_epochs=3.0,
        output_dir=".",
    )


def _fit(
    recipe: Recipe, model: torch.nn.Module, arguments: FinetuneArguments
) -> tuple[Linear | None, str]:
    """Return the linear model of the inputs of the last layer, and a note with its score.

    The model is None if its loss on validation rows is high: its weights fit the noise of the
    training rows then, and fine-tuning would start from that. It is also None if its inputs hardly
    differ by row, because its weights would be very large.
    """
    if not is_pretrained(model):
        return None, ""
    encoder = _Encoder(recipe, model, arguments)
    task = recipe.resolved_task
    numbers = _sample_rows(recipe, arguments)
    encoded = encoder.states("train", numbers)
    if encoded is None:
        reason = "adds something to the outputs of its last layer"
        return None, f"random weights, because {type(model).__name__} {reason}"
    features = encoded.head_inputs
    if _hardly_differ(features):
        return None, "random weights, because the inputs of the last layer hardly differ by row"
    targets = _read_targets(recipe, "train", numbers)
    weights = _class_weights(recipe, arguments, targets)
    has_bias = head.last_linear(model, task.width).bias is not None
    fit = functools.partial(
        task.fit_linear, targets=targets, class_weights=weights, has_bias=has_bias
    )
    linear = fit(features)
    validation_rows = _draw(recipe, "validation", _MAX_VALIDATION_ROWS)
    validation = encoder.states("validation", validation_rows)
    assert validation is not None  # as the training rows have them
    labels = _read_targets(recipe, "validation", validation_rows)
    constant = fit(np.zeros((len(targets), 1), np.float32)).bias
    outputs = linear(validation.head_inputs)
    loss = _loss(task, outputs, labels)
    constant_loss = _loss(task, np.tile(constant, (len(labels), 1)), labels)
    name = f"{task.linear_model} of {len(numbers):,} rows"
    if weights is not None and task.label_kind == "labels" and name.startswith("ridge"):
        name += " without class weights"
    reads_mean = recipe.initial_head == "mean"
    if loss > LOSS_SHARE * constant_loss and not reads_mean:
        losses = f"its validation loss is {loss:.3g}, and {constant_loss:.3g} without inputs"
        return None, f"random weights, because {name} predicts little: {losses}"
    if task.has_probabilities and not reads_mean:
        training_loss = functools.partial(_loss, task, targets=targets)
        linear = linear.scaled_down(features, constant, training_loss)
    rows = recipe.prepared["validation"].select(validation_rows)
    documents = encoding.documents_of(rows)
    count = len(rows)
    outputs = linear(validation.head_inputs).astype(np.float32)
    outputs = _by_document(recipe, rows, outputs, getattr(recipe, "pooling", "mean"))
    if recipe.labels_words:
        labels = words.labels_of(rows)
    if documents is not None:
        first = np.unique(documents, return_index=True)[1]
        count = len(first)
        if not recipe.labels_words:
            labels = labels[first]
    # as in the evaluations of the training
    scores = recipe.compute_metrics(EvalPrediction(task.shifted(outputs, labels), labels))
    score, value = next(iter(scores.items()), ("loss", loss))
    other = "--head random starts from random weights"
    if reads_mean:
        name = f"one more layer returns the mean of the last states, and {name}"
        other = "--head probe reads the first state, without this layer"
    return linear, f"{name}, {score} {value:.4f} on {count:,} validation rows; {other}"


def add_validation_rows(
    recipe: Recipe, model: torch.nn.Module, arguments: FinetuneArguments
) -> None:
    """Add to a last layer that reads the mean what its start lacks: the linear model of training
    and validation rows, minus that of the training rows. What the training changed stays.

    In place, on every process to the same weights; every process calls it. Nothing happens with
    other heads, for numbers, and where :func:`start_head` left the head random.

    Args:
        recipe: The recipe, with prepared rows.
        model: The model that was trained on the training rows.
        arguments: Those of the training.
    """
    task = recipe.resolved_task
    if recipe.initial_head != "mean" or not task.has_probabilities:
        return

    def regress(features: np.ndarray, targets: np.ndarray) -> Linear:
        weights = _class_weights(recipe, arguments, targets)
        return task.fit_linear(features, targets, weights, has_bias=True)

    def fit() -> tuple[np.ndarray, np.ndarray] | None:
        torch.manual_seed(arguments.seed)  # as the training did: the same states are cached
        base: Any = recipe.new_model()
        encoder = _Encoder(recipe, base, arguments)
        numbers = {
            "train": _sample_rows(recipe, arguments),
            "validation": np.arange(len(recipe.prepared["validation"])),
        }
        features, targets = [], []
        for split, rows in numbers.items():
            encoded = encoder.states(split, rows)
            assert encoded is not None  # as at the start
            features.append(encoded.head_inputs)
            targets.append(_read_targets(recipe, split, rows))
        if _hardly_differ(features[0]):
            return None
        # a resumed training did not start the head
        before = getattr(model, _REGRESSION, None) or regress(features[0], targets[0])
        after = regress(np.concatenate(features), np.concatenate(targets))
        return after.weight - before.weight, after.bias - before.bias

    with explained(arguments, "encoding rows for the head", _LESS_MEMORY):
        changes = distributed.on_main_process(fit)
    if changes is None:
        return
    layer = head.last_linear(model, task.width)
    with torch.no_grad():
        for weights, change in zip((layer.weight, layer.bias), changes, strict=True):
            weights += torch.as_tensor(change, dtype=weights.dtype, device=weights.device)


def _hardly_differ(features: np.ndarray) -> bool:
    """Return whether a linear model of features would have very large weights."""
    spread = np.linalg.norm(features - features.mean(axis=0))
    # without what is added to all of them, such as the bias before a ReLU
    length = np.linalg.norm(features - features.mean())
    return bool(spread <= _MIN_SPREAD * length)


def _class_weights(
    recipe: Recipe, arguments: FinetuneArguments, targets: np.ndarray
) -> np.ndarray | None:
    """Return the weights that a linear model of some training rows is fitted with."""
    if arguments.class_sampling == "balanced":
        return class_weights("balanced", recipe.labels, targets)
    return recipe.weights


def _loss(task: Task[Any], outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of the default loss of a task, without class weights."""
    plain = dataclasses.replace(task, loss_function="")
    return float(plain.loss(torch.tensor(outputs), torch.tensor(targets)).mean())


def frozen_baseline(
    recipe: Recipe, arguments: FinetuneArguments, note: Callable[[str], object]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the outputs for the test rows of the baseline "frozen encoder": a linear
    model of the means of the last hidden states. Nothing without a pretrained model.

    Args:
        recipe: The recipe, with prepared rows.
        arguments: Those of the training.
        note: Called with a sentence if it fails.

    Yields:
        The outputs have shape ``(test rows, outputs)``.
    """
    task = recipe.resolved_task
    if not task.linear_model:
        return
    name = f"{baselines.FROZEN} + {task.linear_model}"
    try:
        torch.manual_seed(arguments.seed)  # as the training did: the same states may be cached
        # without a layer for the mean
        model = recipe.with_values(initial_head="probe").new_model()
        if not is_pretrained(model):
            return
        encoder = _Encoder(recipe, model, arguments)
        numbers = _sample_rows(recipe, arguments)
        if len(numbers) < len(recipe.prepared["train"]):
            name += f" ({len(numbers):,} rows)"
        encoded = encoder.states("train", numbers)
        if encoded is None:
            return
        targets = _read_targets(recipe, "train", numbers)
        linear = task.fit_linear(encoded.means, targets, None, has_bias=True)
        outputs = encoder.outputs("test", linear)
        if task.thresholds != "none":  # as for the model
            shift = task.fit(encoder.outputs("validation", linear), recipe.targets("validation"))
            outputs = (outputs + shift).astype(outputs.dtype)
    except Exception as error:  # the run is complete without a baseline
        note(baselines.failed(name, error))
        return
    yield name, outputs


def _sample_rows(recipe: Recipe, arguments: FinetuneArguments) -> np.ndarray:
    """Return the training rows that are encoded, sorted, shape ``(rows,)``."""
    if recipe.initial_head == "mean":  # which the training changes little
        return _draw(recipe, "train", _MAX_ROWS)
    epochs: Any = arguments.num_train_epochs
    planned = round(len(recipe.training_rows) * epochs)
    if arguments.max_steps > 0:
        planned = arguments.max_steps * (arguments.global_batch_size or _STEP_ROWS)
    most = _MAX_ROWS
    if recipe.labels_words:
        most = math.ceil(_MAX_WORDS / words.count_labelled(recipe.prepared["train"], ()).mean())
    return _draw(recipe, "train", min(most, math.ceil(planned * _MAX_SHARE)))


def _draw(recipe: Recipe, split: str, count: int) -> np.ndarray:
    """Return at most ``count`` row numbers of a split, sorted, classes in proportion."""
    from finetune.data.splits import draw_rows

    rows = recipe.prepared[split]
    count = min(count, len(rows))
    if recipe.resolved_task.label_kind == "classes":
        return draw_rows(steps.read_labels(rows), count, recipe.split_seed)
    return np.sort(np.random.default_rng(recipe.split_seed).permutation(len(rows))[:count])


def _read_targets(recipe: Recipe, split: str, numbers: np.ndarray) -> np.ndarray:
    """Return the targets of some prepared rows of a split, or those of the words in them."""
    if recipe.labels_words:
        return words.tags_of(recipe.prepared[split].select(numbers))
    return np.asarray(steps.read_labels(recipe.prepared[split])[numbers])


def _by_document(recipe: Recipe, rows: Dataset, outputs: np.ndarray, pooling: str) -> np.ndarray:
    """Return outputs for prepared rows as an evaluation has them, see ``Task.scored``.

    Args:
        recipe: The recipe.
        rows: The prepared rows, in the order of their documents.
        outputs: Of each row, or of each of their labelled words.
        pooling: Of the windows of a text.
    """
    documents = encoding.documents_of(rows)
    if recipe.labels_words:
        is_word = words.labels_of(rows) != words.UNLABELLED
        places = np.zeros((len(is_word), outputs.shape[1]), np.float32)
        places[is_word] = outputs
        return places
    if documents is None:
        return outputs.astype(np.float32)
    return encoding.pooled(outputs, documents, pooling)


class _Encoder:
    """Computes the states of prepared rows, and stores them in the cache.

    Args:
        recipe: The recipe, whose rows are prepared.
        model: A pretrained classifier; it is not changed.
        arguments: Those of the training.
    """

    def __init__(
        self, recipe: Recipe, model: PreTrainedModel, arguments: FinetuneArguments
    ) -> None:
        self._recipe = recipe
        self._model = model
        self._options: dict[str, Any] = {
            "device": arguments.device,
            "bf16": arguments.bf16,
            "use_kernels": arguments.cpu_kernels == "auto",
        }

    def states(self, split: str, numbers: np.ndarray) -> States | None:
        """Return the states of some rows of a split; None if the model is not one of one head."""
        rows = self._recipe.prepared[split].select(numbers)
        if DRAWN_FROM in rows.column_names:  # without it the collator does not augment
            rows = rows.remove_columns(DRAWN_FROM)
        if "input_ids" in rows.column_names:  # as Trainer does
            names = {*inspect.signature(self._model.forward).parameters, "length"}
            rows = rows.select_columns([name for name in rows.column_names if name in names])
        path = caches.directory("finetune-states") / self._key(rows)
        has_own_collator = not type(self._recipe).data_collator.__module__.startswith("finetune.")
        if has_own_collator:  # whose changes the key would not notice
            path.unlink(missing_ok=True)
        # a file that is missing or damaged is written again
        with contextlib.suppress(OSError, ValueError, KeyError), np.load(path) as arrays:
            return States(arrays["head_inputs"], arrays["means"])
        activity.say(f"encoding {len(rows):,} {split} rows with the pretrained model")
        encoded = states.encode(
            copy.deepcopy(self._model),
            self._recipe.resolved_task.width,
            rows,
            self._recipe.data_collator(),
            labels_words=self._recipe.labels_words,
            **self._options,
        )
        if encoded is not None:
            with contextlib.suppress(OSError), files.replacing(path) as new, new.open("wb") as file:
                np.savez(file, head_inputs=encoded.head_inputs, means=encoded.means)
        return encoded

    def outputs(self, split: str, linear: Linear) -> np.ndarray:
        """Return outputs for the means of all rows of a split, or for all of their words; of
        windows, the mean of a text's.
        """
        rows = self._recipe.prepared[split]
        encoded = self.states(split, np.arange(len(rows)))
        assert encoded is not None  # as the training rows have them
        return _by_document(self._recipe, rows, linear(encoded.means), "mean")

    def _key(self, rows: Dataset) -> str:
        """Return a hash of everything that decides the states, but for a recipe's own collator."""
        model = self._model
        facts = [_VERSION, self._options, type(model).__name__, model.config.to_json_string()]
        processor: Any = self._recipe.processing_class()
        facts += [getattr(processor, "padding_side", None), rows.column_names]
        if self._recipe.labels_words:
            is_labelled = [[tag != words.UNLABELLED for tag in row] for row in rows["labels"][:]]
            facts.append(is_labelled)
        total = xxhash.xxh3_128(repr(facts).encode())
        last = head.last_linear(model, self._recipe.resolved_task.width)
        new = {id(weight) for weight in last.parameters()}
        for name, weight in model.state_dict(keep_vars=True).items():
            if id(weight) not in new:  # the last layer, which is removed
                total.update(name.encode())
                total.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        if "input_ids" not in rows.column_names and processor is not None:
            total.update(processor.to_json_string().encode())
        for column in rows.column_names:
            if not column.startswith("label"):
                total.update(b"".join(digests.hash_rows(rows, column)))
        return total.hexdigest() + ".npz"
