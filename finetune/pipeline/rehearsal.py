"""What a training would take, from a few of its steps: time, memory and disk."""

from __future__ import annotations

import gc
import math
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from finetune.config.settings import Settings
from finetune.data import arrow, batches
from finetune.errors import Finding, RunError, Severity, counted
from finetune.recipe import Recipe, TextRecipe

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.training.arguments import FinetuneArguments
    from finetune.training.rehearsal import Rehearsed

#: Rows of a step that are timed on a CPU, where time is in proportion to them; of more in a step
#: as many.
_MOST_ROWS = 64
#: How many texts with the most characters are tokenized to find those with the most tokens.
_CANDIDATES = 4
#: The share of the memory of a device from which on a training may be ended by the system.
_NEARLY_ALL = 0.9
_NAME = "cost"


def findings(chosen: Settings) -> list[Finding]:
    """Return what the training takes in this process; nothing is kept of it.

    Args:
        chosen: The settings, whose data is loaded.

    Raises:
        UserError: what training would refuse, once the model is loaded.
    """
    recipe, values = chosen.recipe, chosen.values
    by_windows = isinstance(recipe, TextRecipe) and recipe.long_texts == "windows"
    if values.max_tokens_per_batch or by_windows:
        flag = "--max_tokens_per_batch" if values.max_tokens_per_batch else "--long_texts windows"
        message = f"{flag}: the lengths of all texts decide how many steps there are, so that time "
        message += "and memory are not estimated"
        return [Finding(name=_NAME, severity="info", message=message)]
    arguments = chosen.arguments
    rows = recipe.splits["train"]
    micro = min(len(rows), _rows_of_micro_batch(arguments))
    timed = min(micro, _MOST_ROWS) if arguments.device.type == "cpu" else micro
    try:
        measured, model = _rehearsed(chosen, timed, micro)
    except RunError as error:
        return [Finding(name="out_of_memory", severity="error", message=str(error))]
    return [_cost(chosen, arguments, measured, model, timed, micro)]


def _rows_of_micro_batch(arguments: FinetuneArguments) -> int:
    assert arguments.global_batch_size is not None
    return arguments.global_batch_size // arguments.gradient_accumulation_steps


def _rehearsed(chosen: Settings, timed: int, micro: int) -> tuple[Rehearsed, Any]:
    """Train a few steps of so many rows, and return what was measured, and the model."""
    from finetune.training import rehearsal
    from finetune.training.defaults import argument_values
    from finetune.training.trainer import build_trainer

    recipe, count = chosen.recipe, 1 + rehearsal.TIMED
    rows = recipe.splits["train"]
    drawn = np.random.default_rng(0).permutation(len(rows))
    few = recipe.over(rows.select(np.resize(drawn, count * timed)))
    longest = _longest(recipe, micro)
    with tempfile.TemporaryDirectory() as directory:
        given = {
            **chosen.training,
            "output_dir": directory,
            "max_steps": count,
            "global_batch_size": timed,
            "per_device_train_batch_size": None,
            "gradient_accumulation_steps": 1,
            "train_sampling_strategy": "random",
            "class_sampling": "none",
            "eval_strategy": "no",
            "save_strategy": "no",
            "logging_strategy": "no",
            "load_best_model_at_end": False,
            "early_stopping_patience": None,
            "report_to": "none",
            "profile": None,
            "resume": False,
            "resume_from_checkpoint": None,
        }
        trainer = build_trainer(
            few.trainer_kwargs,
            argument_values(few.training_defaults(given), given).build(),
            few.adapt,
        )
        measured, model = rehearsal.rehearse(trainer, longest), trainer.model
        del trainer
        gc.collect()
    return measured, model


def _longest(recipe: Recipe, many: int) -> Dataset:
    """Return the prepared training rows with the most tokens, as far as characters tell."""
    rows = recipe.splits["train"]
    if not isinstance(recipe, TextRecipe):
        return recipe.over(rows.select(range(many))).prepared["train"]
    lengths_of_batches = [pc.utf8_length(texts).to_numpy() for texts in arrow.batches(rows, "text")]
    characters = np.concatenate(lengths_of_batches)
    most = np.argsort(-characters, kind="stable")[: _CANDIDATES * many]
    prepared = recipe.over(rows.select(np.sort(most))).prepared["train"]
    lengths = batches.lengths_of(prepared, "length")
    if lengths is None:
        return prepared.select(range(many))
    return prepared.select(np.argsort(-lengths, kind="stable")[:many])


def _cost(
    chosen: Settings,
    arguments: FinetuneArguments,
    measured: Rehearsed,
    model: Any,
    timed: int,
    micro: int,
) -> Finding:
    from finetune.pipeline import provenance
    from finetune.training import disk, memory, rehearsal

    splits, values = chosen.recipe.splits, chosen.values
    any_order = type(values)(**{**vars(values), "train_sampling_strategy": "random"})
    steps = provenance.steps(any_order, splits["train"])
    assert arguments.global_batch_size is not None
    step = measured.step * arguments.global_batch_size / timed
    epochs = steps * arguments.global_batch_size / len(splits["train"])
    evaluated = len(splits["test"]) + _evaluations(arguments, steps, epochs) * len(
        splits["validation"]
    )
    seconds = steps * step + evaluated * measured.forward
    needed = disk.checkpoints_at_once(arguments, steps, epochs)
    size = disk.weight_bytes(model) + needed * disk.checkpoint_bytes(model, arguments)
    there = memory.available(arguments.device)
    severity: Severity = "warning" if measured.memory > _NEARLY_ALL * there else "info"
    where = memory.place(arguments.device)
    return Finding(
        name=_NAME,
        severity=severity,
        message=f"about {_duration(seconds)} in one process on {where} "
        f"({counted(steps, 'step')} of {step:.2g} s, from {rehearsal.TIMED} timed ones, and the "
        f"evaluations), {memory.shown(measured.memory)} of {memory.shown(there)} of memory "
        f"(forward and backward pass over the {counted(micro, 'longest row')}), "
        f"{disk.shown(size)} of disk ({counted(needed, 'checkpoint')} at once, and the model)",
        fix="--gradient_accumulation_steps 2 (the same global batch), or --precision bf16"
        if severity == "warning"
        else "",
    )


def _evaluations(arguments: FinetuneArguments, steps: int, epochs: float) -> int:
    """Return how often the validation rows are predicted."""
    strategy = getattr(arguments.eval_strategy, "value", arguments.eval_strategy)
    if strategy == "epoch":
        return math.ceil(epochs)
    if strategy == "steps":
        every = arguments.eval_steps or 1
        return math.ceil(steps / (every if every >= 1 else max(1, math.ceil(steps * every))))
    return 1


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
