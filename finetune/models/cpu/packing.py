"""Linear layers whose weights are laid out once for oneDNN, for inference on a CPU.

torch multiplies fp32 matrices with MKL, which does not use the full width of every processor: on
an AMD EPYC with AVX-512 it reached 103 GFLOP/s a core, oneDNN with weights packed ahead 240
(``torch.compile`` with freezing takes the same operator). In bf16 torch itself takes oneDNN, which
reached 460 so and 490 with weights packed. Results differ in the last bits only.
"""

from __future__ import annotations

from typing import Any

import torch

from finetune.models.cpu import layers

_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(torch.nn.Module):
    """``torch.nn.Linear``, for inference, with a copy of the weights."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, input: torch.Tensor) -> Any:
        """Map shape ``(..., inputs)`` to ``(..., outputs)``."""
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")

    @property
    def weight(self) -> Any:
        """Shape ``(outputs, inputs)``, unpacked whenever it is asked for: some models read it."""
        return self._packed.to_dense()


def pack(model: torch.nn.Module) -> None:
    """Replace every plain linear layer of a model of ``transformers``.

    Other models may hand the weights of a layer to torch's own kernels and not call it, as torch's
    own transformer does, and a hook would be lost.

    Args:
        model: To be used under ``torch.inference_mode()`` only.
    """
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if available and layers.is_of_library(model):
        for module, name, layer in layers.of_type(model, torch.nn.Linear):
            if _is_supported(layer):
                setattr(module, name, PackedLinear(layer))


def _is_supported(layer: torch.nn.Linear) -> bool:
    weight, bias = layer.weight, layer.bias
    return (
        weight.dtype in _DTYPES
        and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and weight.device.type == "cpu"
        and weight.layout == torch.strided
        and (bias is None or bias.dtype == weight.dtype)
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    )
