"""Attention in bf16 on a CPU, for inference: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. For 1,024 tokens with 12 heads of 32 on a core with
AVX512-BF16, that took 3.3 ms in sequences of 256, where the fused kernel took 6.0; with heads of 64
it was 4.3 and 10.5.
"""

from __future__ import annotations

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
        not (causal or dropout or query.requires_grad)
        and query.shape == key.shape == value.shape
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and all(others.get(name) is None for name in _OTHER_TASKS)
    )
    if not plain:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    sequences, heads, tokens, size = query.shape
    scaling = size**-0.5 if scaling is None else scaling
    some = max(1, min(sequences, _WEIGHTS_AT_ONCE // tokens**2))
    room = query.new_empty(some * heads, tokens, tokens)
    found = query.new_empty(sequences * heads, tokens, size)
    query, key, value = (each.reshape(found.shape) for each in (query, key, value))
    key = key.transpose(1, 2)
    for first in range(0, sequences, some):
        last = min(first + some, sequences)
        here = slice(first * heads, last * heads)
        weights = room[: (last - first) * heads]
        torch.baddbmm(weights, query[here], key[here], beta=0, alpha=scaling, out=weights)
        if attention_mask is not None:
            of_heads = weights.view(last - first, heads, tokens, tokens)
            of_heads.masked_fill_(~attention_mask[first:last], torch.finfo(weights.dtype).min)
        torch.softmax(weights, -1, out=weights)
        torch.bmm(weights, value[here], out=found[here])
    return found.view(sequences, heads, tokens, size).transpose(1, 2).contiguous(), None
