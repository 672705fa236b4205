"""Change the outputs of a model through the weights of its last linear layer, so that a saved
model needs no extra code or files.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from finetune.errors import UserError


def last_linear(model: torch.nn.Module, width: int) -> torch.nn.Linear:
    """Return the last linear layer with ``width`` outputs; in ``transformers`` it returns logits.

    Raises:
        UserError: If the model has no such layer.
    """
    for layer in reversed(list(model.modules())):
        if isinstance(layer, torch.nn.Linear) and layer.out_features == width:
            return layer
    raise UserError(f"{type(model).__name__} has no linear layer with {width} outputs")


def remove_last_linear(model: torch.nn.Module, width: int) -> None:
    """Replace the last linear layer in place: the ``logits`` of the model are then its inputs.

    Raises:
        UserError: If the model has no such layer.
    """
    layer = last_linear(model, width)
    name = next(name for name, module in model.named_modules() if module is layer)
    model.set_submodule(name, torch.nn.Identity())


def match_outputs(trained: Sequence[str], labels: Sequence[str]) -> list[int] | None:
    """Return the index of the trained output for each label, or None if the head has other labels.

    Outputs are matched by name, or by position if one side has only the names ``LABEL_0`` etc.
    """
    default_names = [f"LABEL_{index}" for index in range(len(labels))]
    if len(trained) == len(labels) and default_names in (list(trained), list(labels)):
        return list(range(len(labels)))
    if sorted(trained) != sorted(labels) or len(set(trained)) < len(trained):
        return None
    return list(map(trained.index, labels))


def fold(layer: torch.nn.Linear, scale: np.ndarray | float, shift: np.ndarray | float) -> None:
    """Change the weights of ``layer`` in place so that it returns ``outputs * scale + shift``.

    ``scale`` and ``shift`` have shape ``(outputs,)``, or are numbers. The weights are computed in
    float64. If the layer has no bias, ``shift`` must be 0.
    """
    bias: torch.Tensor | None = layer.bias
    assert bias is not None or not np.any(shift)
    factor = torch.as_tensor(scale, dtype=torch.float64, device=layer.weight.device)
    factor = factor.expand(layer.out_features)
    with torch.no_grad():
        layer.weight.copy_(_scaled(layer.weight.double(), factor[:, None]))
        if bias is not None:
            bias.copy_(_scaled(bias.double(), factor, torch.as_tensor(shift).to(factor)))


def _scaled(weights: Any, factor: torch.Tensor, summand: torch.Tensor | float = 0.0) -> Any:
    """Return ``weights * factor + summand``, sharded like ``weights`` under FSDP."""
    if type(weights) in (torch.Tensor, torch.nn.Parameter):
        return weights * factor + summand
    from torch.distributed.tensor.experimental import implicit_replication  # slow to import

    with implicit_replication():
        return (weights * factor + summand).redistribute(placements=weights.placements)


def scale_outputs(layer: torch.nn.Linear, scale: np.ndarray) -> None:
    """Make ``layer`` a :class:`ScaledLinear` in place, or change the scale if it is one.

    Other subclasses are left as they are. ``scale`` has powers of two, shape ``(outputs,)``.
    """
    if type(layer) in (torch.nn.Linear, ScaledLinear):
        previous: Any = 1
        if isinstance(layer, ScaledLinear):
            previous = layer.scale.double().cpu().numpy()
        else:
            layer.__class__ = ScaledLinear
            layer.register_state_dict_post_hook(_multiply_saved)  # type: ignore[no-untyped-call]
            layer.register_load_state_dict_pre_hook(_divide_loaded)  # type: ignore[no-untyped-call]
        fold(layer, previous / scale, 0.0)
        layer.scale = torch.as_tensor(scale, dtype=torch.float32)


class ScaledLinear(torch.nn.Linear):
    """A linear layer that is trained with outputs near 1 and returns them in other units.

    The weights are divided by ``scale`` and the outputs multiplied by it. So the outputs stay the
    same, but a step of AdamW moves them ``scale`` times as far. The state dict holds the weights in
    the units of the data: saved models and checkpoints have an ordinary linear layer, and can be
    loaded from one. ``scale`` has powers of two, so none of this rounds. Outputs are computed in
    float32 even under autocast, because the three digits of bf16 are too few.
    """

    scale: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the outputs in the units of the data, float32."""
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(input.device.type, enabled=False):
            outputs = linear(input.float(), self.weight.float(), bias)
        return outputs * self.scale.to(outputs.device)


def _multiply_saved(layer: ScaledLinear, state: dict[str, Any], prefix: str, _: Any) -> None:
    _multiply(state, prefix, layer.scale)


def _divide_loaded(layer: ScaledLinear, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _multiply(state, prefix, 1 / layer.scale)


def _multiply(state: dict[str, Any], prefix: str, scale: torch.Tensor) -> None:
    """Multiply a layer's weights in a state dict, without changing the tensors of the model."""
    for name in (f"{prefix}weight", f"{prefix}bias"):
        if (weights := state.get(name)) is not None:
            factor = scale.to(weights.device, weights.dtype)
            state[name] = _scaled(weights, factor[:, None] if weights.dim() == 2 else factor)
