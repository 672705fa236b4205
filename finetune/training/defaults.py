"""From the defaults of a recipe and what the user gave to training arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from finetune.errors import UserError
from finetune.statistics.metrics import DIRECTIONS
from finetune.training.arguments import REFUSED, ArgumentValues, FinetuneArguments, resolve_values
from finetune.training.option_types import find_type_mistake
from finetune.training.resolution import BATCH_SIZES
from finetune.training.retired import option_suggestion, successor


def argument_values(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> ArgumentValues:
    """Return the values of the training arguments, checked, without touching the device.

    Those in ``given`` are the user's, over the ``defaults`` of a recipe.

    Raises:
        UserError: if one is unknown, or if they contradict each other.
    """
    known = training_names()
    unknown = [
        f"'{name}'{instead}"
        if (instead := successor(name))
        else f"unknown training argument '{name}'{option_suggestion(name, known)}"
        for name in {**defaults, **given}
        if name not in known
    ]
    if unknown:
        raise UserError(*unknown)
    hints, values = get_type_hints(FinetuneArguments), {**defaults, **given}
    mistakes = [find_type_mistake(f"--{name}", values[name], hints[name]) for name in values]
    if any(mistakes):
        raise UserError(*filter(None, mistakes))
    defaults, given = dict(defaults), dict(given)
    if asked := [name for name in BATCH_SIZES if given.get(name) is not None]:
        if len(asked) > 1:
            raise UserError(f"--{' and --'.join(asked)} are mutually exclusive: give one")
        for name in BATCH_SIZES:  # a batch that is given puts that of the recipe aside
            defaults.pop(name, None)
    if given.get("max_tokens_per_batch") is not None:
        defaults["train_sampling_strategy"] = "group_by_length"
    _follow(given, defaults)
    chosen = {**defaults, **given}.get("metric_for_best_model")
    if DIRECTIONS.get(str(chosen).removeprefix("eval_")) == -1:  # the library goes by "loss" alone
        defaults.setdefault("greater_is_better", False)
    return resolve_values({**defaults, **given})


def training_names() -> set[str]:
    """Every training argument that can be set."""
    return {argument.name for argument in fields(FinetuneArguments) if argument.init} - set(REFUSED)


def _follow(given: Mapping[str, Any], defaults: dict[str, Any]) -> None:
    """Where one of evaluating and saving is changed, the other's default goes with it.

    The best model can be kept only if both happen at the same time.
    """
    pair = ("eval_strategy", "save_strategy")
    asked = {name: str(given[name]) for name in pair if name in given}
    if "no" in asked.values():
        defaults["load_best_model_at_end"] = False
    elif len(asked) == 1 and asked.get("save_strategy") != "best":
        defaults |= dict.fromkeys(pair, *asked.values())
        for here, there in (("eval_steps", "save_steps"), ("save_steps", "eval_steps")):
            if here in given and there not in given:
                defaults[there] = given[here]
