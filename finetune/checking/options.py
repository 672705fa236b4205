"""Check options that exclude each other, and those that teach a model little."""

import math
from collections.abc import Mapping
from typing import Any, cast

from finetune.errors import Findings, counted
from finetune.training.arguments import ArgumentValues, FinetuneArguments, shards

#: With fewer steps a pretrained model is often undertrained: docs/decisions/too-few-steps.md.
_MIN_STEPS = 50
#: Below it LoRA is undertrained: its best rate is about ten times that of full fine-tuning
#: (Schulman et al., "LoRA Without Regret", 2025).
_LOWEST_RATE_OF_ADAPTERS = 1e-4


def refuse_combinations(
    values: ArgumentValues, typed: Mapping[str, Any], has_adapter: bool, report: Findings
) -> None:
    """Report options that exclude each other; ``typed`` are those of the user."""
    for name in ("num_train_epochs", "max_steps", "dry_run"):
        if values.max_minutes and name in typed:
            report.error(f"--max_minutes and --{name} are mutually exclusive: give one")
    if has_adapter and shards(values):
        report.error("--adapter lora is not supported with --fsdp: use DistributedDataParallel")


def report_schedule(
    values: ArgumentValues, steps: int, report: Findings, *, is_text: bool, has_adapter: bool
) -> None:
    """Warn if the learning rate stays low, or if a pretrained text model gets few steps."""
    warmup_steps = FinetuneArguments.get_warmup_steps(cast(Any, values), steps)
    if warmup_steps >= steps and values.lr_scheduler_type != "constant":
        report.warning(
            f"--warmup_steps {values.warmup_steps:g}: the learning rate does not reach "
            f"{values.learning_rate:g} within {counted(steps, 'step')}; try --warmup_steps 0.1"
        )
    elif has_adapter and values.learning_rate < _LOWEST_RATE_OF_ADAPTERS:
        rate = max(10 * values.learning_rate, _LOWEST_RATE_OF_ADAPTERS)
        report.warning(
            f"--learning_rate {values.learning_rate:g}: an adapter learns little below "
            f"{_LOWEST_RATE_OF_ADAPTERS:g}; try --learning_rate {rate:g}"
        )
    if steps >= _MIN_STEPS or not is_text:
        return
    flag = f"--max_steps {_MIN_STEPS} or more"
    if values.max_steps <= 0:
        flag = f"--num_train_epochs {math.ceil(_MIN_STEPS * values.num_train_epochs / steps)}"
    if values.max_minutes:
        flag = "more minutes"
    report.warning(
        f"{counted(steps, 'optimizer step')}: with fewer than {_MIN_STEPS} a pretrained model "
        f"is often undertrained; try {flag}"
    )
