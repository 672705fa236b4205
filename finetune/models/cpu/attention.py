"""Attention on a CPU: a few sequences at a time, by plain matrix products.

torch's fused kernel multiplies bf16 no faster than fp32 there. Products of a few whole sequences
are faster, and their weights stay in the cache. Forward and backward over 8,192 tokens with 12
heads of 32 took 39 ms in sequences of 256 on two cores with AVX512-BF16, where the fused kernel
took 95; in sequences of 32 it was 17 and 93. In fp32 the fused kernel is the faster one, but it
cannot do without the padding, see :mod:`finetune.models.cpu.unpadded`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finetune.models import pretrained

#: What models call them.
NAME, IF_UNPADDED = "finetune_few_sequences", "finetune_few_sequences_if_unpadded"
#: Of a mask: the groups of sequences, where these follow each other in one.
GROUPS = "finetune_groups"
_WEIGHTS_AT_ONCE = 2 * 256 * 256  # of a head
_LEAST = 1e-20  # of a sum of exponentials
_BIAS = "finetune_bias"  # of a mask
#: Sequences of a batch, and its tokens with padding, from which on it is taken; sequences that
#: follow each other without padding always take it: torch's kernel would mix them.
LEAST_SEQUENCES, LEAST_TOKENS = 1, 1
#: What it multiplies.
DTYPES = (torch.float32, torch.bfloat16)
#: What layers and attention are handed that changes nothing in them: places of tokens are in the
#: hidden states by then.
WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "return_dict", "output_hidden_states", "num_items_in_batch"}
)
_IN_THE_MASK = frozenset({"sliding_window"})  # where there is one


def use(model: torch.nn.Module, only_if_unpadded: bool = False) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now.

    Args:
        model: Any.
        only_if_unpadded: Leave batches with their padding to torch's kernel.
    """
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        name = IF_UNPADDED if only_if_unpadded else NAME
        AttentionInterface.register(name, _forward_if_unpadded if only_if_unpadded else forward)
        AttentionMaskInterface.register(name, sdpa_mask)
        model.set_attn_implementation(name)


def used_by(model: torch.nn.Module) -> bool:
    """Whether it attends by :func:`forward` now."""
    ours = NAME, IF_UNPADDED
    return isinstance(model, PreTrainedModel) and model.config._attn_implementation in ours


def drops_weights(model: PreTrainedModel) -> bool:
    """Return whether attention weights are dropped in training, which only torch's kernel does."""
    names = pretrained.DROPOUTS["attention_dropout"]
    return any(getattr(model.config, name, 0) for name in names)


@contextlib.contextmanager
def torchs_own(model: torch.nn.Module) -> Iterator[None]:
    """Let ``model`` attend by torch's kernel for a while, if it attends by :func:`forward`."""
    if not used_by(model):
        yield
        return
    assert isinstance(model, PreTrainedModel)
    name = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(name)


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
    """Attention as ``transformers`` asks for it; what is not known is left to torch's kernel.

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
    known = (
        not (causal or dropout)
        and _knows(query, key, value)
        and _knows_mask(attention_mask, query)
        and nothing_else(others, () if attention_mask is None else _IN_THE_MASK)
    )
    if not known:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = getattr(attention_mask, GROUPS, None)
    if groups is None:
        bias = None if attention_mask is None else _as_bias(attention_mask, query.dtype)
        groups = grouped(query.shape[0], query.shape[2], bias)
    found: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        query, key, value, groups, scaling
    )
    return found, None


def worth(sequences: int, tokens: int) -> bool:
    """Return whether it pays for a batch.

    Args:
        sequences: Of the batch.
        tokens: Of each, with padding.
    """
    return sequences >= LEAST_SEQUENCES and sequences * tokens >= LEAST_TOKENS


def nothing_else(named: Mapping[str, Any], allowed: Collection[str] = ()) -> bool:
    """Return whether keyword arguments ask for nothing that changes a result.

    Args:
        named: Of a layer, or of its attention.
        allowed: Names that are taken care of.
    """
    return all(
        each is None or each is False or name in WITHOUT_EFFECT or name in allowed
        for name, each in named.items()
    )


def recorded() -> bool:
    """Return whether torch records the operators for another use, with the shapes of this one."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_compiling()


def _knows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    return (
        query.ndim == 4
        and query.numel() > 0
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and query.dtype in DTYPES
        and query.device.type == "cpu"
        and not recorded()
    )


def _knows_mask(mask: torch.Tensor | None, query: torch.Tensor) -> bool:
    """Return whether a mask is one of truth for each sequence, the same for all heads, and the
    batch large enough.
    """
    if hasattr(mask, GROUPS):
        return True
    sequences, _, tokens, _ = query.shape
    plain = mask is None or (
        mask.dtype == torch.bool and mask.shape == (sequences, 1, tokens, tokens)
    )
    return plain and worth(sequences, tokens)


def _forward_if_unpadded(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    attend = forward if hasattr(attention_mask, GROUPS) else sdpa_attention_forward
    found: tuple[torch.Tensor, None] = attend(module, query, key, value, attention_mask, **others)
    return found


@dataclass(frozen=True, eq=False)
class Group:
    """A few sequences whose weights are in memory at a time.

    Attributes:
        tokens: Theirs, of those of all sequences.
        sequences: How many.
        length: Of each, with what fills it up.
        bias: Added to the products, shape ``(sequences, 1, length or 1, length)``.
        taken: Where the tokens are that the sequences are made of, shape
            ``(sequences * length,)``, filled up with one that is in no group; None if nothing is.
        real: The places that are not filled up.
    """

    tokens: slice
    sequences: int
    length: int
    bias: torch.Tensor | None = None
    taken: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def take(self, every: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        """Of each token to ``(sequences * heads, length, size)``.

        Args:
            every: Shape ``(tokens of all sequences, heads, size)``.
            room: For the result, which may have more columns.
        """
        rows = every[self.tokens] if self.taken is None else every.index_select(0, self.taken)
        rows = self._by_sequence(rows).transpose(1, 2)
        self._by_sequence(room)[..., : every.shape[-1]] = rows
        return room

    def put(self, every: torch.Tensor, found: torch.Tensor) -> None:
        """The other way, without what filled the sequences up."""
        rows, mine = self._by_sequence(found).transpose(1, 2), every[self.tokens]
        if self.real is None:
            mine.view(rows.shape).copy_(rows)
        else:
            torch.index_select(rows.flatten(0, 1), 0, self.real, out=mine)

    def products(
        self, queries: torch.Tensor, keys: torch.Tensor, scaling: float, out: torch.Tensor
    ) -> torch.Tensor:
        """Of queries and keys with the bias, shape ``(sequences * heads, length, length)``."""
        beta = 0
        if self.bias is not None:
            self._by_sequence(out).copy_(self.bias)
            beta = 1
        keys = keys.transpose(1, 2)
        return torch.baddbmm(out, queries, keys, beta=beta, alpha=scaling, out=out)

    def _by_sequence(self, each: torch.Tensor) -> torch.Tensor:
        return each.view(self.sequences, -1, *each.shape[1:])


def grouped(sequences: int, length: int, bias: torch.Tensor | None) -> list[Group]:
    """Sequences of one length that follow each other, in groups of few enough weights.

    Args:
        sequences: How many.
        length: Of each.
        bias: Added to their products, shape ``(sequences, 1, length or 1, length)``.
    """
    some = at_once(length)
    return [
        Group(
            slice(first * length, min(first + some, sequences) * length),
            min(some, sequences - first),
            length,
            None if bias is None else bias[first : first + some],
        )
        for first in range(0, sequences, some)
    ]


def at_once(length: int) -> int:
    """How many sequences of a length make a group."""
    return max(1, _WEIGHTS_AT_ONCE // length**2)


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
        groups: Sequence[Group],
        scaling: float,
    ) -> torch.Tensor:
        queries, keys, values = (_of_tokens(each) for each in (query, key, value))
        room, size = _Room(queries, groups), values.shape[-1]
        output, sums = room.of_all(size), room.of_all(1)
        softened = set()
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                mine = group.take(queries, room(group, 0)), group.take(keys, room(group, 1))
                weights = group.products(*mine, scaling, room.of_products(group, 0)).exp_()
                with_column = group.take(values, room(group, 2, more=1))
                with_column[..., size] = 1
                found = torch.bmm(weights, with_column, out=room(group, 3, more=1))
                if not _usable(found[..., size:]):
                    softened.add(group)
                    torch.softmax(group.products(*mine, scaling, weights), -1, out=weights)
                    torch.bmm(weights, with_column, out=found)
                    found[..., size:] = 1
                group.put(sums, found[..., size:])
                group.put(output, found[..., :size].div_(found[..., size:]))
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.groups, ctx.scaling, ctx.softened = groups, scaling, softened
        return output.view(query.shape[0], query.shape[2], *output.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *given, output, sums = ctx.saved_tensors
        queries, keys, values = (_of_tokens(each) for each in given)
        room, size = _Room(queries, ctx.groups), values.shape[-1]
        of_queries, of_keys, of_values = found = [room.of_all(size) for _ in range(3)]
        nothing = output.new_empty(())
        with torch.autocast("cpu", enabled=False):
            # both over the sums: minus the mean of the gradients of the weights comes last
            gradient = gradient.reshape(output.shape)
            mean = (gradient * output).sum(-1, keepdim=True).neg_()
            gradients = torch.cat([gradient, mean], dim=-1).div_(sums)
            gradients[room.grouped :] = 0
            for group in ctx.groups:
                mine = group.take(queries, room(group, 0)), group.take(keys, room(group, 1))
                weights = group.products(*mine, ctx.scaling, room.of_products(group, 0))
                if group in ctx.softened:
                    torch.softmax(weights, -1, out=weights)
                else:
                    weights.exp_()
                with_column = group.take(values, room(group, 2, more=1))
                with_column[..., size] = 1
                over = group.take(gradients, room(group, 3, more=1))
                out = room(group, 4)
                torch.bmm(weights.transpose(1, 2), over[..., :size], out=out)
                group.put(of_values, out)
                products = room.of_products(group, 1)
                torch.bmm(over, with_column.transpose(1, 2), out=products)
                products *= weights
                for product, other, of_all in (
                    (products, mine[1], of_queries),
                    (products.transpose(1, 2), mine[0], of_keys),
                ):
                    torch.baddbmm(nothing, product, other, beta=0, alpha=ctx.scaling, out=out)
                    group.put(of_all, out)
        shape = given[0].shape[0], given[0].shape[2], *output.shape[1:]
        return (*(each.view(shape).transpose(1, 2) for each in found), None, None)


class _Room:
    """Memory that one group after another is computed in: it stays in the cache.

    Args:
        like: Queries, shape ``(tokens of all sequences, heads, size)``.
        groups: All of them.
    """

    def __init__(self, like: torch.Tensor, groups: Sequence[Group]) -> None:
        self.like, (_, self.heads, self.size) = like, like.shape
        self.grouped = groups[-1].tokens.stop
        self.tokens = max(group.sequences * group.length for group in groups)
        self.pairs = max(group.sequences * group.length**2 for group in groups)
        self.kept: dict[tuple[str, int], torch.Tensor] = {}

    def __call__(self, group: Group, which: int, more: int = 0) -> torch.Tensor:
        """Shape ``(sequences * heads, length, size)``, or with more columns."""
        columns = self.size + more
        return self._view(("tokens", which), self.tokens * columns, group, columns)

    def of_products(self, group: Group, which: int) -> torch.Tensor:
        """Shape ``(sequences * heads, length, length)``."""
        return self._view(("products", which), self.pairs, group, group.length)

    def of_all(self, columns: int) -> torch.Tensor:
        """Shape ``(tokens of all sequences, heads, columns)``, to be kept; of tokens in no group
        it is zero.
        """
        found = self.like.new_empty(*self.like.shape[:2], columns)
        found[self.grouped :] = 0
        return found

    def _view(self, name: tuple[str, int], most: int, group: Group, columns: int) -> torch.Tensor:
        if name not in self.kept:
            self.kept[name] = self.like.new_empty(self.heads * most)
        shape = group.sequences * self.heads, group.length, columns
        return self.kept[name][: math.prod(shape)].view(shape)


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the products, one row for all where every token sees the same.

    The layers of a model have one mask, so it is kept with the mask.
    """
    bias: torch.Tensor | None = getattr(mask, _BIAS, None)
    if bias is None:
        one = mask[:, :, :1]
        seen = one if torch.equal(mask, one.expand_as(mask)) else mask
        bias = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest(dtype))
        setattr(mask, _BIAS, bias)
    return bias


def _usable(sums: torch.Tensor) -> bool:
    """Whether none is nearly nothing, or beyond what can be divided by."""
    least, most = torch.aminmax(sums)
    return bool(least > _LEAST) and bool(most < 1 / _LEAST)


def lowest(dtype: torch.dtype) -> float:
    """As good as nothing once it is an exponent; a product is still added to it."""
    return torch.finfo(dtype).min / 2


def _of_tokens(each: torch.Tensor) -> torch.Tensor:
    """Shape ``(sequences, heads, tokens, size)`` to ``(tokens of all sequences, heads, size)``."""
    return each.transpose(1, 2).reshape(-1, each.shape[1], each.shape[3])
