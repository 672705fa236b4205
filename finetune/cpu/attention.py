"""Attention in bf16 on a CPU: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. Forward and backward over 8,192 tokens with 12
heads of 32 took 39 ms in sequences of 256 on two cores with AVX512-BF16, where the fused kernel
took 95; in sequences of 32 it was 17 and 93. In fp32 the fused kernel is the faster one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "finetune_few_sequences"
_WEIGHTS_AT_ONCE = 2 * 256 * 256  # of a head
_LEAST = 1e-20  # of a sum of exponentials
_BIAS = "finetune_bias"  # of a mask
_OTHER_TASKS = ("position_bias", "softcap", "cache")


def use(model: torch.nn.Module) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now."""
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


@contextlib.contextmanager
def torchs_own(model: torch.nn.Module) -> Iterator[None]:
    """Let ``model`` attend by torch's kernel for a while, if it attends by :func:`forward`."""
    if not isinstance(model, PreTrainedModel) or model.config._attn_implementation != NAME:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
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
        and query.dtype == key.dtype == value.dtype
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and all(others.get(name) is None for name in _OTHER_TASKS)
    )
    if not plain:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    bias = None if attention_mask is None else _as_bias(attention_mask, query.dtype)
    found: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        query, key, value, bias, scaling
    )
    return found, None


class _FewSequences(torch.autograd.Function):
    """Exponentials of the products are multiplied with the values and with a column of ones: the
    last column of the result is what the others are divided by, and the softmax takes one pass over
    the products in place of three.

    Where exponentials are too large or too small for that, the group has a softmax. They are
    computed again in the backward pass: to keep them would take more memory than everything else.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        scaling: float,
    ) -> torch.Tensor:
        sequences, heads, tokens, size = value.shape
        found = value.new_empty(sequences, tokens, heads, size)
        sums = value.new_empty(sequences, heads, tokens, 1)
        groups = _Groups(query, key, bias, scaling)
        values = _with_column(value, 1)
        with torch.autocast("cpu", enabled=False):
            for here, weights in groups.exponentials():
                product = torch.bmm(weights, values[groups.flat(here)])
                if not _usable(product[..., size:]):
                    groups.soften(here, weights)
                    torch.bmm(weights, values[groups.flat(here)], out=product)
                    product[..., size:] = 1
                product = product.view(-1, heads, tokens, size + 1)
                sums[here] = product[..., size:]
                torch.div(product[..., :size], sums[here], out=found[here].transpose(1, 2))
        ctx.save_for_backward(query, key, value, bias, found, sums)
        ctx.scaling, ctx.softened = scaling, groups.softened
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, bias, output, sums = ctx.saved_tensors
        size = value.shape[-1]
        groups = _Groups(query, key, bias, ctx.scaling, ctx.softened)
        found = [torch.empty_like(query, memory_format=torch.contiguous_format) for _ in range(3)]
        of_query, of_key, of_value = (_flat(each) for each in found)
        with torch.autocast("cpu", enabled=False):
            # both over the sums: minus the mean of the gradients of the weights comes last
            mean = (gradient * output).sum(-1, keepdim=True).transpose(1, 2).neg_()
            gradients = _with_column(gradient.transpose(1, 2), mean)
            gradients /= _flat(sums)
            values = _with_column(value, 1)
            of_products = torch.empty_like(groups.room)
            nothing = query.new_empty(())
            for here, weights in groups.exponentials():
                rows = groups.flat(here)
                torch.bmm(weights.transpose(1, 2), gradients[rows, :, :size], out=of_value[rows])
                products = of_products[: len(weights)]
                torch.bmm(gradients[rows], values[rows].transpose(1, 2), out=products)
                products *= weights
                for product, other, out in (
                    (products, groups.keys, of_query),
                    (products.transpose(1, 2), groups.queries, of_key),
                ):
                    torch.baddbmm(
                        nothing, product, other[rows], beta=0, alpha=ctx.scaling, out=out[rows]
                    )
        return (*found, None, None)


class _Groups:
    """A few sequences at a time, their products in the same memory each time.

    Args:
        query: Shape ``(sequences, heads, tokens, size)``.
        key: Likewise.
        bias: Added to the products, shape ``(sequences, 1, tokens or 1, tokens)``.
        scaling: Of the products.
        softened: The groups that have a softmax, by their first sequence.
    """

    def __init__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        bias: torch.Tensor | None,
        scaling: float,
        softened: frozenset[int] = frozenset(),
    ) -> None:
        self.sequences, self.heads, self.tokens, _ = query.shape
        self.some = max(1, min(self.sequences, _WEIGHTS_AT_ONCE // self.tokens**2))
        self.room = query.new_empty(self.some * self.heads, self.tokens, self.tokens)
        self.queries, self.keys = _flat(query), _flat(key)
        self.bias, self.scaling, self.softened = bias, scaling, softened

    def exponentials(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Of the products of each group, or their softmax.

        Yields:
            Its sequences, and its weights, shape ``(sequences * heads, tokens, tokens)``.
        """
        for first in range(0, self.sequences, self.some):
            here = slice(first, min(first + self.some, self.sequences))
            weights = self._products(here)
            if first in self.softened:
                torch.softmax(weights, -1, out=weights)
            else:
                weights.exp_()
            yield here, weights

    def soften(self, here: slice, weights: torch.Tensor) -> None:
        """Let these have a softmax after all, here and in the backward pass."""
        self.softened |= {here.start}
        torch.softmax(self._products(here), -1, out=weights)

    def flat(self, here: slice) -> slice:
        """Where sequences are in ``sequences * heads``."""
        return slice(here.start * self.heads, here.stop * self.heads)

    def _products(self, here: slice) -> torch.Tensor:
        rows = self.flat(here)
        products = self.room[: rows.stop - rows.start]
        added, beta = products, 0
        if self.bias is not None:
            bias = self.bias[here].expand(-1, self.heads, -1, -1)
            added = bias.reshape(-1, *bias.shape[2:]).expand(-1, self.tokens, -1)
            beta = 1
        keys = self.keys[rows].transpose(1, 2)
        return torch.baddbmm(
            added, self.queries[rows], keys, beta=beta, alpha=self.scaling, out=products
        )


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the products, one row for all where every token sees the same.

    The layers of a model have one mask, so it is kept with the mask.
    """
    bias: torch.Tensor | None = getattr(mask, _BIAS, None)
    if bias is None:
        one = mask[:, :, :1]
        seen = one if torch.equal(mask, one.expand_as(mask)) else mask
        lowest = torch.finfo(dtype).min / 2  # a product is still added to it
        bias = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest)
        setattr(mask, _BIAS, bias)
    return bias


def _usable(sums: torch.Tensor) -> bool:
    """Whether none is nearly nothing, or beyond what can be divided by."""
    least, most = torch.aminmax(sums)
    return bool(least > _LEAST) and bool(most < 1 / _LEAST)


def _with_column(each: torch.Tensor, content: torch.Tensor | float) -> torch.Tensor:
    """Shape ``(sequences * heads, tokens, size + 1)``, the last column filled."""
    sequences, heads, tokens, size = each.shape
    found = each.new_empty(sequences, heads, tokens, size + 1)
    found[..., :size] = each
    found[..., size:] = content
    return found.view(-1, tokens, size + 1)


def _flat(each: torch.Tensor) -> torch.Tensor:
    """Shape ``(sequences * heads, tokens, size)``."""
    return each.reshape(-1, *each.shape[2:])
