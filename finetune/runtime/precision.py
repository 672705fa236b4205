"""The precision that matrix products are computed in, and what a device multiplies natively."""

from __future__ import annotations

import os

import torch

CHOICES = ("auto", "fp32", "bf16", "fp16")


def native_bf16(device_type: str) -> bool:
    """Return whether a device multiplies bf16 itself, and so at least as fast as fp32.

    That is ``cpu`` with AVX512-BF16 or AMX and ``cuda`` from Ampere on; of others nothing is known.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device_type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def automatic(device_type: str) -> str:
    """Return what ``--precision auto`` takes: what ``accelerate`` was told, or what is fast."""
    told = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    # "no" is also what its launcher says if nobody chose; on a CPU it computes nothing in fp16
    if told == "bf16" or (told == "fp16" and device_type != "cpu"):
        return told
    return "bf16" if native_bf16(device_type) else "fp32"


def dtype(*, bf16: bool, fp16: bool) -> torch.dtype:
    """Return the type of the matrix products under these training arguments."""
    return torch.bfloat16 if bf16 else torch.float16 if fp16 else torch.float32
