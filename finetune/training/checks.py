"""Refuse training arguments that are invalid, alone or in combination.

The check precedes building them: ``TrainingArguments`` joins the process group, and rank 0 checks
before there is one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from numbers import Real
from typing import Any

import torch
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from finetune.errors import UserError, counted, suggestion
from finetune.models import cpu
from finetune.runtime import distributed, precision

#: Arguments that count something, and its unit.
_COUNTS = {
    "save_every": " epochs",
    "save_total_limit": " checkpoints",
    "per_device_train_batch_size": " rows",
    "per_device_eval_batch_size": " rows",
    "global_batch_size": " rows",
    "max_tokens_per_batch": " tokens",
    "num_threads": "",
    "profile": " steps",
    "gradient_accumulation_steps": "",
    "eval_accumulation_steps": "",
    "torch_empty_cache_steps": "",
    "dataloader_prefetch_factor": " batches",
    "early_stopping_patience": " evaluations",
    "ddp_timeout": " seconds",
}
_NOT_NEGATIVE = (
    *("learning_rate", "weight_decay", "max_grad_norm", "adam_epsilon", "warmup_steps"),
    *("grace_seconds", "eval_delay", "dataloader_num_workers", "neftune_noise_alpha"),
)
_BELOW_ONE = ("label_smoothing_factor", "adam_beta1", "adam_beta2")
_SEEDS = ("seed", "data_seed")
_LARGEST_SEED = 2**32 - 1  # of NumPy
#: A number of steps, or a fraction of all of them.
_STEPS = ("logging_steps", "eval_steps", "save_steps")
#: Arguments by which a run would not be what this toolkit promises, and why.
_REFUSED = {
    "dataloader_drop_last": "would also drop evaluation rows; training always drops an incomplete "
    "last batch",
    "auto_find_batch_size": "changes the global batch, on each process for itself; use "
    "--gradient_accumulation_steps, which does not",
    "ignore_data_skip": "a resumed epoch would train on rows that it has seen; leave it out",
    "prediction_loss_only": "the metrics and the report need the outputs of all rows",
    "batch_eval_metrics": "the metrics and the report need the outputs of all rows",
}
#: What is in the name of an optimizer, and the package that it needs.
_OPTIMIZERS = {
    **dict.fromkeys(("galore", "apollo"), "{}-torch"),
    **dict.fromkeys(("adamw_torch_4bit", "adamw_torch_8bit"), "torchao"),
    **dict.fromkeys(("_8bit", "_bnb", "paged_", "lion_", "ademamix"), "bitsandbytes"),
    **{"lomo": "lomo-optim", "grokadamw": "grokadamw", "schedule_free": "schedulefree"},
}


def refuse(values: Any) -> None:
    """Refuse training arguments that contradict each other or the machine, all at once.

    Args:
        values: Training arguments, or their values before they are built.

    Raises:
        UserError: One line for each mistake.
    """
    mistakes = [f"--{name}: {reason}" for name, reason in _REFUSED.items() if getattr(values, name)]
    mistakes += [*_find_launch_mistakes(values), *_find_numbers_out_of_range(values)]
    mistakes += [*_find_contradictions(values), *_find_missing_packages(values)]
    for name, choices in (
        ("precision", precision.CHOICES),
        ("cpu_kernels", cpu.CHOICES),
        ("class_sampling", ("none", "balanced")),
    ):
        if (value := getattr(values, name)) not in choices:
            mistakes.append(
                f"--{name} {value}: expected {', '.join(choices[:-1])} or {choices[-1]}"
                f"{suggestion(value, choices)}"
            )
    if mistakes:
        raise UserError(*mistakes)


def shards(values: Any) -> bool:
    """Return whether FSDP is asked for, here or in the accelerate config."""
    return bool(values.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def _find_launch_mistakes(values: Any) -> list[str]:
    mistakes = []
    if values.grace_seconds > 25 and "TORCHELASTIC_RUN_ID" in os.environ:
        mistakes.append(
            f"--grace_seconds {values.grace_seconds:g}: torchrun ends its processes after 30 "
            "seconds; expected 25 or less"
        )
    ranks, gpus = distributed.ranks(), torch.accelerator.device_count()
    if ranks.world_size > 1 and not values.use_cpu and ranks.local_world_size > gpus:
        mistakes.append(
            f"{ranks.local_world_size} processes on a machine with {counted(gpus, 'GPU')}: "
            f"each needs its own; use --nproc_per_node={gpus} or --use_cpu"
        )
    if shards(values) and values.use_cpu:
        flag = "--fsdp" if values.fsdp else "FSDP in the accelerate config"
        mistakes.append(
            f"{flag}: the library shards on accelerators only, and would run DDP on this "
            "CPU; leave it out"
        )
    if shards(values) and values.save_on_each_node:
        mistakes.append(
            "--save_on_each_node: FSDP gathers the whole model on rank 0 only; use an "
            "--output_dir that the machines share instead"
        )
    fp16 = "--fp16" if values.fp16 else "--precision fp16" if values.precision == "fp16" else ""
    if fp16 and not values.bf16 and distributed.device_type(values.use_cpu) == "cpu":
        mistakes.append(f"{fp16}: not supported on a CPU; expected bf16 or fp32")
    for flag in ("bf16", "fp16"):
        if getattr(values, flag) and values.precision not in ("auto", flag):
            mistakes.append(
                f"--precision {values.precision} and --{flag} are mutually exclusive: give one"
            )
    return mistakes


def _find_contradictions(values: Any) -> list[str]:
    mistakes = []
    if values.train_sampling_strategy == "batch_rebalance":
        mistakes.append(
            "--train_sampling_strategy batch_rebalance: the steps would depend on the number "
            "of processes; expected random, sequential or group_by_length"
        )
    if "labels" not in (values.label_names or ["labels"]):
        mistakes.append("--label_names: the labels of a recipe are in the column 'labels'")
    save_strategy = getattr(values.save_strategy, "value", values.save_strategy)
    if values.save_every > 1 and save_strategy != "epoch":
        mistakes.append("--save_every counts epochs: it needs --save_strategy epoch")
    # what the library will decide once it looks at its own arguments
    compiles = values.torch_compile or values.torch_compile_backend or values.torch_compile_mode
    if values.max_tokens_per_batch and compiles:
        mistakes.append(
            "--max_tokens_per_batch with --torch_compile: every step would have another shape "
            "and be recompiled; use --global_batch_size instead"
        )
    if values.max_tokens_per_batch and values.train_sampling_strategy != "group_by_length":
        mistakes.append(
            "--max_tokens_per_batch batches rows of similar length: it needs "
            "--train_sampling_strategy group_by_length, and rows with a length"
        )
    if values.class_sampling == "balanced" and values.max_tokens_per_batch:
        mistakes.append(
            "--class_sampling balanced with --max_tokens_per_batch: other rows in each epoch would "
            "make another number of steps; use --global_batch_size instead"
        )
    if values.class_sampling == "balanced" and values.train_sampling_strategy == "sequential":
        mistakes.append(
            "--class_sampling balanced: the rows are drawn, so they have no order to be kept by "
            "--train_sampling_strategy sequential; expected random or group_by_length"
        )
    if values.early_stopping_patience is not None:
        evaluates = getattr(values.eval_strategy, "value", values.eval_strategy)
        flag = f"--early_stopping_patience {values.early_stopping_patience} needs"
        if evaluates == "no":
            mistakes.append(f"{flag} --eval_strategy epoch (or steps): it counts evaluations")
        if save_strategy == "no":
            mistakes.append(f"{flag} --save_strategy epoch (or steps), to keep the best model")
        elif evaluates != "no" and not values.load_best_model_at_end:
            mistakes.append(f"{flag} --load_best_model_at_end true: the last model is not the best")
    return mistakes


def _find_numbers_out_of_range(values: Any) -> list[str]:
    ranges: dict[str, tuple[Callable[[float], bool], str]] = {
        **{name: (lambda x: x >= 1, f"1 or more{unit}") for name, unit in _COUNTS.items()},
        **dict.fromkeys(_NOT_NEGATIVE, (lambda x: 0 <= x < math.inf, "0 or more")),
        **dict.fromkeys(_BELOW_ONE, (lambda x: 0 <= x < 1, "0 or more and below 1")),
        **dict.fromkeys(
            _SEEDS, (lambda x: 0 <= x <= _LARGEST_SEED, f"a number from 0 to {_LARGEST_SEED}")
        ),
        **dict.fromkeys(
            _STEPS,
            (
                lambda x: 0 < x < 1 or (x >= 1 and float(x).is_integer()),
                "a number of steps, or a fraction of them below 1",
            ),
        ),
        "num_train_epochs": (lambda x: 0 < x < math.inf or values.max_steps > 0, "more than 0"),
        "max_steps": (lambda x: x == -1 or x >= 1, "1 or more steps, or -1 for whole epochs"),
    }
    mistakes = []
    for name, (is_possible, expected) in ranges.items():
        value = getattr(values, name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (is_number and is_possible(value)):
            mistakes.append(f"--{name} {value}: expected {expected}")
    return mistakes


def _find_missing_packages(values: Any) -> list[str]:
    """Return a line if an optimizer or a tracker is not installed, or there is no such tracker."""
    optimizer = str(getattr(values.optim, "value", values.optim))
    mistakes = []
    for part, package in _OPTIMIZERS.items():
        package = package.format(part)
        if part in optimizer and find_spec(package.replace("-", "_")) is None:
            mistakes = [f"--optim {optimizer}: not installed; pip install {package}"]
            break
    installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    names = [values.report_to] if isinstance(values.report_to, str) else values.report_to or []
    for name in sorted(set(names) - {"none", "all", *installed}):
        reason = "not installed"
        if name not in INTEGRATION_TO_CALLBACK:
            reason = f"no such tracker{suggestion(name, INTEGRATION_TO_CALLBACK)}"
        mistakes.append(f"--report_to {name}: {reason}")
    return mistakes
