"""What makes training and prediction fast on a CPU: attention, dropout, layers, memory.

Each kernel leaves what it does not support to torch and to ``transformers``. ``--cpu_kernels off``
switches them off, with :mod:`finetune.models.cpu.exchange`, which the trainer sets up once DDP has
wrapped the model. docs/performance.md has what each brings.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Values of ``--cpu_kernels``.
CHOICES = ("auto", "off")


def _keep_large_blocks() -> None:
    """Let this process keep freed blocks of up to 1 GiB (32 MiB with an old glibc), unless the user
    set a threshold.

    glibc maps a block of megabytes anew each time it is asked for, and the kernel fills its pages
    with zeros at the first touch: a tensor of 3 MB costs more than the GELU that fills it. Kept
    blocks are warm. Other C libraries have no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    variables = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}
    if mallopt is not None and variables.isdisjoint(os.environ):
        # M_MMAP_THRESHOLD of <malloc.h>; 2**25 is the most that glibc took before 2.35, on 64 bits
        any(mallopt(-3, size) for size in (2**30, 2**25))
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD


def for_training(model: torch.nn.Module, *, bf16: bool, recomputes: bool) -> None:
    """Let ``model`` train and be evaluated with every kernel that supports it; in place.

    Results differ from the library's by rounding and by the dropout masks that are drawn.

    Args:
        model: On the CPU. Of a model that is not of ``transformers`` only the memory is kept.
        bf16: Whether matrix products are in bf16; in fp32 torch's attention is faster with padding.
        recomputes: Whether activations are computed again in the backward pass, which may hand the
            layers a mask that does not know where the sequences lie.
    """
    from transformers import PreTrainedModel

    from finetune.models import families
    from finetune.models.cpu import attention, layers, unpadded

    _keep_large_blocks()
    if not isinstance(model, PreTrainedModel):
        return
    layers.use_dropout(model)
    if not recomputes and not model.is_activation_checkpointing:
        unpadded.use(model)
    # only torch's kernel drops attention weights
    if bf16 and not any(families.dropouts(model.config, "attention_dropout").values()):
        attention.use(model)


def for_inference(model: torch.nn.Module, *, bf16: bool) -> None:
    """Let ``model``, on the CPU and perhaps in bf16, predict with every kernel that supports it; in
    place, and for good. Where a CPU is slower in bf16, so is our attention.
    """
    from finetune.models.cpu import attention, layers
    from finetune.runtime import hardware

    _keep_large_blocks()
    if bf16 and hardware.prefers_bf16("cpu"):
        attention.use(model)
    layers.pack(model)
