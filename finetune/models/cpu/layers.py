"""Replacements for layers on a CPU: dropout, and linear layers for inference.

**Dropout**: torch draws one number from its Mersenne Twister for each element, 4.6 ns each, which
was 11% of a training step of MiniLM. Here a mask takes 16 bits from NumPy's SFC64 for each element.
The seed of each mask comes from torch's generator, so a run is as reproducible as before.

**Linear layers**: torch multiplies fp32 matrices with MKL, which does not use the full vector width
of every processor. On an AMD EPYC with AVX-512, MKL reached 103 GFLOP/s per core, and oneDNN with
prepacked weights 240 (the operator of ``torch.compile`` with freezing). In bf16 torch uses oneDNN
itself: 460 GFLOP/s, or 490 with prepacked weights. Results differ in the last bits.
"""

from typing import Any, TypeGuard

import numpy as np
import torch
from transformers import PreTrainedModel

from finetune.runtime import internals

_DTYPES = (torch.float32, torch.bfloat16)
_STEPS = 2**16  # a dropout probability is a multiple of 1 / _STEPS


def is_of_library(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether the class of ``model`` is from ``transformers``, not a user's subclass."""
    from_library = type(model).__module__.startswith("transformers.")
    return from_library and isinstance(model, PreTrainedModel)


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout`` with its probability rounded to a multiple of 1/65,536."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop elements at random; torch's own dropout handles what this does not support."""
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
    """Make every ``torch.nn.Dropout`` of ``model`` a :class:`Dropout` in place; hooks are kept."""
    for layer in model.modules():
        if type(layer) is torch.nn.Dropout:  # not a subclass
            layer.__class__ = Dropout


class PackedLinear(torch.nn.Module):
    """``torch.nn.Linear`` for inference, with weights prepacked by oneDNN."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._packed = internals.pack_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, input: torch.Tensor) -> Any:
        """Return shape ``(..., outputs)`` for an input of shape ``(..., inputs)``."""
        return internals.packed_linear(input, self._packed, self.bias)

    @property
    def weight(self) -> Any:
        """The unpacked weights, shape ``(outputs, inputs)``; some models read them."""
        return self._packed.to_dense()


def pack(model: torch.nn.Module) -> None:
    """Replace the linear layers of a ``transformers`` model by :class:`PackedLinear`, in place.

    The model can then only be used for inference. Other models may pass a layer's weights to torch,
    as ``torch.nn.TransformerEncoderLayer`` does. Layers with hooks are left as they are.
    """
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not is_of_library(model):
        return
    dtypes = internals.packable_dtypes()
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is not torch.nn.Linear or layer.weight.dtype not in dtypes:
                continue
            if not internals.may_have_hooks(layer):
                setattr(module, name, PackedLinear(layer))
