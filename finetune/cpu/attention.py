"""Attention in bf16 on a CPU: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. Forward and backward over 8,192 tokens with 12
heads of 32 took 49 ms in sequences of 256 on two cores with AVX512-BF16, where the fused kernel
took 95; in sequences of 32 it was 20 and 93. In fp32 the fused kernel is the faster one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "finetune_few_sequences"
_WEIGHTS_AT_ONCE = 256 * 256  # of a head
_OTHER_TASKS = ("position_bias", "softcap", "cache")


def use(model: torch.nn.Module) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now."""
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as ``transformers`` asks for it; what is not plain is left to torch's kernel.

    Args:
        module: The layer.
        query: Shape ``(sequences, heads, tokens, size)``.
        key: Likewise.
        value: Likewise.
        attention_mask: True where a token is seen, shape ``(sequences, 1, tokens, tokens)``.
        dropout: None is done here.
        scaling: Of the products; the root of the size divides them if it is None.
        is_causal: Whether a token sees only those before it.
        **others: What a model may ask for besides.

    Returns:
        Shape ``(sequences, tokens, heads, size)``.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    plain = (
        not (causal or dropout)
        and query.shape == key.shape == value.shape
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and all(others.get(name) is None for name in _OTHER_TASKS)
    )
    if not plain:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    found: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        query, key, value, attention_mask, scaling
    )
    return found.transpose(1, 2).contiguous(), None


class _FewSequences(torch.autograd.Function):
    """The weights are computed again in the backward pass: to keep them would take more memory than
    everything else.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scaling = scaling
        found = torch.empty_like(value, memory_format=torch.contiguous_format)
        flat = found.view(-1, *found.shape[2:])
        with torch.autocast("cpu", enabled=False):
            for here, weights in _weights(query, key, mask, scaling):
                torch.bmm(weights, _flat(value)[here], out=flat[here])
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask = ctx.saved_tensors
        found = [torch.empty_like(query, memory_format=torch.contiguous_format) for _ in range(3)]
        of_query, of_key, of_value = (_flat(each) for each in found)
        queries, keys, values, gradient = (_flat(e) for e in (query, key, value, gradient))
        nothing = query.new_empty(())
        with torch.autocast("cpu", enabled=False):
            for here, weights in _weights(query, key, mask, ctx.scaling):
                torch.bmm(weights.transpose(1, 2), gradient[here], out=of_value[here])
                of_weights = torch.bmm(gradient[here], values[here].transpose(1, 2))
                of_products = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                for product, other, out in (
                    (of_products, keys, of_query),
                    (of_products.transpose(1, 2), queries, of_key),
                ):
                    torch.baddbmm(
                        nothing, product, other[here], beta=0, alpha=ctx.scaling, out=out[here]
                    )
        return (*found, None, None)


def _weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The weights of a few sequences at a time, in the same memory each time.

    Yields:
        Where they are in ``sequences * heads``, and the weights, shape ``(these, tokens, tokens)``.
    """
    sequences, heads, tokens, _ = query.shape
    some = max(1, min(sequences, _WEIGHTS_AT_ONCE // tokens**2))
    room = query.new_empty(some * heads, tokens, tokens)
    queries, keys = _flat(query), _flat(key).transpose(1, 2)
    for first in range(0, sequences, some):
        last = min(first + some, sequences)
        here = slice(first * heads, last * heads)
        weights = room[: (last - first) * heads]
        torch.baddbmm(weights, queries[here], keys[here], beta=0, alpha=scaling, out=weights)
        if mask is not None:
            of_heads = weights.view(last - first, heads, tokens, tokens)
            of_heads.masked_fill_(~mask[first:last], torch.finfo(weights.dtype).min)
        yield here, torch.softmax(weights, -1, out=weights)


def _flat(each: torch.Tensor) -> torch.Tensor:
    """Shape ``(sequences * heads, tokens, size)``."""
    return each.reshape(-1, *each.shape[2:])
