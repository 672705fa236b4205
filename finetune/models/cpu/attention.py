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
from functools import partial
from typing import Any, TypeGuard

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finetune.models import families

#: Names under which models know it; the second leaves batches with padding to torch's kernel.
NAME, IF_UNPADDED = "finetune_few_sequences", "finetune_few_sequences_if_unpadded"
#: Attribute of a mask: the groups of sequences, where the sequences of a batch are packed.
GROUPS = "finetune_groups"
_BIAS = "finetune_bias"  # likewise: the mask as it is added to the products
#: Attention weights of a head that are computed at a time.
WEIGHTS_AT_ONCE = 2 * 256 * 256
_LEAST = 1e-20  # of a sum of exponentials
#: What it multiplies.
DTYPES = (torch.float32, torch.bfloat16)
#: Keyword arguments of layers and attention that change nothing in them: the positions of tokens
#: are in the hidden states by then.
WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "return_dict", "output_hidden_states", "num_items_in_batch"}
)
_IN_THE_MASK = frozenset({"sliding_window"})  # where there is one


def use(model: torch.nn.Module, only_if_unpadded: bool = False) -> None:
    """Let ``model`` attend by :func:`forward` if it attends by torch's kernel now; batches with
    padding not, if ``only_if_unpadded``.
    """
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        name = IF_UNPADDED if only_if_unpadded else NAME
        AttentionInterface.register(name, partial(forward, only_if_unpadded=only_if_unpadded))
        AttentionMaskInterface.register(name, sdpa_mask)
        model.set_attn_implementation(name)


def used_by(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether ``model`` attends by :func:`forward` now."""
    ours = NAME, IF_UNPADDED
    return isinstance(model, PreTrainedModel) and model.config._attn_implementation in ours


def drops_weights(model: PreTrainedModel) -> bool:
    """Return whether attention weights are dropped in training, which only torch's kernel does."""
    return any(families.dropouts(model.config, "attention_dropout").values())


@contextlib.contextmanager
def torchs_own(model: torch.nn.Module) -> Iterator[None]:
    """Let ``model`` attend by torch's kernel for a while, if it attends by :func:`forward`."""
    if not used_by(model):
        yield
        return
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
    only_if_unpadded: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as an ``AttentionInterface`` of ``transformers`` does; what is not known, and a batch
    with padding if ``only_if_unpadded``, is left to torch's kernel.

    Query, key and value have shape ``(sequences, heads, tokens, size)``, the mask is true where a
    token is seen, of shape ``(sequences, 1, tokens, tokens)``. Returns no weights beside the output
    of shape ``(sequences, tokens, heads, size)``.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    groups: list[Group] | None = getattr(attention_mask, GROUPS, None)
    known = (
        not (causal or dropout)
        and _knows(query, key, value)
        and (groups is not None or (not only_if_unpadded and _knows_batch(query, attention_mask)))
        and nothing_else(others, () if attention_mask is None else _IN_THE_MASK)
    )
    if not known:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if groups is None:
        bias = None if attention_mask is None else _as_bias(attention_mask, query.dtype)
        groups = _grouped(query.shape[0], query.shape[2], bias)
    output: torch.Tensor = _FewSequences.apply(  # type: ignore[no-untyped-call]
        query, key, value, groups, scaling
    )
    return output, None


def nothing_else(named: Mapping[str, Any], allowed: Collection[str] = ()) -> bool:
    """Return whether keyword arguments, ``allowed`` ones aside, change nothing in a result."""
    return all(
        each is None or each is False or name in WITHOUT_EFFECT or name in allowed
        for name, each in named.items()
    )


def recorded() -> bool:
    """Return whether torch records the operators for another use, with the shapes of this one."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_compiling()


def _knows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether they are of one shape and dtype that is multiplied here."""
    return (
        query.ndim == 4
        and query.numel() > 0
        and query.shape == key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
        and query.dtype in DTYPES
        and query.device.type == "cpu"
        and not recorded()
    )


def _knows_batch(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether there is no mask, or a boolean one that is the same for all heads."""
    sequences, _, tokens, _ = query.shape
    return mask is None or (
        mask.dtype == torch.bool and mask.shape == (sequences, 1, tokens, tokens)
    )


@dataclass(frozen=True, eq=False)
class Group:
    """A few sequences whose weights are in memory at a time."""

    tokens: slice  # theirs, of those of all sequences
    sequences: int
    length: int  # of each, with what fills it up
    #: Added to the products, shape ``(sequences, 1, length or 1, length)``.
    bias: torch.Tensor | None = None
    #: Where sequences are filled up: the index of each token, ``(sequences * length,)``, there that
    #: of a token in no group, and the places that are not filled up.
    taken: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def take(self, every: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write ``(tokens of all sequences, heads, size)`` as ``(sequences * heads, length, size)``
        into ``out``, which may have more columns.
        """
        rows = every[self.tokens] if self.taken is None else every.index_select(0, self.taken)
        rows = self._by_sequence(rows).transpose(1, 2)
        self._by_sequence(out)[..., : every.shape[-1]] = rows
        return out

    def put(self, every: torch.Tensor, found: torch.Tensor) -> None:
        """Write the other way, without what filled the sequences up."""
        rows, mine = self._by_sequence(found).transpose(1, 2), every[self.tokens]
        if self.real is None:
            mine.view(rows.shape).copy_(rows)
        else:
            torch.index_select(rows.flatten(0, 1), 0, self.real, out=mine)

    def products(
        self, queries: torch.Tensor, keys: torch.Tensor, scaling: float, out: torch.Tensor
    ) -> torch.Tensor:
        """Multiply queries and keys, bias added: ``(sequences * heads, length, length)``."""
        beta = 0
        if self.bias is not None:
            self._by_sequence(out).copy_(self.bias)
            beta = 1
        return torch.baddbmm(out, queries, keys.transpose(1, 2), beta=beta, alpha=scaling, out=out)

    def _by_sequence(self, each: torch.Tensor) -> torch.Tensor:
        return each.view(self.sequences, -1, *each.shape[1:])


def at_once(length: int) -> int:
    """Return how many sequences of a length make a group."""
    return max(1, WEIGHTS_AT_ONCE // length**2)


def lowest(dtype: torch.dtype) -> float:
    """Return what is as good as nothing once it is an exponent; a product is still added to it."""
    return torch.finfo(dtype).min / 2


def _grouped(sequences: int, length: int, bias: torch.Tensor | None) -> list[Group]:
    """Return sequences of one length that follow each other, in groups of few enough weights."""
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


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is added to the products, one row for all where every token sees the same.

    The layers of a model have one mask, so it is kept with the mask.
    """
    bias: torch.Tensor | None = getattr(mask, _BIAS, None)
    if bias is None:
        one = mask[:, :, :1]
        seen = one if torch.equal(mask, one.expand_as(mask)) else mask
        bias = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest(dtype))
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
        room, size = _Room((query, key, value), groups, scaling), value.shape[-1]
        output, sums = room.of_all(size), room.of_all(1)
        softened = set()
        with torch.autocast("cpu", enabled=False):
            for group in groups:
                queries, keys, with_ones, products = room.start(group)
                weights = products.exp_()
                found = torch.bmm(weights, with_ones, out=room(group, "output", size + 1))
                if not _usable(found[..., size:]):
                    softened.add(group)
                    group.products(queries, keys, scaling, weights)
                    torch.softmax(weights, -1, out=weights)
                    torch.bmm(weights, with_ones, out=found)
                    found[..., size:] = 1
                group.put(sums, found[..., size:])
                group.put(output, found[..., :size].div_(found[..., size:]))
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.groups, ctx.scaling, ctx.softened = groups, scaling, softened
        return output.view(query.shape[0], query.shape[2], *output.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *given, output, sums = ctx.saved_tensors
        room, size = _Room(given, ctx.groups, ctx.scaling), output.shape[-1]
        of_queries, of_keys, of_values = found = [room.of_all(size) for _ in range(3)]
        nothing = output.new_empty(())
        with torch.autocast("cpu", enabled=False):
            # both over the sums: minus the mean of the gradients of the weights comes last
            gradient = gradient.reshape(output.shape)
            mean = (gradient * output).sum(-1, keepdim=True).neg_()
            gradients = torch.cat([gradient, mean], dim=-1).div_(sums)
            gradients[room.grouped :] = 0
            for group in ctx.groups:
                queries, keys, with_ones, weights = room.start(group)
                if group in ctx.softened:
                    torch.softmax(weights, -1, out=weights)
                else:
                    weights.exp_()
                over = group.take(gradients, room(group, "gradients", size + 1))
                out = room(group, "output", size)
                torch.bmm(weights.transpose(1, 2), over[..., :size], out=out)
                group.put(of_values, out)
                products = room(group, "gradients of products", group.length)
                torch.bmm(over, with_ones.transpose(1, 2), out=products)
                products *= weights
                for product, other, of_all in (
                    (products, keys, of_queries),
                    (products.transpose(1, 2), queries, of_keys),
                ):
                    torch.baddbmm(nothing, product, other, beta=0, alpha=ctx.scaling, out=out)
                    group.put(of_all, out)
        shape = given[0].shape[0], given[0].shape[2], *output.shape[1:]
        return (*(each.view(shape).transpose(1, 2) for each in found), None, None)


class _Room:
    """Memory that one group after another is computed in: it stays in the cache."""

    def __init__(
        self, given: Sequence[torch.Tensor], groups: Sequence[Group], scaling: float
    ) -> None:
        # queries, keys and values, (sequences, heads, tokens, size) to (all tokens, heads, size)
        self.given = [each.transpose(1, 2).reshape(-1, *each.shape[1::2]) for each in given]
        self.grouped, self.scaling = groups[-1].tokens.stop, scaling
        self.kept: dict[str, torch.Tensor] = {}

    def __call__(self, group: Group, name: str, columns: int) -> torch.Tensor:
        """Return room for ``(sequences * heads, length, columns)``."""
        shape = group.sequences * self.given[0].shape[1], group.length, columns
        size = math.prod(shape)
        if name not in self.kept or len(self.kept[name]) < size:
            self.kept[name] = self.given[0].new_empty(size)
        return self.kept[name][:size].view(shape)

    def start(self, group: Group) -> tuple[torch.Tensor, ...]:
        """Return a group's queries, keys, values with a column of ones, and products."""
        queries, keys, values = self.given
        size = values.shape[-1]
        queries = group.take(queries, self(group, "queries", size))
        keys = group.take(keys, self(group, "keys", size))
        with_ones = group.take(values, self(group, "values", size + 1))
        with_ones[..., size] = 1
        out = self(group, "products", group.length)
        return queries, keys, with_ones, group.products(queries, keys, self.scaling, out)

    def of_all(self, columns: int) -> torch.Tensor:
        """Return room to keep for ``(all tokens, heads, columns)``, zero for those in no group."""
        found = self.given[0].new_empty(*self.given[0].shape[:2], columns)
        found[self.grouped :] = 0
        return found


def _usable(sums: torch.Tensor) -> bool:
    """Return whether none is nearly nothing, or beyond what can be divided by."""
    least, most = torch.aminmax(sums)
    return bool(least > _LEAST) and bool(most < 1 / _LEAST)
