"""Names and types of options of recipes and of training; importing this does not import torch."""

import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from finetune.errors import Findings, suggestion
from finetune.rules.batch import BATCH_SIZES

#: Training arguments that :mod:`finetune.recipe.defaults` sets where they are None.
SCHEDULE = ("learning_rate", "num_train_epochs", "warmup_steps")
#: Fields of ``TrainingArguments`` up to transformers 4.57, names of other tools: what to type here.
RENAMED = {
    "lr": "--learning_rate",
    "epochs": "--num_train_epochs",
    # transformers 5.16 and before has only the second name, and version 6 will have only the first
    "activation_checkpointing": "--gradient_checkpointing",
    "activation_checkpointing_kwargs": "--gradient_checkpointing_kwargs",
    "gradient_checkpointing": "--activation_checkpointing",
    "gradient_checkpointing_kwargs": "--activation_checkpointing_kwargs",
    "batch_size": "--global_batch_size",
    "adafactor": "--optim adafactor",
    "dispatch_batches": "nothing: it is not supported, nor is it in --accelerator_config",
    "evaluate_during_training": "--eval_strategy steps",
    "evaluation_strategy": "--eval_strategy",
    "fsdp_min_num_params": "--fsdp_config '{\"min_num_params\": N}'",
    "fsdp_transformer_layer_cls_to_wrap": "transformer_layer_cls_to_wrap in --fsdp_config",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "include_inputs_for_metrics": "--include_for_metrics inputs",
    "jit_mode_eval": "--torch_compile",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "overwrite_output_dir": "nothing: a run that is in --output_dir is moved aside",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "push_to_hub_model_id": "--hub_model_id",
    "push_to_hub_organization": "--hub_model_id ORGANIZATION/NAME",
    "push_to_hub_token": "--hub_token",
    "split_batches": "--global_batch_size: it is not supported, nor is it in --accelerator_config",
    "torchdynamo": "--torch_compile_backend",
    "tpu_metrics_debug": "--debug tpu_metrics_debug",
    "warmup_ratio": "--warmup_steps with a share of the steps, like --warmup_steps 0.1",
}
#: Training arguments that decide which checkpoint is the best one, and not how it is trained.
OF_EVALUATIONS = ("eval_strategy", "eval_steps", "early_stopping_patience")
#: For each type of an option: the classes of its values, and its name in messages.
_TYPES: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: ((str, os.PathLike), "text"),
    list: (list, "a list of texts"),
    NoneType: (NoneType, ""),
}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set."""
    return {name: value for name, value in options.items() if value is not None}


def merge_options(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``lower`` updated with ``upper``; a batch size in ``upper`` removes all batch sizes of
    ``lower``.
    """
    merged = dict(lower)
    if without_none(upper).keys() & set(BATCH_SIZES):
        for name in BATCH_SIZES:
            merged.pop(name, None)
    return merged | dict(upper)


def describe_unknown(option: str, names: Iterable[str]) -> str:
    """Return a message about an unknown option, with its successor or the most similar name.
    ``option`` is written as ``--lr``, or as ``'lr'`` in a file or in Python.
    """
    name = option.strip("'")
    if instead := RENAMED.get(name.lstrip("-").replace("-", "_")):
        return f"unknown option {option}; use {instead}"
    return f"unknown option {option}{suggestion(name, names, cutoff=0.7)}"


def check_types(
    values: Mapping[str, Any], hints: Mapping[str, Any], report: Findings, suffix: str = ""
) -> dict[str, Any]:
    """Return the values of options that have their type, and report the other ones.

    Args:
        values: What the user typed, by option.
        hints: The type of each option that there is.
        report: Gets an error for each unknown option and each other type.
        suffix: What is added to the message about an unknown option.
    """
    typed = {}
    for name, value in values.items():
        if name not in hints:
            message = describe_unknown(f"'{name}'", hints) + suffix
            report.error(message, name="unknown_option")
        elif mistake := find_type_mistake(f"--{name}", value, hints[name]):
            report.error(mistake)
        else:
            typed[name] = value
    return typed


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the values of a ``Literal``; ``list`` for any list."""
    if get_origin(hint) is list:
        return (list,)
    kinds = []
    for kind in get_args(hint):
        kinds.append(list if get_origin(kind) is list else kind)
    return tuple(kinds) or (hint,)


def find_type_mistake(flag: str, value: Any, hint: Any) -> str:
    """Return a message if a value does not have the type of its option, else an empty string.

    Args:
        flag: What the message calls the option.
        value: The value; None is allowed if the type allows it.
        hint: The type of the option. Types that no option has are not checked.
    """
    kinds = alternatives(hint)
    if value is not None and get_origin(kinds[0]) is Literal and kinds[1:] == (type(None),):
        hint = kinds[0]
        kinds = alternatives(hint)
    if get_origin(hint) is Literal:
        if value in kinds:
            return ""
        choices = " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
        return f"{flag} {value}: expected {choices}{suggestion(str(value), kinds)}"
    types = tuple(_TYPES[kind][0] for kind in kinds if kind in _TYPES and kind is not bool)
    is_right = bool in kinds if isinstance(value, bool) else isinstance(value, types)
    if isinstance(value, list):
        is_right = list in kinds and all(isinstance(item, str) for item in value)
    if is_right or not set(kinds) <= _TYPES.keys():
        return ""
    expected = " or ".join(_TYPES[kind][1] for kind in kinds if kind is not NoneType)
    return f"{flag}: expected {expected}, found {value!r:.200}"
