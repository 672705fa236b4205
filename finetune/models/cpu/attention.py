"""Attention on a CPU: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. Forward and backward over 8,192 tokens with 12
heads of 32 took 39 ms in sequences of 256 on two cores with AVX512-BF16, where the fused kernel
took 95; in sequences of 32 it was 17 and 93. In fp32 the fused kernel is the faster one, but it
cannot do without the padding, see :mod:`finetune.models.cpu.unpadded`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: The name under which models know it.
NAME = "finetune_few_sequences"
#: Attribute of a mask: the groups of sequences, where a batch is packed without its padding.
GROUPS = "finetune_groups"
#: Attention weights of a head that are computed at a time.
WEIGHTS_AT_ONCE = 2 * 256 * 256
#: What it multiplies, and in which of them it is faster than torch's kernel despite padding.
DTYPES = (torch.float32, torch.bfloat16)
FASTER_DTYPES = (torch.bfloat16,)
#: Keyword arguments of layers and attention that change nothing in them: the positions of tokens
#: are in the hidden states by then.
WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "return_dict", "output_hidden_states", "num_items_in_batch"}
)


def use(model: torch.nn.Module) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now."""
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def used_by(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether ``model`` attends by :func:`forward` now."""
    return isinstance(model, PreTrainedModel) and model.config._attn_implementation == NAME


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
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and (groups is not None or _is_faster(query, attention_mask))
        and has_no_effect(kwargs)
    )
    if not is_supported:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if groups is None:
        groups = _groups(query, attention_mask)
    output: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        *(tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)), groups, scaling
    )
    return output.view(query.transpose(1, 2).shape), None


def has_no_effect(kwargs: Mapping[str, Any]) -> bool:
    """Return whether keyword arguments of a layer or an attention change nothing in a result."""
    return all(
        value is None or value is False or name in WITHOUT_EFFECT for name, value in kwargs.items()
    )


def _is_faster(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether it is, with padding, and with a boolean mask for all heads or none."""
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
    source: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def take(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return ``(tokens of all sequences, heads, size)`` as ``(sequences * heads, length,
        size)``.
        """
        rows = tokens[self.tokens] if self.source is None else tokens.index_select(0, self.source)
        return rows.view(self.sequences, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 1)

    def put(self, tokens: torch.Tensor, result: torch.Tensor) -> None:
        """Write the other way, without what filled the sequences up."""
        rows = result.view(self.sequences, -1, *result.shape[1:]).transpose(1, 2)
        place = tokens[self.tokens]
        if self.real is None:
            place.view(rows.shape).copy_(rows)
        else:
            torch.index_select(rows.flatten(0, 1), 0, self.real, out=place)

    def weights(self, queries: torch.Tensor, keys: torch.Tensor, scaling: float) -> torch.Tensor:
        """Return the softmax of the products, ``(sequences * heads, length, length)``."""
        products = queries.new_empty(len(queries), self.length, self.length)
        if self.bias is not None:
            products.view(self.sequences, -1, *products.shape[1:]).copy_(self.bias)
        beta = 0 if self.bias is None else 1
        products.baddbmm_(queries, keys.transpose(1, 2), beta=beta, alpha=scaling)
        return torch.softmax(products, -1, out=products)


def at_once(length: int) -> int:
    """Return how many sequences of a length make a group."""
    return max(1, WEIGHTS_AT_ONCE // length**2)


def as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is added to the products for a boolean mask: next to nothing is left of these
    exponentials, and a product can still be added.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min / 2)


def _groups(query: torch.Tensor, mask: torch.Tensor | None) -> list[Group]:
    """Return the sequences of a padded batch, in groups of few enough weights."""
    sequences, _, length, _ = query.shape
    size = at_once(length)
    bias = None
    if mask is not None:
        row = mask[:, :, :1]  # for all, where every token sees the same
        bias = as_bias(row if torch.equal(mask, row.expand_as(mask)) else mask, query.dtype)
    return [
        Group(
            slice(first * length, min(first + size, sequences) * length),
            min(size, sequences - first),
            length,
            None if bias is None else bias[first : first + size],
        )
        for first in range(0, sequences, size)
    ]


class _FewSequences(torch.autograd.Function):
    """Queries, keys and values have shape ``(tokens of all sequences, heads, size)``. The backward
    pass computes the weights again: to keep them would take too much memory.
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
        output = _empty_like(query, groups)
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                queries, keys, values = map(group.take, (query, key, value))
                weights = group.weights(queries, keys, scaling)
                group.put(output, torch.bmm(weights, values))
        ctx.save_for_backward(query, key, value)
        ctx.groups = groups
        ctx.scaling = scaling
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors
        groups = ctx.groups
        of_query, of_key, of_value = results = [_empty_like(tensor, groups) for tensor in inputs]
        empty = gradient.new_empty(())
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                queries, keys, values, gradients = map(group.take, (*inputs, gradient))
                weights = group.weights(queries, keys, ctx.scaling)
                group.put(of_value, torch.bmm(weights.transpose(1, 2), gradients))
                products = torch.bmm(gradients, values.transpose(1, 2))
                torch.ops.aten._softmax_backward_data(
                    products, weights, -1, products.dtype, grad_input=products
                )
                result = torch.baddbmm(empty, products, keys, beta=0, alpha=ctx.scaling)
                group.put(of_query, result)
                products = products.transpose(1, 2)
                result = torch.baddbmm(empty, products, queries, beta=0, alpha=ctx.scaling)
                group.put(of_key, result)
        return (*results, None, None)


def _empty_like(tokens: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
    """Return memory for a result, 0 for the tokens in no group."""
    result = torch.empty_like(tokens)
    result[groups[-1].tokens.stop :] = 0
    return result
