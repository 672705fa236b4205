"""The last linear layer of a model, whose outputs are its logits."""

from __future__ import annotations

import numpy as np
import torch

from finetune.errors import UserError


def last_linear(model: torch.nn.Module, width: int) -> torch.nn.Linear:
    """Return the layer that makes the logits.

    Args:
        model: With a head of ``transformers``, or another whose last linear layer is that.
        width: The outputs of the model for a row.

    Raises:
        UserError: if no linear layer has so many outputs.
    """
    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    found = [each for each in layers if each.out_features == width]
    if not found:
        raise UserError(f"{type(model).__name__} has no linear layer of {width} outputs")
    return found[-1]


def has_bias(layer: torch.nn.Linear) -> bool:
    """Return whether something can be added to the outputs of a layer: GPT-2's has no bias."""
    bias: torch.Tensor | None = layer.bias
    return bias is not None


@torch.no_grad()
def fold(layer: torch.nn.Linear, scale: np.ndarray, shift: np.ndarray) -> None:
    """Change a layer so that its outputs are ``scale * output + shift``, computed in float64.

    Args:
        layer: Changed in place.
        scale: Shape ``(outputs,)``.
        shift: Likewise.

    Raises:
        UserError: if there is something to shift and the layer has no bias.
    """
    by = torch.as_tensor(scale, dtype=torch.float64, device=layer.weight.device)
    bias: torch.Tensor | None = layer.bias
    if bias is None:
        if np.any(shift):
            raise UserError("the last layer of the model has no bias that could be shifted")
    else:
        to = torch.as_tensor(shift, dtype=torch.float64, device=layer.weight.device)
        bias.copy_(bias.double() * by + to)
    layer.weight.copy_(layer.weight.double() * by[:, None])
