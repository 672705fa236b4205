"""``TrainingArguments`` and the few of ours: from flags and defaults to values for this launch.

They are refused before they are built, where they contradict each other or the machine:
``TrainingArguments`` joins the process group, and rank 0 checks before there is one.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils.import_utils import is_in_notebook, is_torch_tf32_available

from finetune.errors import UserError, suggestion
from finetune.runtime import distributed, hardware
from finetune.statistics.metrics import DIRECTIONS
from finetune.training.options import (
    BATCH_SIZES,
    describe_unknown,
    find_type_mistake,
    merge_options,
)

#: The subcommands imply these, or the launcher sets them.
REFUSED = ("do_train", "do_eval", "do_predict", "local_rank")
#: The lowest value of arguments, and what they have to be below.
_RANGES: dict[tuple[str, ...], tuple[int, float]] = {
    (
        *("save_every", "save_total_limit", "early_stopping_patience", "max_tokens_per_batch"),
        *("per_device_train_batch_size", "per_device_eval_batch_size", "global_batch_size"),
        *("gradient_accumulation_steps", "num_threads", "profile", "ddp_timeout"),
    ): (1, math.inf),
    (
        *("learning_rate", "weight_decay", "max_grad_norm", "adam_epsilon", "warmup_steps"),
        *("grace_seconds", "eval_delay", "dataloader_num_workers", "neftune_noise_alpha"),
    ): (0, math.inf),
    ("label_smoothing_factor", "adam_beta1", "adam_beta2"): (0, 1),
    ("seed", "data_seed"): (0, 2**32),
}
#: Arguments by which a run would not be what this toolkit promises, and why.
_REFUSED = {
    "dataloader_drop_last": "evaluation rows would be dropped, too; training always drops them",
    "auto_find_batch_size": "changes the global batch; use --gradient_accumulation_steps",
    "ignore_data_skip": "a resumed epoch would train on rows that it has seen",
    "prediction_loss_only": "the report needs the outputs of all rows",
    "batch_eval_metrics": "the report needs the outputs of all rows",
}
#: What is in the name of an optimizer, and the package that it needs.
_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch_4bit", "adamw_torch_8bit"), "torchao"),
    **dict.fromkeys(("_8bit", "_bnb", "paged_", "lion_", "ademamix"), "bitsandbytes"),
    **{"galore": "galore-torch", "apollo": "apollo-torch", "lomo": "lomo-optim"},
    **{"grokadamw": "grokadamw", "schedule_free": "schedulefree"},
}


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
    max_tokens_per_batch: int | None = _option(None, "tokens per optimizer step, with padding")
    class_sampling: Literal["none", "balanced"] = _option(
        "none", "rows of an epoch: none, each at most once; balanced, as many of each class"
    )
    save_every: int = _option(1, "keep a checkpoint every N epochs, and the last and the best")
    resume: bool = _option(False, "continue the run in --output_dir from its newest checkpoint")
    resume_from_checkpoint: str | None = _option(
        None, "a checkpoint to continue from, or last: the newest complete one of the run"
    )
    allow_changed: str | None = _option(None, "settings, with commas, that may differ on resume")
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
        _refuse(self)
        _resolve(self)
        hardware.use_threads(self.num_threads)
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
    options, values = merge_options(defaults, user_options), ArgumentValues()
    for argument in fields(FinetuneArguments):
        factory = argument.default_factory
        default = argument.default if factory is MISSING else factory()
        setattr(values, argument.name, options.get(argument.name, default))
    values.use_cpu = values.use_cpu or not torch.accelerator.is_available()
    _refuse(values)
    _resolve(values)
    return values


def _matching_strategies(user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults that let the model be evaluated when it is saved, where the user changes one
    of the two: only then can the best one be kept.
    """
    names = ("eval_strategy", "save_strategy")
    strategies = {name: str(user_options[name]) for name in names if name in user_options}
    if "no" in strategies.values():
        return {"load_best_model_at_end": False}
    if len(strategies) != 1 or strategies.get("save_strategy") == "best":
        return {}
    defaults: dict[str, Any] = dict.fromkeys(names, *strategies.values())
    for name, other in (("eval_steps", "save_steps"), ("save_steps", "eval_steps")):
        if name in user_options:
            defaults[other] = user_options[name]
    return defaults


def shards(values: Any) -> bool:
    """Return whether FSDP is asked for, here or in the accelerate config."""
    return bool(values.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def _refuse(values: Any) -> None:
    """Refuse training arguments that contradict each other or the machine, all at once."""
    ranks, gpus = distributed.ranks(), torch.accelerator.device_count()
    save, evaluate = (
        getattr(strategy, "value", strategy)
        for strategy in (values.save_strategy, values.eval_strategy)
    )
    # what the library will decide once it looks at its own arguments
    compiles = values.torch_compile or values.torch_compile_backend or values.torch_compile_mode
    is_balanced = values.class_sampling == "balanced"
    sampling = values.train_sampling_strategy
    is_fp16 = values.fp16 or values.precision == "fp16"
    other_precision = {"bf16": "fp16", "fp16": "bf16"}.get(values.precision)
    rules: list[tuple[object, str]] = [
        (
            values.grace_seconds > 25 and "TORCHELASTIC_RUN_ID" in os.environ,
            f"--grace_seconds {values.grace_seconds:g}: torchrun ends its processes after 30 "
            "seconds; expected 25 or less",
        ),
        (
            ranks.world_size > 1 and not values.use_cpu and ranks.local_world_size > gpus,
            f"{ranks.local_world_size} processes on a machine with {gpus} GPUs: each needs its "
            f"own; use --nproc_per_node={gpus} or --use_cpu",
        ),
        (
            shards(values) and values.use_cpu,
            "--fsdp (or FSDP in the accelerate config) needs accelerators; leave it out on a CPU",
        ),
        (
            shards(values) and values.save_on_each_node,
            "--save_on_each_node with FSDP: use an --output_dir that the machines share instead",
        ),
        (
            is_fp16 and not values.bf16 and distributed.device_type(values.use_cpu) == "cpu",
            "--fp16 or --precision fp16: not supported on a CPU; expected bf16 or fp32",
        ),
        (
            (values.precision == "fp32" and (values.bf16 or values.fp16))
            or (other_precision and getattr(values, other_precision)),
            f"--precision {values.precision} and --bf16 or --fp16 are mutually exclusive: give one",
        ),
        (
            sampling == "batch_rebalance",  # steps would depend on the number of processes
            f"--train_sampling_strategy {sampling}: expected random, sequential or group_by_length",
        ),
        (
            "labels" not in (values.label_names or ["labels"]),
            "--label_names: the labels of a recipe are in the column 'labels'",
        ),
        (
            values.save_every > 1 and save != "epoch",
            "--save_every counts epochs: it needs --save_strategy epoch",
        ),
        (
            values.max_tokens_per_batch and (sampling != "group_by_length" or compiles),
            "--max_tokens_per_batch, whose steps differ in shape, needs --train_sampling_strategy "
            "group_by_length and no --torch_compile",
        ),
        (
            is_balanced and (values.max_tokens_per_batch or sampling == "sequential"),
            "--class_sampling balanced draws rows: it needs --global_batch_size, and "
            "--train_sampling_strategy random or group_by_length",
        ),
        (
            values.early_stopping_patience is not None
            and ("no" in (evaluate, save) or not values.load_best_model_at_end),
            "--early_stopping_patience counts evaluations and keeps the best model: it needs "
            "--eval_strategy and --save_strategy epoch (or steps), --load_best_model_at_end true",
        ),
        (
            not 0 < values.num_train_epochs < math.inf,
            f"--num_train_epochs {values.num_train_epochs}: expected more than 0",
        ),
        (
            values.max_steps < 1 and values.max_steps != -1,
            f"--max_steps {values.max_steps}: expected 1 or more, or -1 for whole epochs",
        ),
    ]
    mistakes = [f"--{name}: {reason}" for name, reason in _REFUSED.items() if getattr(values, name)]
    mistakes += [message for is_wrong, message in rules if is_wrong]
    for names, (lowest, bound) in _RANGES.items():
        below = f" and below {bound}" * (bound < math.inf)
        mistakes += [
            f"--{name} {value}: expected {lowest} or more{below}"
            for name in names
            if (value := getattr(values, name)) is not None and not lowest <= value < bound
        ]
    optimizer = str(getattr(values.optim, "value", values.optim))
    package = next((_OPTIMIZERS[part] for part in _OPTIMIZERS if part in optimizer), None)
    if package and find_spec(package.replace("-", "_")) is None:
        mistakes.append(f"--optim {optimizer}: not installed; pip install {package}")
    installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    trackers = [values.report_to] if isinstance(values.report_to, str) else values.report_to or []
    mistakes += [
        f"--report_to {name}: not installed{suggestion(name, INTEGRATION_TO_CALLBACK)}"
        for name in sorted(set(trackers) - {"none", "all", *installed})
    ]
    if mistakes:
        raise UserError(*mistakes)


def _resolve(values: Any) -> None:
    """Fill in what depends on launch and device, in place; doing it again changes nothing."""
    _resolve_batch(values)
    device_type = distributed.device_type(values.use_cpu)
    if not (values.bf16 or values.fp16):
        precision_name = values.precision
        if precision_name == "auto":
            precision_name = hardware.automatic_precision(device_type)
            if values.tf32 is None and device_type == "cuda" and is_torch_tf32_available():
                values.tf32 = True
        values.bf16, values.fp16 = precision_name == "bf16", precision_name == "fp16"
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
