"""``TrainingArguments`` plus the few of ours, with the global batch resolved for the launch at
hand.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.utils.import_utils import is_in_notebook, is_torch_tf32_available

from finetune import cpu, job, precision, threads
from finetune.errors import UserError, suggestion

#: The verbs of the command line say these, or the launcher does.
REFUSED = ("do_train", "do_eval", "do_predict", "local_rank")


@dataclass
class FinetuneArguments(TrainingArguments):
    """Every field of ``TrainingArguments`` under its own name, and these.

    After construction ``global_batch_size`` equals ``per_device_train_batch_size`` x
    ``gradient_accumulation_steps`` x processes (x GPUs under DataParallel), whichever of them was
    given; with ``max_tokens_per_batch`` it is None, as rows are not counted then.
    """

    per_device_train_batch_size: int | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "rows of a micro-batch on one device; takes over from the global batch, "
            "which then grows with the processes"
        },
    )
    per_device_eval_batch_size: int | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "rows of a batch on one device in evaluation (unset: 32 on a CPU, whose cache "
            "they fit, 128 elsewhere)"
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={"help": "rows of an optimizer step over all devices and micro-batches"},
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "tokens of an optimizer step, padding included, over all devices and "
            "micro-batches, instead of a number of rows"
        },
    )
    save_every: int = field(
        default=1,
        metadata={
            "help": "keep a checkpoint every N epochs; the last and the best are always kept"
        },
    )
    num_threads: int | None = field(
        default=None,
        metadata={
            "help": "CPU threads of each process (unset: the cores of the machine, shared by its "
            "processes)"
        },
    )
    precision: str = field(
        default="auto",
        metadata={
            "help": "of the matrix products: auto, fp32, bf16 or fp16 (auto: bf16 where the device "
            "multiplies in it); --bf16 and --fp16 win"
        },
    )
    cpu_kernels: str = field(
        default="auto",
        metadata={
            "help": "on a CPU: auto for the kernels of this toolkit where they know the model, off "
            "for those of the libraries only (attention, dropout, padding, memory allocation, "
            "gradient averaging); no effect elsewhere"
        },
    )
    profile: int | None = field(
        default=None,
        metadata={"help": "trace N steps after the first two, and say where their time goes"},
    )
    baseline: bool = field(
        default=True,
        metadata={"help": "fit a bag of words on the same rows, for the model to beat"},
    )
    dataloader_num_workers: int | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "processes that collate batches ahead (unset: 2 where there is a GPU to wait "
            "for them, none on a CPU)"
        },
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={
            "help": "hide losses that are not finite from the log; a GPU is waited for at each "
            "step to find them"
        },
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False,
        metadata={"help": "let DDP look for parameters that a step does not use (slower)"},
    )

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # without it the library refuses --bf16 there
        if self.disable_tqdm is None:  # the library would go by how quiet its log is
            watched = sys.stderr.isatty() or is_in_notebook()
            self.disable_tqdm = job.ranks().rank != 0 or not watched
        self._refuse()
        self._resolve_batch()
        self._resolve_precision()
        self._resolve_loading()
        threads.use(self.num_threads)
        super().__post_init__()  # type: ignore[no-untyped-call]

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> FinetuneArguments:
        """A draft with the batch resolved, without the device that construction touches.

        Construction joins the process group where there is one; this can be called on rank 0 alone.

        Args:
            given: Fields by name; the others have their defaults.

        Raises:
            UserError: what is wrong with them, as far as ours go.
        """
        draft = object.__new__(cls)
        for each in fields(cls):
            default = each.default if each.default is not MISSING else None
            setattr(draft, each.name, given.get(each.name, default))
        draft.use_cpu = draft.use_cpu or not torch.accelerator.is_available()
        draft._refuse()
        draft._resolve_batch()
        return draft

    def _refuse(self) -> None:
        mistakes = []
        if self.dataloader_drop_last:
            mistakes.append(
                "--dataloader_drop_last would drop evaluation rows too; in training an incomplete "
                "last step is always left out"
            )
        if self.train_sampling_strategy == "batch_rebalance":
            mistakes.append(
                "--train_sampling_strategy batch_rebalance: the steps would depend on the number "
                "of processes; expected random, sequential or group_by_length"
            )
        if self.auto_find_batch_size:
            mistakes.append(
                "--auto_find_batch_size would change the global batch in the middle; raise "
                "--gradient_accumulation_steps instead"
            )
        if not self.average_tokens_across_devices:
            mistakes.append(
                "--average_tokens_across_devices false: the loss would depend on the number of "
                "processes; leave it out"
            )
        installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
        wanted = [self.report_to] if isinstance(self.report_to, str) else self.report_to or []
        for name in sorted(set(wanted) - {"none", "all", *installed}):
            mistakes.append(
                f"--report_to {name}: not installed (there are: none, "
                f"{', '.join(installed) or 'no others'})"
            )
        here = job.ranks().local_world_size
        if (
            job.ranks().world_size > 1
            and not self.use_cpu
            and here > (there := torch.accelerator.device_count())
        ):
            mistakes.append(
                f"{here} processes on a machine with {there} GPU{'s' * (there > 1)}: each needs "
                f"one of its own; --nproc_per_node={there}, or --use_cpu"
            )
        if self.shards and self.use_cpu:
            named = "--fsdp" if self.fsdp else "FSDP in the accelerate config"
            mistakes.append(
                f"{named}: the library shards on accelerators only, and would run DDP on this "
                "CPU; leave it out"
            )
        if self.shards and self.save_on_each_node:
            mistakes.append(
                "--save_on_each_node: FSDP gathers the whole model on rank 0 only; name an "
                "--output_dir that the machines share instead"
            )
        if not self.num_train_epochs > 0 and not self.max_steps > 0:
            mistakes.append(f"--num_train_epochs {self.num_train_epochs}: expected more than 0")
        if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
            mistakes.append(f"--learning_rate {self.learning_rate}: expected 0 or more")
        if (
            self.save_every > 1
            and str(getattr(self.save_strategy, "value", self.save_strategy)) != "epoch"
        ):
            mistakes.append("--save_every counts epochs: it needs --save_strategy epoch")
        if self.save_every < 1:
            mistakes.append(f"--save_every {self.save_every}: expected 1 or more epochs")
        for name in (
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "global_batch_size",
            "max_tokens_per_batch",
        ):
            value, unit = getattr(self, name), "tokens" if "tokens" in name else "rows"
            if value is not None and value < 1:
                mistakes.append(f"--{name} {value}: expected 1 or more {unit}")
        if self.max_tokens_per_batch and self._compiles:
            mistakes.append(
                "--max_tokens_per_batch with --torch_compile: every step would have another shape, "
                "and be compiled; give a number of rows"
            )
        if self.max_tokens_per_batch and self.train_sampling_strategy != "group_by_length":
            mistakes.append(
                "--max_tokens_per_batch makes steps of rows of like length: it needs "
                "--train_sampling_strategy group_by_length, and rows with a length"
            )
        if self.precision not in precision.CHOICES:
            mistakes.append(
                f"--precision {self.precision}: expected {', '.join(precision.CHOICES[:-1])} or "
                f"{precision.CHOICES[-1]}{suggestion(self.precision, precision.CHOICES)}"
            )
        if self.cpu_kernels not in cpu.CHOICES:
            mistakes.append(
                f"--cpu_kernels {self.cpu_kernels}: expected {' or '.join(cpu.CHOICES)}"
                f"{suggestion(self.cpu_kernels, cpu.CHOICES)}"
            )
        fp16 = "--fp16" if self.fp16 else "--precision fp16" if self.precision == "fp16" else ""
        if fp16 and not self.bf16 and self._device_type == "cpu":
            mistakes.append(f"{fp16}: on a CPU nothing computes in it; expected bf16 or fp32")
        for flag in ("bf16", "fp16"):
            if getattr(self, flag) and self.precision not in ("auto", flag):
                mistakes.append(
                    f"--precision {self.precision} and --{flag} contradict each other: give one"
                )
        if self.num_threads is not None and self.num_threads < 1:
            mistakes.append(f"--num_threads {self.num_threads}: expected 1 or more")
        if self.profile is not None and self.profile < 1:
            mistakes.append(f"--profile {self.profile}: expected 1 or more steps")
        if self.gradient_accumulation_steps < 1:
            mistakes.append(
                f"--gradient_accumulation_steps {self.gradient_accumulation_steps}: "
                "expected 1 or more"
            )
        if mistakes:
            raise UserError(*mistakes)

    @property
    def shards(self) -> bool:
        """Whether FSDP was asked for, here or in the accelerate config."""
        return bool(self.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"

    @property
    def _compiles(self) -> bool:
        """Whether the library will, before it has looked at its own arguments."""
        named = self.torch_compile_backend or self.torch_compile_mode
        return self.torch_compile or named is not None

    def _resolve_precision(self) -> None:
        if self.bf16 or self.fp16:
            return
        wanted = self.precision
        if wanted == "auto":
            wanted = precision.automatic(self._device_type)
            if self.tf32 is None and self._device_type == "cuda" and is_torch_tf32_available():
                self.tf32 = True
        self.bf16, self.fp16 = wanted == "bf16", wanted == "fp16"

    def _resolve_loading(self) -> None:
        """Batches are collated and copied while the GPU computes."""
        on_gpu = self._device_type == "cuda"
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 2 if on_gpu else 0
        if on_gpu and self.dataloader_pin_memory and self.accelerator_config is None:
            self.accelerator_config = {"non_blocking": True}

    @property
    def _device_type(self) -> str:
        device = None if self.use_cpu else torch.accelerator.current_accelerator()
        return "cpu" if device is None else device.type

    def _resolve_batch(self) -> None:
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = 32 if self._device_type == "cpu" else 128
        if self.max_tokens_per_batch is not None:
            self.per_device_train_batch_size = 8  # the library's; it divides no data
            self.global_batch_size = None
            return
        devices = job.devices_in_training(self.use_cpu)
        shares = devices * self.gradient_accumulation_steps
        if self.per_device_train_batch_size is None:
            if self.global_batch_size is None:
                self.global_batch_size = 8 * shares  # the library's 8 rows a device
            self.per_device_train_batch_size, rest = divmod(self.global_batch_size, shares)
            if rest or not self.per_device_train_batch_size:
                below = self.global_batch_size // shares * shares
                nearest = f"{below} or {below + shares}" if below else f"{shares}"
                raise UserError(
                    f"a global batch of {self.global_batch_size} rows does not divide into "
                    f"{devices} devices x "
                    f"{self.gradient_accumulation_steps} accumulation steps; the nearest "
                    f"that does: --global_batch_size {nearest}"
                )
        else:
            self.global_batch_size = self.per_device_train_batch_size * shares
