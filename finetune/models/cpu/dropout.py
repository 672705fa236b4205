"""Dropout whose random numbers cost little on a CPU.

torch draws a number of its Mersenne Twister for every element, 4.6 ns each, which was 11% of a
training step of MiniLM. Here a mask takes 16 bits of numpy's SFC64 for every element; the seed of
each mask comes from torch's generator, so that a run is as reproducible as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from finetune.models.cpu import layers

_DTYPES = (torch.float32, torch.bfloat16)
_STEPS = 2**16  # of the probability


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout``, its probability rounded to 1/65,536."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop elements of a tensor of any shape; by torch where :func:`_is_supported` says no."""
        if not self.training or self.inplace or not _is_supported(input, self.p):
            return super().forward(input)
        output: torch.Tensor = _Dropout.apply(input, self.p)  # type: ignore[no-untyped-call]
        return output


def use(model: torch.nn.Module) -> None:
    """Let every ``torch.nn.Dropout`` below ``model`` be one, but for those in place; hooks stay."""
    for _, _, layer in layers.of_type(model, torch.nn.Dropout):
        if not layer.inplace:
            layer.__class__ = Dropout


def used_by(model: torch.nn.Module) -> bool:
    """Return whether a layer of ``model`` is one and drops anything."""
    return any(type(layer) is Dropout and layer.p > 0 for layer in model.modules())


def _is_supported(input: torch.Tensor, probability: float) -> bool:
    return (
        input.device.type == "cpu"
        and input.dtype in _DTYPES
        and input.layout == torch.strided
        and not input.is_nested
        and 0 < round(probability * _STEPS) < _STEPS
        and not torch.compiler.is_compiling()
    )


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, probability: float) -> Any:
        dropped = round(probability * _STEPS)
        mask, ctx.scale = _mask(input, dropped), _STEPS / (_STEPS - dropped)
        ctx.save_for_backward(mask)
        return torch.ops.aten.native_dropout_backward(input, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(gradient, mask, ctx.scale), None


def _mask(tensor: torch.Tensor, dropped: int) -> torch.Tensor:
    """Return a mask of the shape of ``tensor``, false with probability ``dropped / 65,536``."""
    seed = int(torch.randint(2**63 - 1, ()))
    generator = np.random.Generator(np.random.SFC64(seed))
    words = generator.integers(2**64, size=-(-tensor.numel() // 4), dtype=np.uint64)
    bits = torch.from_numpy(words.view(np.int16))[: tensor.numel()].view(tensor.shape)
    return bits >= dropped - _STEPS // 2
