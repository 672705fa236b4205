"""Fast training and prediction on a CPU: attention, dropout, linear layers and memory.

A kernel falls back to torch or ``transformers`` for inputs it does not support. ``--cpu_kernels
off`` disables all kernels, and also :mod:`finetune.models.cpu.exchange`, which the trainer sets up
once DDP has wrapped the model. docs/performance.md has the measured gain of each.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _keep_large_blocks() -> None:
    """Let glibc reuse freed blocks of up to 1 GiB (32 MiB with an old glibc) in this process,
    unless the user has set a threshold.

    By default glibc maps a large block again for each allocation, and Linux fills new pages with
    zeros: allocating a tensor of 3 MB takes longer than computing the GELU that fills it. Other C
    libraries have no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    variables = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}
    if mallopt is not None and variables.isdisjoint(os.environ):
        # -3 is M_MMAP_THRESHOLD in <malloc.h>; its maximum before glibc 2.35 is 2**25 on 64 bits
        if not mallopt(-3, 2**30):
            mallopt(-3, 2**25)
        mallopt(-1, 2**30)  # -1 is M_TRIM_THRESHOLD


def for_training(model: torch.nn.Module, *, bf16: bool, recomputes: bool) -> None:
    """Make ``model`` use every kernel that supports it in training and evaluation, in place.

    Results differ from those of ``transformers`` by rounding and by the random dropout masks.

    Args:
        model: On the CPU. If it is not a model of ``transformers``, only :func:`_keep_large_blocks`
            applies.
        bf16: Whether matrix products are in bf16; in fp32 torch's attention is faster with padding.
        recomputes: Whether the backward pass computes activations again (gradient checkpointing);
            it may then pass the layers a mask without the positions of the sequences.
    """
    from transformers import PreTrainedModel

    from finetune.models import families
    from finetune.models.cpu import attention, layers, unpadded

    _keep_large_blocks()
    if not isinstance(model, PreTrainedModel):
        return
    layers.use_dropout(model)
    recomputes |= any(getattr(layer, "gradient_checkpointing", False) for layer in model.modules())
    if not recomputes:
        unpadded.use(model)
    # only torch's kernel supports attention dropout
    if bf16 and not any(families.dropouts(model.config, "attention_dropout").values()):
        attention.use(model)


def for_inference(model: torch.nn.Module, *, bf16: bool) -> None:
    """Make ``model``, on the CPU, use every kernel that supports it in prediction, in place. It
    cannot be trained afterwards. Attention is only replaced in bf16, on CPUs that are faster in it.
    """
    from finetune.models.cpu import attention, layers
    from finetune.runtime import hardware

    _keep_large_blocks()
    if bf16 and hardware.prefers_bf16("cpu"):
        attention.use(model)
    layers.pack(model)
