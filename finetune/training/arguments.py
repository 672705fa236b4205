"""``TrainingArguments`` and the few of ours: from flags and defaults to values for this launch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

import torch
from transformers import TrainingArguments
from transformers.utils.import_utils import is_in_notebook, is_torch_tf32_available

from finetune.errors import UserError
from finetune.runtime import distributed, precision, threads
from finetune.statistics.metrics import DIRECTIONS
from finetune.training import checks
from finetune.training.options import (
    BATCH_SIZES,
    describe_unknown,
    find_type_mistake,
    merge_options,
)

#: The subcommands imply these, or the launcher sets them.
REFUSED = ("do_train", "do_eval", "do_predict", "local_rank")


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(repr=False)  # the library's hides tokens
class FinetuneArguments(TrainingArguments):
    """Every field of ``TrainingArguments`` under its own name, and these.

    ``global_batch_size`` is ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x
    devices, whichever of them was given; None with ``max_tokens_per_batch``.
    """

    per_device_train_batch_size: int | None = _option(  # type: ignore[assignment]
        None, "rows per micro-batch on one device, instead of --global_batch_size"
    )
    per_device_eval_batch_size: int | None = _option(  # type: ignore[assignment]
        None, "rows per batch on one device in evaluation (unset: 32 on a CPU, 128 elsewhere)"
    )
    global_batch_size: int | None = _option(None, "rows per optimizer step, over all devices")
    max_tokens_per_batch: int | None = _option(
        None, "tokens per optimizer step, padding included, instead of a number of rows"
    )
    class_sampling: Literal["none", "balanced"] = _option(
        "none", "rows of an epoch: none, each at most once; balanced, as many of each class"
    )
    save_every: int = _option(1, "keep a checkpoint every N epochs, and the last and the best")
    resume: bool = _option(
        False, "continue the run in --output_dir from its newest complete checkpoint, if it has one"
    )
    resume_from_checkpoint: str | None = _option(
        None, "a checkpoint to continue from, or last: the newest complete one of the run"
    )
    allow_changed: str | None = _option(
        None, "settings, separated by commas, in which a resumed run may differ from before"
    )
    grace_seconds: float = _option(
        20.0, "seconds after SIGTERM, SIGINT, SIGHUP or SIGUSR1 to finish a step and save"
    )
    early_stopping_patience: int | None = _option(
        None, "stop after N evaluations in a row without a better metric_for_best_model"
    )
    num_threads: int | None = _option(None, "CPU threads per process (unset: a share of the cores)")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _option(
        "auto", "precision of matrix products (auto: bf16 where the device has it)"
    )
    cpu_kernels: Literal["auto", "off"] = _option(
        "auto", "on a CPU: auto for those of this toolkit, off for those of the libraries"
    )
    profile: int | None = _option(None, "profile N steps after the first two")
    baseline: bool = _option(True, "fit a bag-of-words baseline on the same rows, to compare with")
    dataloader_num_workers: int | None = _option(  # type: ignore[assignment]
        None, "worker processes that collate batches ahead (unset: 2 with a GPU, none on a CPU)"
    )

    builds_trainer = False

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # without it the library refuses --bf16 there
        if self.disable_tqdm is None:  # the library would go by how quiet its log is
            watched = sys.stderr.isatty() or is_in_notebook()
            self.disable_tqdm = distributed.ranks().rank != 0 or not watched
        checks.refuse(self)
        resolve(self)
        threads.use(self.num_threads)
        super().__post_init__()  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out: the library writes the arguments into every checkpoint."""
        return {**self.__dict__, "hub_token": None}

    @property
    def should_save(self) -> bool:
        """Whether this process writes; no process does while a trainer is built."""
        return bool(super().should_save) and not self.builds_trainer


class ArgumentValues(SimpleNamespace):
    """Training arguments as values, complete, checked and with the batch divided.

    Nothing is built, so no device is touched and no process group is joined.
    """

    def build(self) -> FinetuneArguments:
        """Return the training arguments; in a job of several processes the group must exist.

        Raises:
            UserError: In the library's words, if they contradict each other.
        """
        try:
            return FinetuneArguments(**vars(self))
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error


def training_names() -> set[str]:
    """Return the names of the training arguments that can be set."""
    return {argument.name for argument in fields(FinetuneArguments)} - set(REFUSED)


def argument_values(defaults: Mapping[str, Any], user_options: Mapping[str, Any]) -> ArgumentValues:
    """Return the values of the training arguments: those of a user over the defaults of a recipe,
    checked, without touching the device.

    Raises:
        UserError: If one is unknown, or if they contradict each other.
    """
    names, hints = training_names(), get_type_hints(FinetuneArguments)
    merged = {**defaults, **user_options}
    mistakes = [describe_unknown(f"'{name}'", names) for name in merged if name not in names]
    if not mistakes:
        mistakes = [find_type_mistake(f"--{name}", merged[name], hints[name]) for name in merged]
    sizes = [name for name in BATCH_SIZES if user_options.get(name) is not None]
    if len(sizes) > 1:
        mistakes.append(f"--{' and --'.join(sizes)} are mutually exclusive: give one")
    if mistakes := list(filter(None, mistakes)):
        raise UserError(*mistakes)
    defaults = {**defaults, **_matching_strategies(user_options)}
    if "max_tokens_per_batch" in sizes:
        defaults["train_sampling_strategy"] = "group_by_length"
    best = {**defaults, **user_options}.get("metric_for_best_model")
    if DIRECTIONS.get(str(best).removeprefix("eval_")) == -1:  # the library goes by "loss" alone
        defaults.setdefault("greater_is_better", False)
    return resolve_values(merge_options(defaults, user_options))


def _matching_strategies(user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults that let the model be evaluated when it is saved, where the user changes one
    of the two: only then can the best one be kept.
    """
    pair = {"eval_strategy": "save_strategy", "save_strategy": "eval_strategy"}
    strategies = {name: str(user_options[name]) for name in pair if name in user_options}
    if "no" in strategies.values():
        return {"load_best_model_at_end": False}
    if len(strategies) != 1 or strategies.get("save_strategy") == "best":
        return {}
    steps = {
        other: user_options[name]
        for name, other in (("eval_steps", "save_steps"), ("save_steps", "eval_steps"))
        if name in user_options
    }
    return {**steps, **dict.fromkeys(pair, *strategies.values())}


def resolve_values(options: Mapping[str, Any]) -> ArgumentValues:
    """Return the values of all training arguments: those in ``options``, and defaults.

    Raises:
        UserError: What is wrong with them, as far as the toolkit's own rules go.
    """
    values = ArgumentValues()
    for argument in fields(FinetuneArguments):
        factory = argument.default_factory
        default = argument.default if factory is MISSING else factory()
        setattr(values, argument.name, options.get(argument.name, default))
    values.use_cpu = values.use_cpu or not torch.accelerator.is_available()
    checks.refuse(values)
    resolve(values)
    return values


def resolve(values: Any) -> None:
    """Fill in what depends on launch and device, in place; doing it again changes nothing.

    Raises:
        UserError: If a global batch does not divide.
    """
    _resolve_batch(values)
    device_type = distributed.device_type(values.use_cpu)
    _resolve_precision(values, device_type)
    # batches are collated and copied while the GPU computes
    if values.dataloader_num_workers is None:
        values.dataloader_num_workers = 2 if device_type == "cuda" else 0
    pinned = device_type == "cuda" and values.dataloader_pin_memory
    if pinned and values.accelerator_config is None:
        values.accelerator_config = {"non_blocking": True}
    if values.label_names is None:  # the library looks for them in the signature of `forward`
        values.label_names = ["labels"]
    if values.per_device_eval_batch_size is None:
        values.per_device_eval_batch_size = 32 if device_type == "cpu" else 128


def _resolve_precision(values: Any, device_type: str) -> None:
    if values.bf16 or values.fp16:
        return
    precision_name = values.precision
    if precision_name == "auto":
        precision_name = precision.automatic(device_type)
        if values.tf32 is None and device_type == "cuda" and is_torch_tf32_available():
            values.tf32 = True
    values.bf16, values.fp16 = precision_name == "bf16", precision_name == "fp16"


def _resolve_batch(values: Any) -> None:
    if values.max_tokens_per_batch is not None:
        values.per_device_train_batch_size = 8  # the library's; it divides no data
        values.global_batch_size = None
        return
    devices = distributed.devices_in_training(values.use_cpu)
    shares = devices * values.gradient_accumulation_steps
    if values.per_device_train_batch_size is not None:
        values.global_batch_size = values.per_device_train_batch_size * shares
        return
    if values.global_batch_size is None:
        values.global_batch_size = 8 * shares  # the library's 8 rows a device
    values.per_device_train_batch_size, rest = divmod(values.global_batch_size, shares)
    if rest or not values.per_device_train_batch_size:
        smaller = values.global_batch_size // shares * shares
        nearest = f"{smaller} or {smaller + shares}" if smaller else f"{shares}"
        raise UserError(
            f"a global batch of {values.global_batch_size} rows does not divide into {devices} "
            f"devices x {values.gradient_accumulation_steps} accumulation steps; the nearest that "
            f"does: --global_batch_size {nearest}"
        )
