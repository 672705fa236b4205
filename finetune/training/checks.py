"""What training arguments must not say, alone or together.

They are checked before they are built: ``TrainingArguments`` joins the process group, and rank 0
checks before there is one.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from transformers.integrations.integration_utils import get_available_reporting_integrations

from finetune.errors import UserError, suggestion
from finetune.models import cpu
from finetune.runtime import distributed, precision


def refuse(values: Any) -> None:
    """Refuse training arguments that contradict each other or the machine, all at once.

    Args:
        values: Training arguments, or their values before they are built.

    Raises:
        UserError: one line for each mistake.
    """
    mistakes = []
    if values.dataloader_drop_last:
        mistakes.append(
            "--dataloader_drop_last would drop evaluation rows too; in training an incomplete "
            "last step is always left out"
        )
    if values.train_sampling_strategy == "batch_rebalance":
        mistakes.append(
            "--train_sampling_strategy batch_rebalance: the steps would depend on the number "
            "of processes; expected random, sequential or group_by_length"
        )
    if values.auto_find_batch_size:
        mistakes.append(
            "--auto_find_batch_size would change the global batch in the middle; raise "
            "--gradient_accumulation_steps instead"
        )
    if not values.average_tokens_across_devices:
        mistakes.append(
            "--average_tokens_across_devices false: the loss would depend on the number of "
            "processes; leave it out"
        )
    installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    wanted = [values.report_to] if isinstance(values.report_to, str) else values.report_to or []
    for name in sorted(set(wanted) - {"none", "all", *installed}):
        mistakes.append(
            f"--report_to {name}: not installed (there are: none, "
            f"{', '.join(installed) or 'no others'})"
        )
    here = distributed.ranks().local_world_size
    if (
        distributed.ranks().world_size > 1
        and not values.use_cpu
        and here > (there := torch.accelerator.device_count())
    ):
        mistakes.append(
            f"{here} processes on a machine with {there} GPU{'s' * (there > 1)}: each needs "
            f"one of its own; --nproc_per_node={there}, or --use_cpu"
        )
    if shards(values) and values.use_cpu:
        named = "--fsdp" if values.fsdp else "FSDP in the accelerate config"
        mistakes.append(
            f"{named}: the library shards on accelerators only, and would run DDP on this "
            "CPU; leave it out"
        )
    if shards(values) and values.save_on_each_node:
        mistakes.append(
            "--save_on_each_node: FSDP gathers the whole model on rank 0 only; name an "
            "--output_dir that the machines share instead"
        )
    if not values.num_train_epochs > 0 and not values.max_steps > 0:
        mistakes.append(f"--num_train_epochs {values.num_train_epochs}: expected more than 0")
    if not (math.isfinite(values.learning_rate) and values.learning_rate >= 0):
        mistakes.append(f"--learning_rate {values.learning_rate}: expected 0 or more")
    if (
        values.save_every > 1
        and str(getattr(values.save_strategy, "value", values.save_strategy)) != "epoch"
    ):
        mistakes.append("--save_every counts epochs: it needs --save_strategy epoch")
    if values.save_every < 1:
        mistakes.append(f"--save_every {values.save_every}: expected 1 or more epochs")
    for name in (
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "global_batch_size",
        "max_tokens_per_batch",
    ):
        value, unit = getattr(values, name), "tokens" if "tokens" in name else "rows"
        if value is not None and value < 1:
            mistakes.append(f"--{name} {value}: expected 1 or more {unit}")
    if values.max_tokens_per_batch and _compiles(values):
        mistakes.append(
            "--max_tokens_per_batch with --torch_compile: every step would have another shape, "
            "and be compiled; give a number of rows"
        )
    if values.max_tokens_per_batch and values.train_sampling_strategy != "group_by_length":
        mistakes.append(
            "--max_tokens_per_batch makes steps of rows of like length: it needs "
            "--train_sampling_strategy group_by_length, and rows with a length"
        )
    if values.precision not in precision.CHOICES:
        mistakes.append(
            f"--precision {values.precision}: expected {', '.join(precision.CHOICES[:-1])} or "
            f"{precision.CHOICES[-1]}{suggestion(values.precision, precision.CHOICES)}"
        )
    if values.cpu_kernels not in cpu.CHOICES:
        mistakes.append(
            f"--cpu_kernels {values.cpu_kernels}: expected {' or '.join(cpu.CHOICES)}"
            f"{suggestion(values.cpu_kernels, cpu.CHOICES)}"
        )
    fp16 = "--fp16" if values.fp16 else "--precision fp16" if values.precision == "fp16" else ""
    if fp16 and not values.bf16 and distributed.device_type(values.use_cpu) == "cpu":
        mistakes.append(f"{fp16}: on a CPU nothing computes in it; expected bf16 or fp32")
    for flag in ("bf16", "fp16"):
        if getattr(values, flag) and values.precision not in ("auto", flag):
            mistakes.append(
                f"--precision {values.precision} and --{flag} contradict each other: give one"
            )
    if values.num_threads is not None and values.num_threads < 1:
        mistakes.append(f"--num_threads {values.num_threads}: expected 1 or more")
    if values.profile is not None and values.profile < 1:
        mistakes.append(f"--profile {values.profile}: expected 1 or more steps")
    if values.gradient_accumulation_steps < 1:
        mistakes.append(
            f"--gradient_accumulation_steps {values.gradient_accumulation_steps}: "
            "expected 1 or more"
        )
    if mistakes:
        raise UserError(*mistakes)


def shards(values: Any) -> bool:
    """Return whether FSDP is asked for, here or in the accelerate config."""
    return bool(values.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def _compiles(values: Any) -> bool:
    """Return what the library will decide once it looks at its own arguments."""
    named = values.torch_compile_backend or values.torch_compile_mode
    return bool(values.torch_compile or named is not None)
