"""Rules about the launch, devices, precision and kernels."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import torch
from transformers import TrainingArguments

from finetune.rules.options import Mistakes, OptionValues
from finetune.runtime import distributed

#: The names of an option: of transformers 5.17 and later, and of all versions before 6.
_RECOMPUTATION = ("activation_checkpointing", "gradient_checkpointing")
#: The first of them that the installed version has.
RECOMPUTATION = next(name for name in _RECOMPUTATION if hasattr(TrainingArguments, name))


def uses_fsdp(arguments: SimpleNamespace | TrainingArguments) -> bool:
    """Return whether FSDP is requested, by an option or in the accelerate config."""
    return bool(arguments.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def recomputes(arguments: SimpleNamespace | TrainingArguments) -> bool:
    """Return whether the backward pass computes activations again."""
    return any(getattr(arguments, name, False) for name in _RECOMPUTATION)


def _require_launch(options: OptionValues) -> Mistakes:
    seconds = options.grace_seconds
    if seconds > 25 and "TORCHELASTIC_RUN_ID" in os.environ:
        yield f"--grace_seconds {seconds:g}: torchrun kills after 30 seconds; expected 25 or less"
    ranks = distributed.ranks()
    gpus = torch.accelerator.device_count()
    if ranks.world_size > 1 and not options.use_cpu and ranks.local_world_size > gpus:
        count = f"{ranks.local_world_size} processes on a machine with {gpus} GPUs"
        yield f"{count}: each needs its own; start {gpus}, or add --use_cpu"
    if uses_fsdp(options) and (options.use_cpu or options.save_on_each_node):
        flags = "accelerators and a shared --output_dir: no --use_cpu, no --save_on_each_node"
        yield f"--fsdp (or FSDP in the accelerate config) needs {flags}"


def _require_precision(options: OptionValues) -> Mistakes:
    if (options.fp16 or options.precision == "fp16") and options.use_cpu:
        yield "--fp16 or --precision fp16: not supported on a CPU; expected bf16 or fp32"
    if options.precision != "auto" and (options.bf16 or options.fp16):
        yield f"--precision {options.precision} and --bf16 or --fp16 are mutually exclusive"
    if options.tf32 and not torch.cuda.is_available():
        yield "--tf32 true: needs a GPU of NVIDIA, Ampere or newer"
    if options.fp16_full_eval and options.use_cpu:
        yield "--fp16_full_eval: not supported on a CPU; expected --bf16_full_eval"
    if (options.fp16_full_eval or options.bf16_full_eval) and options.fsdp:
        yield "--fp16_full_eval and --bf16_full_eval: not supported with --fsdp; use --precision"


def _require_libraries(options: OptionValues) -> Mistakes:
    if options.use_liger_kernel and options.use_cpu:
        yield "--use_liger_kernel: its kernels need a GPU"
    elif options.use_liger_kernel and find_spec("liger_kernel") is None:
        yield "--use_liger_kernel: not installed: pip install liger-kernel"
    backend = options.ddp_backend
    if backend and not torch.distributed.is_backend_available(backend):
        yield f"--ddp_backend {backend}: this build of torch does not have it"
    elif backend not in (None, "gloo", "mpi") and options.use_cpu:
        yield f"--ddp_backend {backend}: needs accelerators; on CPUs expected gloo"


RULES = (_require_launch, _require_precision, _require_libraries)
