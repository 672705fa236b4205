"""``TrainingArguments`` with a few more fields: from flags and defaults to values for this launch.

Values that contradict each other or the machine are refused before ``TrainingArguments`` is built,
because building it joins the process group.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

import torch
from transformers import SchedulerType, TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.optimization import get_scheduler
from transformers.utils.import_utils import is_in_notebook

from finetune.errors import Findings, UserError
from finetune.rules.check import check_arguments
from finetune.rules.options import OptionValues
from finetune.runtime import distributed, hardware
from finetune.statistics.metrics import DIRECTIONS
from finetune.training import options

#: Set by the verb or by the launcher; they are no options.
REFUSED = ("do_train", "do_eval", "do_predict", "local_rank")


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(repr=False)  # the library's hides tokens
class FinetuneArguments(TrainingArguments):
    """All fields of ``TrainingArguments``, and these.

    ``global_batch_size`` is ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x
    devices, whichever of them was given; None with ``max_tokens_per_batch``.
    """

    learning_rate: float | None = _option(  # type: ignore[assignment]
        None, "highest learning rate (unset: by the size of the model)"
    )
    num_train_epochs: float | None = _option(  # type: ignore[assignment]
        None, "passes over the training rows (unset: by rows and outputs)"
    )
    warmup_steps: float | None = _option(  # type: ignore[assignment]
        None, "steps, or share of them, in which the learning rate rises (unset: 0.1)"
    )
    per_device_train_batch_size: int | None = _option(  # type: ignore[assignment]
        None, "rows per micro-batch on one device, instead of --global_batch_size"
    )
    per_device_eval_batch_size: int | None = _option(  # type: ignore[assignment]
        None, "rows per batch on one device in evaluation (unset: 32 on a CPU, 128 elsewhere)"
    )
    global_batch_size: int | None = _option(None, "rows per optimizer step, over all devices")
    max_tokens_per_batch: int | None = _option(None, "tokens per optimizer step, with padding")
    class_sampling: Literal["none", "balanced"] = _option("none", "balanced: as many of each class")
    final_epochs: float | None = _option(
        None, "epochs on training and validation rows at the end (unset: 3 where rows are few)"
    )
    refit: bool = _option(
        False, "train again from the start on training and validation rows, in RUN/refit"
    )
    max_minutes: float | None = _option(None, "train for M minutes, timed by the first steps")
    resume: bool = _option(False, "continue the run in --output_dir from its newest checkpoint")
    resume_from_checkpoint: str | None = _option(None, "a checkpoint, or last: the newest complete")
    allow_changed: str | None = _option(None, "settings, with commas, that may differ on resume")
    grace_seconds: float = _option(20.0, "seconds after a signal to finish a step and save")
    early_stopping_patience: int | None = _option(None, "stop after N evaluations without a gain")
    num_threads: int | None = _option(None, "CPU threads per process (unset: a share of the cores)")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _option(
        "auto", "precision of matrix products (auto: bf16 where the device has it)"
    )
    cpu_kernels: Literal["auto", "off"] = _option("auto", "off: on a CPU those of the libraries")
    profile: int | None = _option(None, "profile N steps after the first two")
    baseline: bool = _option(True, "fit baselines on the same rows, to compare with")
    dataloader_num_workers: int | None = _option(  # type: ignore[assignment]
        None, "worker processes that collate batches ahead (unset: 2 with a GPU, none on a CPU)"
    )
    eval_do_concat_batches: bool = _option(False, "always false: they are put together once")

    builds_trainer = False

    def __post_init__(self) -> None:
        if self.disable_tqdm is None:  # the library would decide by its log level
            self.disable_tqdm = not (sys.stderr.isatty() or is_in_notebook())
        hardware.use_threads(self.num_threads)
        super().__post_init__()  # type: ignore[no-untyped-call]
        if not (self.bf16 or self.fp16):  # or it were that of ACCELERATE_MIXED_PRECISION
            self.mixed_precision = "no"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out, as the library pickles the arguments into every checkpoint."""
        return {**self.__dict__, "hub_token": None}

    @property
    def device(self) -> torch.device:
        """The device of this process; of a CPU without the index that some processes have, because
        transformers 5.16 loads the optimizer of a checkpoint to it, which torch refuses.
        """
        device = super().device
        if device.type == "cpu":
            return torch.device("cpu")
        return device

    @property
    def should_save(self) -> bool:
        """Whether this process writes; False while a trainer is built."""
        return bool(super().should_save) and not self.builds_trainer


class ArgumentValues(SimpleNamespace):
    """Training arguments as values, complete, checked and with the batch divided.

    Making it touches no device and joins no process group.
    """

    def build(self) -> FinetuneArguments:
        """Return the training arguments; with several processes the group must exist.

        Raises:
            UserError: If they contradict each other, in the words of the library.
        """
        try:
            arguments = FinetuneArguments(**vars(self))
        except (ValueError, ImportError, OSError) as error:
            raise UserError(str(error)) from error
        name = SchedulerType(arguments.lr_scheduler_type)
        kwargs: Any = arguments.lr_scheduler_kwargs
        try:  # the library creates it only when the training has begun
            get_scheduler(name, torch.optim.SGD([torch.zeros(1)]), 1, 2, kwargs)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"--lr_scheduler_type {name.value} --lr_scheduler_kwargs {kwargs}: {error}"
            ) from error
        return arguments


def training_names() -> set[str]:
    """Return the names of the training arguments that can be set."""
    return {argument.name for argument in fields(FinetuneArguments)} - set(REFUSED)


def argument_values(defaults: Mapping[str, Any], user_options: Mapping[str, Any]) -> ArgumentValues:
    """Return the checked values of the training arguments: those of the user override the defaults
    of the recipe.

    Raises:
        UserError: If one is unknown, or if they contradict each other.
    """
    names = training_names()
    hints = get_type_hints(FinetuneArguments)
    user_options = dict(user_options)
    for name in options.SCHEDULE:
        if user_options.get(name) is None:
            user_options.pop(name, None)
    merged = {**defaults, **user_options}
    report = Findings()
    options.check_types(merged, {name: hints[name] for name in names}, report)
    report.raise_errors()
    defaults = {**defaults, **_default_strategies(user_options)}
    if user_options.get("max_tokens_per_batch") is not None:
        defaults["train_sampling_strategy"] = "group_by_length"
    best = merged.get("metric_for_best_model")
    if DIRECTIONS.get(str(best).removeprefix("eval_")) == -1:  # the library knows only the loss
        defaults.setdefault("greater_is_better", False)
    values = ArgumentValues(include_for_metrics=[])  # a default factory, the others are values
    for name in names - {"include_for_metrics"}:
        setattr(values, name, getattr(FinetuneArguments, name))
    vars(values).update(options.merge_options(defaults, user_options))
    values.use_cpu = values.use_cpu or not torch.accelerator.is_available()
    check_arguments(OptionValues(typed=user_options, **vars(values)))
    _resolve(values)
    return values


def _default_strategies(user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that follow from ``--eval_strategy`` and ``--save_strategy``."""
    names = "eval_strategy", "save_strategy"
    strategies = [user_options[name] for name in names if user_options.get(name)]
    if "no" in strategies:
        return {"load_best_model_at_end": False}
    if len(strategies) != 1 or strategies == ["best"]:
        return {}
    defaults = dict.fromkeys(names, strategies[0])  # the best one must be saved
    if steps := user_options.get("eval_steps", user_options.get("save_steps")):
        defaults |= {"eval_steps": steps, "save_steps": steps}
    return defaults


def shard_embeddings_once(plugin: Any, model: Any) -> None:
    """Let FSDP2 wrap the layers of the model, but not the module around the input embeddings.

    Accelerate (1.15) wraps the embeddings separately, and fails if the module around them, like
    ``BertEmbeddings``, is wrapped too, which it is by default.
    """
    names = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            names.add(type(module).__name__)
    if plugin.fsdp_version == 2 and names and not plugin.transformer_cls_names_to_wrap:
        plugin.transformer_cls_names_to_wrap = sorted(names)


def _resolve(values: ArgumentValues) -> None:
    """Fill in what depends on launch and device, in place."""
    values.final_epochs = values.final_epochs or 0.0
    for name in options.SCHEDULE:
        if getattr(values, name) is None:  # of a recipe without a pretrained model
            setattr(values, name, getattr(TrainingArguments, name))
    _resolve_batch(values)
    device_type = distributed.device(values.use_cpu).type
    is_cuda = device_type == "cuda"
    if not (values.bf16 or values.fp16):
        automatic = hardware.automatic_precision(device_type)
        name = automatic if values.precision == "auto" else values.precision
        values.bf16, values.fp16 = name == "bf16", name == "fp16"
    # collate and copy batches while the GPU computes
    if values.dataloader_num_workers is None:
        values.dataloader_num_workers = 2 if is_cuda else 0
    if is_cuda and values.dataloader_pin_memory and values.accelerator_config is None:
        values.accelerator_config = {"non_blocking": True}
    if distributed.ranks().world_size == 1:  # the library would join a group
        values.ddp_backend = None
    values.label_names = ["labels"]  # the library would look at the signature of `forward`
    if values.per_device_eval_batch_size is None:
        values.per_device_eval_batch_size = 32 if device_type == "cpu" else 128


def _resolve_batch(values: ArgumentValues) -> None:
    if values.max_tokens_per_batch is not None:
        values.per_device_train_batch_size = 8  # the default of the library, as below; not used
        values.global_batch_size = None
        return
    shares = distributed.devices_in_training(values.use_cpu) * values.gradient_accumulation_steps
    if values.global_batch_size is None:
        values.global_batch_size = (values.per_device_train_batch_size or 8) * shares
    values.per_device_train_batch_size = values.global_batch_size // shares
