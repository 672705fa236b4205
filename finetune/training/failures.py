"""A full disk and exhausted memory, explained in a sentence with the flags that help."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from finetune.errors import RunError
from finetune.training import checkpoint

if TYPE_CHECKING:
    from finetune.training.arguments import FinetuneArguments

#: What torch, safetensors and the libraries of accelerators say, without a type of their own.
_DISK = ("PytorchStreamWriter failed", "unexpected pos", "No space left", "File too large")
_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate",
)


@contextlib.contextmanager
def explain_full_disk(directory: Path, work: str, unfinished: Path | None = None) -> Iterator[None]:
    """Raise one sentence where a file cannot be written for lack of space.

    Args:
        directory: Of the run.
        work: What fails, like ``writing checkpoint-9``.
        unfinished: The checkpoint that is being written; it is removed.

    Raises:
        RunError: Instead of whatever the libraries raise where they cannot write.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not _is_full(error):
            raise
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
            checkpoint.restore_replaced(directory)
        paths = checkpoint.list_checkpoints(directory)
        last = f"; {paths[0].name} is complete" if paths else ""
        free = shutil.disk_usage(directory).free / 1e6
        raise RunError(
            f"the disk of {directory} is full: {work} failed, {free:,.0f} MB are free{last}. Free "
            "some space, then add --resume; smaller: --save_total_limit 1, or --save_only_model "
            "true"
        ) from error


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if any(text in str(error) for text in _DISK):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def explain_memory(arguments: FinetuneArguments, work: str, *, is_training: bool) -> Iterator[None]:
    """Raise one sentence with the flags that lower the memory where an allocation failed.

    Where Linux runs out of memory it kills the process, and nothing can be said.

    Args:
        arguments: Of the training.
        work: What failed, like ``step 9, a micro-batch of 16 rows``.
        is_training: Whether it was a step, or else an evaluation.

    Raises:
        RunError: Instead of the error of the library.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not is_memory and not any(text in str(error) for text in _MEMORY):
            raise
        device = "the CPU" if arguments.device.type == "cpu" else str(arguments.device)
        rows = arguments.per_device_eval_batch_size or 1
        advice = f"--per_device_eval_batch_size {max(1, rows // 2)}"
        if is_training:
            advice = ", ".join(_memory_flags(arguments))
        raise RunError(f"out of memory on {device} in {work}: try {advice}") from error


def _memory_flags(arguments: FinetuneArguments) -> list[str]:
    """Return the flags that lower the memory of a step, those first that change no result."""
    rows = arguments.per_device_train_batch_size or 1
    flags = []
    if rows > 1 or arguments.max_tokens_per_batch:
        factor = next((number for number in range(2, rows + 1) if rows % number == 0), 2)
        steps = arguments.gradient_accumulation_steps * factor
        flags.append(f"--gradient_accumulation_steps {steps} (the same global batch)")
    if not arguments.gradient_checkpointing:
        flags.append("--gradient_checkpointing true")
    if not (arguments.bf16 or arguments.fp16):
        flags.append("--precision bf16")
    return [*flags, "a smaller --max_length or --global_batch_size"]
