"""Layers of a model that are replaced on a CPU: dropout, and linear layers for inference.

**Dropout**: torch draws a number of its Mersenne Twister for every element, 4.6 ns each, which was
11% of a training step of MiniLM. Here a mask takes 16 bits of numpy's SFC64 for every element; the
seed of each mask comes from torch's generator, so that a run is as reproducible as before.

**Linear layers**: torch multiplies fp32 matrices with MKL, which does not use the full width of
every processor: on an AMD EPYC with AVX-512 it reached 103 GFLOP/s a core, oneDNN with weights
packed ahead 240 (``torch.compile`` with freezing takes the same operator). In bf16 torch itself
takes oneDNN, which reached 460 so and 490 with weights packed. Results differ in the last bits.
"""

from typing import Any, TypeGuard

import numpy as np
import torch
from transformers import PreTrainedModel

_DTYPES = (torch.float32, torch.bfloat16)
_STEPS = 2**16  # of the probability of a dropout


def is_of_library(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether a class of ``transformers`` is used as it is; a subclass may do anything."""
    from_library = type(model).__module__.startswith("transformers.")
    return from_library and isinstance(model, PreTrainedModel)


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout``, its probability rounded to 1/65,536."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop elements of a tensor; elsewhere, or with a probability of 0 or 1, as torch does."""
        is_supported = (
            self.training
            and not self.inplace
            and input.device.type == "cpu"
            and input.dtype in _DTYPES
            and 0 < round(self.p * _STEPS) < _STEPS
            and not torch.compiler.is_compiling()
        )
        if not is_supported:
            return super().forward(input)
        output: torch.Tensor = _Dropout.apply(input, self.p)  # type: ignore[no-untyped-call]
        return output


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, probability: float) -> Any:
        dropped = round(probability * _STEPS)
        generator = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
        words = generator.integers(2**64, size=-(-input.numel() // 4), dtype=np.uint64)
        bits = torch.from_numpy(words.view(np.int16))[: input.numel()].view(input.shape)
        mask = bits >= dropped - _STEPS // 2
        ctx.scale = _STEPS / (_STEPS - dropped)
        ctx.save_for_backward(mask)
        return torch.ops.aten.native_dropout_backward(input, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(gradient, mask, ctx.scale), None


def use_dropout(model: torch.nn.Module) -> None:
    """Let every ``torch.nn.Dropout`` of ``model`` be a :class:`Dropout`; hooks stay."""
    for layer in model.modules():
        if type(layer) is torch.nn.Dropout:  # a subclass may do anything
            layer.__class__ = Dropout


class PackedLinear(torch.nn.Module):
    """``torch.nn.Linear``, for inference, with a copy of the weights that oneDNN has laid out."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
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
    """Replace every plain linear layer of a model of ``transformers``, for inference mode only.

    Other models may hand the weights of a layer to torch's own kernels and not call it, as torch's
    own transformer does, and a hook would be lost.
    """
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not is_of_library(model):
        return
    dtypes = _DTYPES if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            is_hooked = layer._forward_hooks or layer._forward_pre_hooks
            if type(layer) is torch.nn.Linear and layer.weight.dtype in dtypes and not is_hooked:
                setattr(module, name, PackedLinear(layer))
