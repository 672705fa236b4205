"""From the defaults of a recipe and what the user gave to training arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from finetune.errors import UserError, suggestion
from finetune.training.arguments import REFUSED, ArgumentValues, FinetuneArguments, resolved
from finetune.training.resolution import BATCH_SIZES
from finetune.training.retired import successor


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
        else f"unknown training argument '{name}'{suggestion(name, known)}"
        for name in given
        if name not in known
    ]
    if unknown:
        raise UserError(*unknown)
    defaults, given = dict(defaults), dict(given)
    keep_secret(given)
    if asked := [name for name in BATCH_SIZES if given.get(name) is not None]:
        if len(asked) > 1:
            raise UserError(f"--{' and --'.join(asked)} are mutually exclusive: give one")
        for name in BATCH_SIZES:  # a batch that is given puts that of the recipe aside
            defaults.pop(name, None)
    if given.get("max_tokens_per_batch") is not None:
        defaults["train_sampling_strategy"] = "group_by_length"
    _follow(given, defaults)
    return resolved({**defaults, **given})


def training_names() -> set[str]:
    """Every training argument that can be set."""
    return {each.name for each in fields(FinetuneArguments) if each.init} - set(REFUSED)


def keep_secret(training: dict[str, Any]) -> None:
    """Take ``hub_token`` out: the library would write it into every checkpoint in plain text.

    It reads the environment variable as well.
    """
    if token := training.pop("hub_token", None):
        os.environ["HF_TOKEN"] = token


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
