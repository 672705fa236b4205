"""``TrainingArguments`` and the few of ours, resolved for the launch at hand."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils.import_utils import is_in_notebook

from finetune.errors import UserError
from finetune.runtime import distributed, threads
from finetune.training import checks
from finetune.training.resolution import resolve

#: The subcommands imply these, or the launcher sets them.
REFUSED = ("do_train", "do_eval", "do_predict", "local_rank")


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(repr=False)  # the library's hides tokens
class FinetuneArguments(TrainingArguments):
    """Every field of ``TrainingArguments`` under its own name, and these.

    After construction ``global_batch_size`` equals ``per_device_train_batch_size`` x
    ``gradient_accumulation_steps`` x processes (x GPUs under DataParallel), whichever of them was
    given; with ``max_tokens_per_batch`` it is None, as rows are not counted then.
    """

    per_device_train_batch_size: int | None = _option(  # type: ignore[assignment]
        None,
        "rows per micro-batch on one device; replaces --global_batch_size, so that the global "
        "batch grows with the processes",
    )
    per_device_eval_batch_size: int | None = _option(  # type: ignore[assignment]
        None,
        "rows per batch on one device in evaluation (unset: 32 on a CPU, whose cache they fit, "
        "128 elsewhere)",
    )
    global_batch_size: int | None = _option(
        None, "rows per optimizer step, over all devices and micro-batches"
    )
    max_tokens_per_batch: int | None = _option(
        None,
        "tokens per optimizer step, padding included, over all devices and micro-batches, "
        "instead of a number of rows",
    )
    class_sampling: str = _option(
        "none",
        "rows of an epoch: none, each at most once; or balanced, as many of each class, where rows "
        "of rare classes repeat",
    )
    save_every: int = _option(
        1, "keep a checkpoint every N epochs; the last and the best are always kept"
    )
    resume: bool = _option(
        False,
        "continue the run in --output_dir from its newest complete checkpoint, or start where it "
        "has none; a finished run shows its results",
    )
    resume_from_checkpoint: str | None = _option(
        None,
        "a checkpoint to continue from, or last: the newest complete one of the run, which must "
        "have one",
    )
    allow_changed: str | None = _option(
        None,
        "settings, separated by commas, that may differ from those of the run that is resumed",
    )
    grace_seconds: float = _option(
        20.0,
        "seconds after SIGTERM, SIGINT, SIGHUP or SIGUSR1 in which a step is finished and saved; "
        "then the process ends",
    )
    early_stopping_patience: int | None = _option(
        None,
        "stop after N evaluations in a row without a better metric_for_best_model; the learning-"
        "rate schedule still spans all epochs (unset: train to the end)",
    )
    num_threads: int | None = _option(
        None,
        "CPU threads per process (unset: the cores of the machine divided by its processes)",
    )
    precision: str = _option(
        "auto",
        "precision of matrix products: auto, fp32, bf16 or fp16 (auto: bf16 where the device "
        "supports it natively); --bf16 and --fp16 take precedence",
    )
    cpu_kernels: str = _option(
        "auto",
        "on a CPU: auto for the kernels of this toolkit where they support the model (attention, "
        "dropout, padding, memory allocation, gradient averaging), off for those of the "
        "libraries; no effect elsewhere",
    )
    profile: int | None = _option(None, "profile N steps after the first two")
    baseline: bool = _option(True, "fit a bag-of-words baseline on the same rows, to compare with")
    dataloader_num_workers: int | None = _option(  # type: ignore[assignment]
        None,
        "worker processes that collate batches ahead (unset: 2 with a GPU, none on a CPU)",
    )
    dataloader_drop_last: bool = _option(
        False,
        "leave it out: training always drops an incomplete last step, an evaluation takes every "
        "row",
    )
    logging_nan_inf_filter: bool = _option(
        False,
        "hide losses that are not finite from the log, which synchronizes the GPU at each step",
    )
    ddp_find_unused_parameters: bool | None = _option(
        False, "let DDP search for parameters that a step does not use (slower)"
    )

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
        return bool(super().should_save) and not self.__dict__.get("_held_back", False)

    @contextlib.contextmanager
    def nothing_written(self) -> Iterator[None]:
        """Keep ``Trainer.__init__`` from making the output directory."""
        self.__dict__["_held_back"] = True
        try:
            yield
        finally:
            del self.__dict__["_held_back"]


class ArgumentValues(SimpleNamespace):
    """Training arguments as values, complete, checked and with the batch divided.

    Nothing is built, so no device is touched and no process group is joined.
    """

    def build(self) -> FinetuneArguments:
        """Return the training arguments; in a job of several processes the group must exist.

        Raises:
            UserError: in the library's words, if they contradict each other.
        """
        try:
            return FinetuneArguments(**vars(self))
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error


def resolve_values(options: Mapping[str, Any]) -> ArgumentValues:
    """Return the values of all training arguments: those in ``options``, and defaults.

    Raises:
        UserError: what is wrong with them, as far as the toolkit's own rules go.
    """
    values = ArgumentValues()
    for argument in fields(FinetuneArguments):
        if argument.default_factory is not MISSING:
            setattr(values, argument.name, argument.default_factory())
        elif argument.init:
            default = None if argument.default is MISSING else argument.default
            setattr(values, argument.name, default)
    vars(values).update(options)
    values.use_cpu = values.use_cpu or not torch.accelerator.is_available()
    checks.refuse(values)
    resolve(values)
    return values
