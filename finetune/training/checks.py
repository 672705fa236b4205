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

#: What is a number of something, and of what.
_COUNTS = {
    "save_every": " epochs",
    "per_device_train_batch_size": " rows",
    "per_device_eval_batch_size": " rows",
    "global_batch_size": " rows",
    "max_tokens_per_batch": " tokens",
    "num_threads": "",
    "profile": " steps",
    "gradient_accumulation_steps": "",
}


def refuse(values: Any) -> None:
    """Refuse training arguments that contradict each other or the machine, all at once.

    ``values`` are training arguments, or their values before they are built.

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
    me, gpus = distributed.ranks(), torch.accelerator.device_count()
    if me.world_size > 1 and not values.use_cpu and me.local_world_size > gpus:
        mistakes.append(
            f"{me.local_world_size} processes on a machine with {gpus} GPU{'s' * (gpus > 1)}: "
            f"each needs one of its own; --nproc_per_node={gpus}, or --use_cpu"
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
    save_strategy = getattr(values.save_strategy, "value", values.save_strategy)
    if values.save_every > 1 and save_strategy != "epoch":
        mistakes.append("--save_every counts epochs: it needs --save_strategy epoch")
    for name, unit in _COUNTS.items():
        if (value := getattr(values, name)) is not None and value < 1:
            mistakes.append(f"--{name} {value}: expected 1 or more{unit}")
    # what the library will decide once it looks at its own arguments
    compiles = values.torch_compile or values.torch_compile_backend or values.torch_compile_mode
    if values.max_tokens_per_batch and compiles:
        mistakes.append(
            "--max_tokens_per_batch with --torch_compile: every step would have another shape, "
            "and be compiled; give a number of rows"
        )
    if values.max_tokens_per_batch and values.train_sampling_strategy != "group_by_length":
        mistakes.append(
            "--max_tokens_per_batch makes steps of rows of like length: it needs "
            "--train_sampling_strategy group_by_length, and rows with a length"
        )
    for name, choices in (("precision", precision.CHOICES), ("cpu_kernels", cpu.CHOICES)):
        if (value := getattr(values, name)) not in choices:
            mistakes.append(
                f"--{name} {value}: expected {', '.join(choices[:-1])} or {choices[-1]}"
                f"{suggestion(value, choices)}"
            )
    fp16 = "--fp16" if values.fp16 else "--precision fp16" if values.precision == "fp16" else ""
    if fp16 and not values.bf16 and distributed.device_type(values.use_cpu) == "cpu":
        mistakes.append(f"{fp16}: on a CPU nothing computes in it; expected bf16 or fp32")
    for flag in ("bf16", "fp16"):
        if getattr(values, flag) and values.precision not in ("auto", flag):
            mistakes.append(
                f"--precision {values.precision} and --{flag} contradict each other: give one"
            )
    if mistakes:
        raise UserError(*mistakes)


def shards(values: Any) -> bool:
    """Return whether FSDP is asked for, here or in the accelerate config."""
    return bool(values.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
