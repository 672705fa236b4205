"""The precision that matrix products are computed in, and which one a device is faster in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch


def prefers_bf16(device_type: str) -> bool:
    """Return whether a device is known to multiply bf16 faster than fp32.

    That is ``cuda`` from Ampere on, and a ``cpu`` with AMX, or with AVX512-BF16 if it is not
    Intel's: two cores of a Xeon (model 207) whose AMX the hypervisor hides reached 168 GFLOP/s in
    bf16 and 302 in fp32. Of other devices nothing is known.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device_type != "cpu":
        return False
    has: Mapping[str, Any] = torch.cpu.get_capabilities()
    has_fast_bf16 = has.get("avx512_bf16") and not str(has.get("cpu_name", "")).startswith("Intel")
    return bool(has.get("amx_bf16") or has_fast_bf16)


def automatic(device_type: str) -> str:
    """Return what ``--precision auto`` takes: what ``accelerate`` was told, or what is fast."""
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    # "no" is also what its launcher says if nobody chose; on a CPU it computes nothing in fp16
    if requested == "bf16" or (requested == "fp16" and device_type != "cpu"):
        return requested
    return "bf16" if prefers_bf16(device_type) else "fp32"
