"""Floating-point operations: those that a model asks for, and those that a device does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from finetune.models.cpu import attention

_LENGTHS = (8, 16, 24)
_SECONDS = 0.1  # of multiplying


@dataclass(frozen=True)
class Flops:
    """Of a forward and a backward pass: ``row + token * tokens + pair * tokens ** 2`` for each
    row.
    """

    row: float  # the head, or all of it where rows have no tokens
    token: float = 0.0  # the layers
    pair: float = 0.0  # the attention

    def of(self, rows: float, tokens: float, pairs: float) -> float:
        """Return those of so many rows, with their tokens and pairs of tokens in all."""
        return self.row * rows + self.token * tokens + self.pair * pairs


def first_row(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of the first row alone, which does not hold the memory of the others."""
    return {
        name: value[:1].clone() if isinstance(value, torch.Tensor) and value.ndim else value
        for name, value in batch.items()
    }


def of_model(model: torch.nn.Module, row: Mapping[str, Any]) -> Flops:
    """Return what ``model`` multiplies in training, counted by torch in passes over one row.

    Of parameters that are not trained only what the others need is counted, as it is computed.
    ``row`` is a batch of one; if it has ``input_ids``, three short lengths of it are computed.

    Raises:
        ValueError: if the model pads rows to a length of its own.
    """
    if (tokens := row.get("input_ids")) is None:
        return Flops(row=_count(model, row))
    counts = []
    for length in _LENGTHS:
        columns = torch.zeros(length, dtype=torch.long, device=tokens.device)
        same = {
            name: value[:, columns] if getattr(value, "shape", ()) == tokens.shape else value
            for name, value in row.items()
        }
        counts.append(_count(model, same))
    if counts[0] == counts[-1]:
        raise ValueError("short rows are computed like long ones")
    pair, token, constant = np.polyfit(_LENGTHS, counts, deg=2)
    return Flops(row=round(constant), token=round(token), pair=round(pair))


def _count(model: torch.nn.Module, row: Mapping[str, Any]) -> int:
    training = model.training
    model.eval()
    counter = FlopCounterMode(display=False)
    trained = [each for each in model.parameters() if each.requires_grad]
    try:  # torch cannot count its fused attention on a CPU
        with (
            torch.enable_grad(),
            attention.torchs_own(model),
            sdpa_kernel(SDPBackend.MATH),
            counter,
        ):
            logits = model(**row)["logits"]
            torch.autograd.grad(logits.sum(), trained, allow_unused=True)
    finally:
        model.train(training)
    return int(counter.get_total_flops())


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return operations a second in products of square matrices, the best of a tenth of a second.

    A CPU has its current number of threads.
    """
    size = 1024 if device.type == "cpu" else 8192
    # of its own: the training goes on after a profile, and draws its dropout
    generator = torch.Generator(device).manual_seed(0)
    one, other = (
        torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2)
    )
    best, until = float("inf"), time.perf_counter() + _SECONDS
    torch.mm(one, other)
    while time.perf_counter() < until or best == float("inf"):
        _wait(device)
        started = time.perf_counter()
        torch.mm(one, other)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
