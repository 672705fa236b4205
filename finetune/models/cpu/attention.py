"""Attention on a CPU: plain matrix products over a few sequences at a time.

torch's fused CPU kernel is no faster in bf16 than in fp32. Matrix products over a few whole
sequences are faster, and their attention weights stay in the cache. On two cores with AVX512-BF16,
forward and backward over 8,192 tokens with 12 heads of size 32 took 39 ms for sequences of 256
tokens (fused kernel: 95 ms) and 17 ms for sequences of 32 (93 ms). In fp32 the fused kernel is
faster, but it needs the padding, see :mod:`finetune.models.cpu.unpadded`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finetune.runtime import internals

#: The value of ``attn_implementation``.
NAME = "finetune_few_sequences"
#: Attribute of the mask of a batch without padding: the :class:`Group` list of its sequences.
GROUPS = "finetune_groups"
#: The maximum number of attention weights of a head in a group.
WEIGHTS_AT_ONCE = 2 * 256 * 256
#: The supported dtypes, and those in which padded batches are faster than in torch's kernel.
DTYPES = (torch.float32, torch.bfloat16)
FASTER_DTYPES = (torch.bfloat16,)
#: Keyword arguments that do not change the result of a layer or an attention. The positions of
#: tokens are already in the hidden states.
WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "return_dict", "output_hidden_states", "num_items_in_batch"}
)


def use(model: torch.nn.Module) -> None:
    """Make ``model`` use :func:`forward` for attention if it uses torch's kernel now."""
    if not isinstance(model, PreTrainedModel) or not internals.has_softmax_backward():
        return
    if internals.attention_name(model.config) == "sdpa":
        AttentionInterface.register(NAME, forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def used_by(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether ``model`` uses :func:`forward` for attention."""
    return isinstance(model, PreTrainedModel) and internals.attention_name(model.config) == NAME


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
    """Compute attention, as a function for the ``AttentionInterface`` of ``transformers``.

    Causal attention, dropout, different shapes or dtypes, and fp32 with padding are left to torch's
    kernel.

    Args:
        module: The layer, which may have ``is_causal``.
        query: Shape ``(sequences, heads, tokens, size)``, as key and value.
        key: As many heads as the query, or fewer.
        value: Of the shape of the key.
        attention_mask: True where a token is visible, shape ``(sequences, 1, tokens, tokens)``.
        dropout: The share of weights that are set to 0.
        scaling: The factor of the products; None for one over the square root of the size.
        is_causal: Whether a token sees earlier ones only; None to ask the layer.
        **kwargs: Passed to torch's kernel.

    Returns:
        The output, shape ``(sequences, tokens, heads, size)``, and None for the weights.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    groups: list[Group] | None = getattr(attention_mask, GROUPS, None)
    is_known_mask = attention_mask is None or (
        attention_mask.dtype == torch.bool
        and attention_mask.shape == (len(query), 1, query.shape[2], query.shape[2])
    )
    is_supported = (
        not (causal or dropout)
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and (groups is not None or (is_known_mask and query.dtype in FASTER_DTYPES))
        and has_no_effect(kwargs)
    )
    if not is_supported:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    if groups is None:
        groups = _groups(query, attention_mask)
    output: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        *(tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)), groups, scaling
    )
    return output.view(query.transpose(1, 2).shape), None


def has_no_effect(kwargs: Mapping[str, Any]) -> bool:
    """Return whether the keyword arguments leave the result of a layer or an attention as it is."""
    return all(
        value is None or value is False or name in WITHOUT_EFFECT for name, value in kwargs.items()
    )


@dataclass(frozen=True, eq=False)
class Group:
    """A few sequences whose attention weights are computed together."""

    tokens: slice  # the tokens of the group among those of all sequences
    sequences: int
    length: int  # tokens of each sequence, with padding
    #: Added to the attention scores, shape ``(sequences, 1, length or 1, length)``.
    bias: torch.Tensor | None = None
    #: If sequences are padded to ``length``: the index of each token among those of all sequences,
    #: shape ``(sequences * length,)``; padding has the index of a token in no group. ``real`` are
    #: the positions without padding.
    source: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def rows_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the group's part of ``(all tokens, heads, size)`` as ``(sequences * heads, length,
        size)``.
        """
        rows = tokens[self.tokens] if self.source is None else tokens.index_select(0, self.source)
        return rows.view(self.sequences, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 1)

    def write_rows(self, tokens: torch.Tensor, result: torch.Tensor) -> None:
        """Write a result of that shape, without padding, to the group's part of ``tokens``."""
        rows = result.view(self.sequences, -1, *result.shape[1:]).transpose(1, 2)
        target = tokens[self.tokens]
        if self.real is None:
            target.view(rows.shape).copy_(rows)
        else:
            torch.index_select(rows.flatten(0, 1), 0, self.real, out=target)

    def weights(self, queries: torch.Tensor, keys: torch.Tensor, scaling: float) -> torch.Tensor:
        """Return the attention weights, shape ``(sequences * heads, length, length)``."""
        products = queries.new_empty(len(queries), self.length, self.length)
        beta = 0
        if self.bias is not None:
            products.view(self.sequences, -1, *products.shape[1:]).copy_(self.bias)
            beta = 1
        products.baddbmm_(queries, keys.transpose(1, 2), beta=beta, alpha=scaling)
        return torch.softmax(products, -1, out=products)


def at_once(length: int) -> int:
    """Return the number of sequences of ``length`` tokens in a group."""
    return max(1, WEIGHTS_AT_ONCE // length**2)


def as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as a bias for the attention scores: 0 where it is True, else half the
    lowest number of ``dtype``, to which a score can be added without overflow.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min / 2)


def _groups(query: torch.Tensor, mask: torch.Tensor | None) -> list[Group]:
    """Return the groups of a padded batch; the query has shape (sequences, heads, tokens, size)."""
    sequences, _, length, _ = query.shape
    size = at_once(length)
    bias = None
    if mask is not None:
        row = mask[:, :, :1]  # is enough if all tokens of a sequence see the same tokens
        bias = as_bias(row if torch.equal(mask, row.expand_as(mask)) else mask, query.dtype)
    groups = []
    for first in range(0, sequences, size):
        last = min(first + size, sequences)
        group_bias = None if bias is None else bias[first : first + size]
        groups.append(Group(slice(first * length, last * length), last - first, length, group_bias))
    return groups


class _FewSequences(torch.autograd.Function):
    """Attention over queries, keys and values of shape ``(all tokens, heads, size)``. The backward
    pass computes the attention weights again, because keeping them would take too much memory.
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
                queries, keys, values = map(group.rows_of, (query, key, value))
                weights = group.weights(queries, keys, scaling)
                group.write_rows(output, torch.bmm(weights, values))
        ctx.save_for_backward(query, key, value)
        ctx.groups = groups
        ctx.scaling = scaling
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors
        groups = ctx.groups
        grad_query, grad_key, grad_value = grads = [_empty_like(saved, groups) for saved in inputs]
        empty = gradient.new_empty(())
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                queries, keys, values, gradients = map(group.rows_of, (*inputs, gradient))
                weights = group.weights(queries, keys, ctx.scaling)
                group.write_rows(grad_value, torch.bmm(weights.transpose(1, 2), gradients))
                products = torch.bmm(gradients, values.transpose(1, 2))
                internals.softmax_backward(products, weights)
                transposed = products.transpose(1, 2)
                for grad, factors, tokens in (
                    (grad_query, products, keys),
                    (grad_key, transposed, queries),
                ):
                    result = torch.baddbmm(empty, factors, tokens, beta=0, alpha=ctx.scaling)
                    group.write_rows(grad, result)
        return (*grads, None, None)


def _empty_like(tokens: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
    """Return an uninitialized tensor for a result; tokens in no group are 0."""
    result = torch.empty_like(tokens)
    result[groups[-1].tokens.stop :] = 0
    return result
