"""The last linear layer of a model, which makes its logits: what is done to them is done to its
weights, so that a saved model needs nothing beside them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from finetune.errors import UserError


def last_linear(model: torch.nn.Module, width: int) -> torch.nn.Linear:
    """Return the last linear layer with ``width`` outputs, in the order of the model's modules: in
    the classifiers of ``transformers`` it makes the logits.

    Raises:
        UserError: If there is none.
    """
    for layer in reversed(list(model.modules())):
        if isinstance(layer, torch.nn.Linear) and layer.out_features == width:
            return layer
    raise UserError(f"{type(model).__name__} has no linear layer of {width} outputs")


def match_outputs(trained: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """Return the output of a trained head for each label: by name or, where one side has no names
    but ``LABEL_0`` and so on, by place; None if the head is for other labels.
    """
    unnamed = [f"LABEL_{place}" for place in range(len(labels))]
    if len(trained) == len(labels) and unnamed in (list(trained), list(labels)):
        return [*range(len(labels))]
    if sorted(trained) != sorted(labels) or len(set(trained)) < len(trained):
        return None
    return [trained.index(label) for label in labels]


def fold(layer: torch.nn.Linear, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let ``layer`` return ``outputs * scale + shift`` from now on, by its weights; in place.

    Both have shape ``(outputs of the layer,)`` and are computed with in float64. Without a bias
    ``shift`` must be 0.
    """
    bias: torch.Tensor | None = layer.bias
    assert bias is not None or not np.any(shift)
    factor = torch.as_tensor(scale, dtype=torch.float64, device=layer.weight.device)
    with torch.no_grad():
        layer.weight.copy_(_scaled(layer.weight.double(), factor[:, None]))
        if bias is not None:
            bias.copy_(_scaled(bias.double(), factor, torch.as_tensor(shift).to(factor)))


def _scaled(weights: Any, factor: torch.Tensor, summand: torch.Tensor | float = 0.0) -> Any:
    """Return ``weights * factor + summand``; of weights that FSDP has sharded, sharded alike."""
    if type(weights) in (torch.Tensor, torch.nn.Parameter):
        return weights * factor + summand
    from torch.distributed.tensor.experimental import implicit_replication  # slow to import

    with implicit_replication():
        return (weights * factor + summand).redistribute(placements=weights.placements)


def scale_outputs(layer: torch.nn.Linear, scale: np.ndarray) -> None:
    """Make ``layer`` a :class:`ScaledLinear`, in place, also one that is already; another subclass,
    which may compute something else, is left as it is. ``scale`` has powers of two, ``(outputs,)``.
    """
    if type(layer) in (torch.nn.Linear, ScaledLinear):
        previous = layer.scale.double().cpu().numpy() if isinstance(layer, ScaledLinear) else 1
        fold(layer, previous / scale, np.zeros(len(scale)))
        layer.__class__ = ScaledLinear
        layer.scale = torch.as_tensor(scale, dtype=torch.float32)


class ScaledLinear(torch.nn.Linear):
    """A layer that is trained with outputs around 1 and returns them in other units.

    The weights are divided by ``scale`` and the outputs multiplied with it, so that nothing changes
    but how far a step of the optimizer moves them. The state dict has the weights multiplied again:
    what is saved, a checkpoint too, is an ordinary layer in the units of its outputs, and what is
    loaded may be one. As the scale is a power of two, none of this rounds. The outputs are computed
    in float32 even under autocast: bf16 has three digits, too few for most numbers.
    """

    scale: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the outputs in their units, float32."""
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(input.device.type, enabled=False):
            outputs = linear(input.float(), self.weight.float(), bias)
        return outputs * self.scale.to(outputs.device)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        _multiply(destination, prefix, self.scale)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        _multiply(state_dict, prefix, 1 / self.scale)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _multiply(state: dict[str, Any], prefix: str, scale: torch.Tensor) -> None:
    """Multiply the weights of a layer in a state dict; those that a model has are left alone."""
    for name in (f"{prefix}weight", f"{prefix}bias"):
        if (weights := state.get(name)) is not None:
            factor = scale.to(weights.device, weights.dtype)
            state[name] = _scaled(weights, factor[:, None] if weights.dim() == 2 else factor)
