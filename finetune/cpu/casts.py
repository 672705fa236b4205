"""One cast of an activation for all layers that are given it.

Autocast casts the input of each layer anew, so query, key and value have three copies of one
tensor, kept for the backward pass, and three casts of its gradient. Weights it casts once.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from finetune.cpu import gelu, layers


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` that takes the cast of the layer before it if that had the same input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Shape ``(..., inputs)`` to ``(..., outputs)``."""
        found = gelu.then_linear(input, self.weight, self.bias)
        return linear(_cast(input), self.weight, self.bias) if found is None else found


def share(model: torch.nn.Module) -> None:
    """Let every plain linear layer below ``model`` share its cast; parameters and hooks stay."""
    for _, _, layer in layers.of_type(model, torch.nn.Linear):
        layer.__class__ = Linear


def forget() -> None:
    """Let go of the last cast, which holds all that it was computed from: after each step."""
    global _last
    _last = None


_Made = tuple[torch.Tensor, int, bool, torch.Tensor]
_last: _Made | None = None  # what was cast, its version, whether with a gradient, and the cast


def _cast(input: torch.Tensor) -> torch.Tensor:
    global _last
    plain = input.device.type != "cpu" or input.dtype != torch.float32 or input.is_inference()
    if plain or not torch.is_autocast_enabled("cpu"):
        return input
    key = input._version, torch.is_grad_enabled()
    last = _last
    if last is not None and last[0] is input and last[1:3] == key:
        return last[3]
    cast = input.to(torch.get_autocast_dtype("cpu"))
    _last = input, *key, cast
    return cast
