"""Rules about the length of a training, its learning rate and its optimizer."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from transformers import TrainingArguments

from finetune.errors import counted
from finetune.rules.options import Mistakes, OptionValues

#: With fewer steps a pretrained model is often undertrained: docs/decisions/too-few-steps.md.
MIN_STEPS = 50
#: Schedules that are steered by the scores of evaluations.
NEED_EVALUATIONS = ("reduce_lr_on_plateau", "greedy")
#: Below it LoRA is undertrained: its best rate is about ten times that of full fine-tuning
#: (Schulman et al., "LoRA Without Regret", 2025).
_MIN_RATE_OF_ADAPTERS = 1e-4
#: Optimizers that step in the backward pass, before gradients are added up, clipped and checked.
_IN_BACKWARD = ("lomo", "layerwise")


def _require_best_checkpoint(options: OptionValues) -> Mistakes:
    strategies = options.eval_strategy, options.save_strategy
    keeps_best = options.load_best_model_at_end and "no" not in strategies
    if options.early_stopping_patience is not None and not keeps_best:
        flags = "--eval_strategy and --save_strategy other than no"
        yield f"--early_stopping_patience needs --load_best_model_at_end true, {flags}"


def _require_optimizer(options: OptionValues) -> Mistakes:
    """Yield a message if the optimizer is not available, or a part of ``optim_args`` is unknown."""
    if options.optim == TrainingArguments.optim and not options.optim_args:
        return
    name = str(getattr(options.optim, "value", options.optim))
    if any(word in name for word in _IN_BACKWARD):
        reason = "steps in the backward pass, before gradients are added up, clipped and checked"
        yield f"--optim {name}: {reason}"
        return
    try:
        optimizer, kwargs = _optimizer(options, options.optim_args)
        optimizer([torch.nn.Parameter(torch.zeros(1))], **kwargs)
        pairs = (options.optim_args or "").split(",")
        for pair in filter(None, pairs):
            rest = ",".join(other for other in pairs if other != pair)
            if _optimizer(options, rest)[1] == kwargs:
                yield f"--optim_args {pair} has no effect with --optim {name}"
    except AttributeError:  # properties of built arguments
        return
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        flags = f"--optim {name}"
        if options.optim_args:
            flags += f" --optim_args {options.optim_args}"
        if "need to pass a" not in str(error):  # some optimizers need the model
            yield f"{flags}: {error}"


def _optimizer(options: OptionValues, optim_args: str | None) -> tuple[Any, dict[str, Any]]:
    from transformers import Trainer  # takes a second

    changed: Any = SimpleNamespace(**{**vars(options), "optim_args": optim_args})
    return Trainer.get_optimizer_cls_and_kwargs(changed)


RULES = (_require_best_checkpoint, _require_optimizer)


def ignores_warmup(arguments: SimpleNamespace) -> bool:
    """Return whether the learning rate has no warm-up, whatever ``--warmup_steps`` says."""
    return arguments.lr_scheduler_type in ("constant", *NEED_EVALUATIONS)


def describe_weak_training(
    arguments: Any, steps: int, is_text: bool, has_adapter: bool
) -> Mistakes:
    """Yield a warning if the learning rate stays low, or if a pretrained text model gets few steps.

    Args:
        arguments: The training arguments.
        steps: The optimizer steps of the training.
        is_text: Whether the model reads texts.
        has_adapter: Whether an adapter is trained.
    """
    warmup_steps = TrainingArguments.get_warmup_steps(arguments, steps)
    if warmup_steps >= steps and arguments.lr_scheduler_type != "constant":
        yield (
            f"--warmup_steps {arguments.warmup_steps:g}: the learning rate does not reach "
            f"{arguments.learning_rate:g} within {counted(steps, 'step')}; try --warmup_steps 0.1"
        )
    elif has_adapter and arguments.learning_rate < _MIN_RATE_OF_ADAPTERS:
        rate = max(10 * arguments.learning_rate, _MIN_RATE_OF_ADAPTERS)
        yield (
            f"--learning_rate {arguments.learning_rate:g}: an adapter learns little below "
            f"{_MIN_RATE_OF_ADAPTERS:g}; try --learning_rate {rate:g}"
        )
    if steps >= MIN_STEPS or not is_text:
        return
    flag = f"--max_steps {MIN_STEPS} or more"
    if arguments.max_steps <= 0:
        flag = f"--num_train_epochs {math.ceil(MIN_STEPS * arguments.num_train_epochs / steps)}"
    if arguments.max_minutes:
        flag = "more minutes"
    yield (
        f"{counted(steps, 'optimizer step')}: with fewer than {MIN_STEPS} a pretrained model "
        f"is often undertrained; try {flag}"
    )
