"""Attention on a CPU: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. Forward and backward over 8,192 tokens with 12
heads of 32 took 39 ms in sequences of 256 on two cores with AVX512-BF16, where the fused kernel
took 95; in sequences of 32 it was 17 and 93. In fp32 the fused kernel is the faster one, but it
cannot do without the padding, see :mod:`finetune.models.cpu.unpadded`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finetune.models import families

#: The name under which models know it.
NAME = "finetune_few_sequences"
#: Attribute of a mask: the groups of sequences, where the sequences of a batch are packed.
GROUPS = "finetune_groups"
_BIAS = "finetune_bias"  # likewise: the mask as it is added to the products
#: Attention weights of a head that are computed at a time.
WEIGHTS_AT_ONCE = 2 * 256 * 256
_SMALLEST_SUM = 1e-20  # of exponentials that is divided by
#: What it multiplies, and in which of them it is faster than torch's kernel despite padding.
DTYPES, FASTER_DTYPES = (torch.float32, torch.bfloat16), (torch.bfloat16,)
#: Keyword arguments of layers and attention that change nothing in them: the positions of tokens
#: are in the hidden states by then.
WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "return_dict", "output_hidden_states", "num_items_in_batch"}
)
_IN_THE_MASK = frozenset({"sliding_window"})  # where there is one


def use(model: torch.nn.Module) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now."""
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def used_by(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether ``model`` attends by :func:`forward` now."""
    return isinstance(model, PreTrainedModel) and model.config._attn_implementation == NAME


def drops_weights(model: PreTrainedModel) -> bool:
    """Return whether attention weights are dropped in training, which only torch's kernel does."""
    return any(families.dropouts(model.config, "attention_dropout").values())


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as an ``AttentionInterface`` of ``transformers`` does; everything that is not of one
    shape and dtype, and fp32 with padding, is left to torch's kernel.

    Query, key and value have shape ``(sequences, heads, tokens, size)``, the mask is true where a
    token is seen, of shape ``(sequences, 1, tokens, tokens)``. Returns no weights beside the output
    of shape ``(sequences, tokens, heads, size)``.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    groups: list[Group] | None = getattr(attention_mask, GROUPS, None)
    is_supported = (
        not (causal or dropout)
        and query.ndim == 4
        and query.numel() > 0
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and query.dtype in DTYPES
        and query.device.type == "cpu"
        and not is_recorded()
        and (groups is not None or _is_faster(query, attention_mask))
        and has_no_effect(kwargs, () if attention_mask is None else _IN_THE_MASK)
    )
    if not is_supported:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if groups is None:
        bias = None if attention_mask is None else _as_bias(attention_mask, query.dtype)
        groups = _grouped(query.shape[0], query.shape[2], bias)
    output: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        query, key, value, groups, scaling
    )
    return output, None


def has_no_effect(kwargs: Mapping[str, Any], allowed: Collection[str] = ()) -> bool:
    """Return whether keyword arguments, ``allowed`` ones aside, change nothing in a result."""
    return all(
        value is None or value is False or name in WITHOUT_EFFECT or name in allowed
        for name, value in kwargs.items()
    )


def is_recorded() -> bool:
    """Return whether torch records the operators for another use, with the shapes of this one."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_compiling()


def _is_faster(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether it is, for sequences with padding; they have one boolean mask for all heads
    or none.
    """
    sequences, _, tokens, _ = query.shape
    return query.dtype in FASTER_DTYPES and (
        mask is None or (mask.dtype == torch.bool and mask.shape == (sequences, 1, tokens, tokens))
    )


@dataclass(frozen=True, eq=False)
class Group:
    """A few sequences whose weights are in memory at a time."""

    tokens: slice  # theirs, of those of all sequences
    sequences: int
    length: int  # of each, with what fills it up
    #: Added to the products, shape ``(sequences, 1, length or 1, length)``.
    bias: torch.Tensor | None = None
    #: Where sequences are filled up: the index of each token, shape ``(sequences * length,)``, that
    #: of a token in no group where it fills up, and the places that are not filled up.
    taken: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def take(self, tokens: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write ``(tokens of all sequences, heads, size)`` as ``(sequences * heads, length, size)``
        into ``out``, which may have more columns.
        """
        rows = tokens[self.tokens] if self.taken is None else tokens.index_select(0, self.taken)
        rows = self._by_sequence(rows).transpose(1, 2)
        self._by_sequence(out)[..., : tokens.shape[-1]] = rows
        return out

    def put(self, tokens: torch.Tensor, result: torch.Tensor) -> None:
        """Write the other way, without what filled the sequences up."""
        rows, place = self._by_sequence(result).transpose(1, 2), tokens[self.tokens]
        if self.real is None:
            place.view(rows.shape).copy_(rows)
        else:
            torch.index_select(rows.flatten(0, 1), 0, self.real, out=place)

    def products(
        self, queries: torch.Tensor, keys: torch.Tensor, scaling: float, out: torch.Tensor
    ) -> torch.Tensor:
        """Multiply queries and keys, bias added: ``(sequences * heads, length, length)``."""
        beta = 0
        if self.bias is not None:
            self._by_sequence(out).copy_(self.bias)
            beta = 1
        return torch.baddbmm(out, queries, keys.transpose(1, 2), beta=beta, alpha=scaling, out=out)

    def _by_sequence(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(self.sequences, -1, *tensor.shape[1:])


def at_once(length: int) -> int:
    """Return how many sequences of a length make a group."""
    return max(1, WEIGHTS_AT_ONCE // length**2)


def lowest(dtype: torch.dtype) -> float:
    """Return what has an exponential of nearly 0, with room for a product to be added to it."""
    return torch.finfo(dtype).min / 2


def _grouped(sequences: int, length: int, bias: torch.Tensor | None) -> list[Group]:
    """Return sequences of one length that follow each other, in groups of few enough weights."""
    size = at_once(length)
    return [
        Group(
            slice(first * length, min(first + size, sequences) * length),
            min(size, sequences - first),
            length,
            None if bias is None else bias[first : first + size],
        )
        for first in range(0, sequences, size)
    ]


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is added to the products, one row for all where every token sees the same.

    The layers of a model have one mask, so it is kept with the mask.
    """
    bias: torch.Tensor | None = getattr(mask, _BIAS, None)
    if bias is None:
        row = mask[:, :, :1]
        key_mask = row if torch.equal(mask, row.expand_as(mask)) else mask
        bias = torch.zeros_like(key_mask, dtype=dtype).masked_fill_(~key_mask, lowest(dtype))
        setattr(mask, _BIAS, bias)
    return bias


class _FewSequences(torch.autograd.Function):
    """Exponentials of the products are multiplied with the values and with a column of ones: the
    last column of the result is what the others are divided by, and the softmax takes one pass over
    the products in place of three. Where they are too large or too small for that, the group has a
    softmax. The backward pass computes them again: to keep them would take too much memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        groups: Sequence[Group],
        scaling: float,
    ) -> torch.Tensor:
        memory, size = _Memory((query, key, value), groups, scaling), value.shape[-1]
        output, sums = memory.of_all(size), memory.of_all(1)
        softened = set()
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                queries, keys, with_ones, products = memory.start(group)
                weights = products.exp_()
                result = torch.bmm(weights, with_ones, out=memory(group, "output", size + 1))
                smallest, largest = torch.aminmax(result[..., size:])
                if not (smallest > _SMALLEST_SUM and largest < 1 / _SMALLEST_SUM):  # also of NaN
                    softened.add(group)
                    group.products(queries, keys, scaling, weights)
                    torch.softmax(weights, -1, out=weights)
                    torch.bmm(weights, with_ones, out=result)
                    result[..., size:] = 1
                group.put(sums, result[..., size:])
                group.put(output, result[..., :size].div_(result[..., size:]))
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.groups, ctx.scaling, ctx.softened = groups, scaling, softened
        return output.view(query.shape[0], query.shape[2], *output.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *inputs, output, sums = ctx.saved_tensors
        memory, size = _Memory(inputs, ctx.groups, ctx.scaling), output.shape[-1]
        of_queries, of_keys, of_values = results = [memory.of_all(size) for _ in range(3)]
        empty = output.new_empty(())
        with torch.autocast("cpu", enabled=False):
            # both over the sums: minus the mean of the gradients of the weights comes last
            gradient = gradient.reshape(output.shape)
            mean = (gradient * output).sum(-1, keepdim=True).neg_()
            gradients = torch.cat([gradient, mean], dim=-1).div_(sums)
            gradients[memory.grouped :] = 0
            for group in ctx.groups:
                queries, keys, with_ones, weights = memory.start(group)
                if group in ctx.softened:
                    torch.softmax(weights, -1, out=weights)
                else:
                    weights.exp_()
                over_sums = group.take(gradients, memory(group, "gradients", size + 1))
                out = memory(group, "output", size)
                torch.bmm(weights.transpose(1, 2), over_sums[..., :size], out=out)
                group.put(of_values, out)
                products = memory(group, "gradients of products", group.length)
                torch.bmm(over_sums, with_ones.transpose(1, 2), out=products)
                products *= weights
                torch.baddbmm(empty, products, keys, beta=0, alpha=ctx.scaling, out=out)
                group.put(of_queries, out)
                transposed = products.transpose(1, 2)
                torch.baddbmm(empty, transposed, queries, beta=0, alpha=ctx.scaling, out=out)
                group.put(of_keys, out)
        shape = inputs[0].shape[0], inputs[0].shape[2], *output.shape[1:]
        return (*(result.view(shape).transpose(1, 2) for result in results), None, None)


class _Memory:
    """Memory that one group after another is computed in: it stays in the cache."""

    def __init__(
        self, inputs: Sequence[torch.Tensor], groups: Sequence[Group], scaling: float
    ) -> None:
        # queries, keys and values, (sequences, heads, tokens, size) to (all tokens, heads, size)
        self.inputs = [tensor.transpose(1, 2).reshape(-1, *tensor.shape[1::2]) for tensor in inputs]
        self.grouped, self.scaling = groups[-1].tokens.stop, scaling
        self.buffers: dict[str, torch.Tensor] = {}

    def __call__(self, group: Group, name: str, columns: int) -> torch.Tensor:
        """Return memory for ``(sequences * heads, length, columns)``."""
        shape = group.sequences * self.inputs[0].shape[1], group.length, columns
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = self.inputs[0].new_empty(size)
        return self.buffers[name][:size].view(shape)

    def start(self, group: Group) -> tuple[torch.Tensor, ...]:
        """Return a group's queries, keys, values with a column of ones, and products."""
        queries, keys, values = self.inputs
        size = values.shape[-1]
        queries = group.take(queries, self(group, "queries", size))
        keys = group.take(keys, self(group, "keys", size))
        with_ones = group.take(values, self(group, "values", size + 1))
        with_ones[..., size] = 1
        out = self(group, "products", group.length)
        return queries, keys, with_ones, group.products(queries, keys, self.scaling, out)

    def of_all(self, columns: int) -> torch.Tensor:
        """Return memory to keep for ``(all tokens, heads, columns)``, 0 for those in no group."""
        result = self.inputs[0].new_empty(*self.inputs[0].shape[:2], columns)
        result[self.grouped :] = 0
        return result
