"""The layers of a text model over the tokens of a batch, with next to none of its padding.

All that the layers compute, but for the attention, they compute for one token at a time. So on
their way through the layers the rows of a batch follow each other as one sequence, and the
attention is told where each of them lies: short ones share a sequence of up to 64 tokens, in which
each sees itself only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from finetune import pretrained
from finetune.cpu import attention, layers
from finetune.data import batches

#: Models whose layers are handed hidden states and a mask, and nothing else that depends on
#: the places of the tokens.
KNOWN = frozenset({"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"})
_SHARED = 64  # tokens of a sequence that rows share
# Matrix products are of few shapes: oneDNN keeps half a megabyte of each.
_SHORT, _LONG = 32, 64  # what sequences are a multiple of
_MULTIPLE = 64  # what all tokens are a multiple of, at least
_WORTH = 0.95  # of the tokens with padding


def use(model: torch.nn.Module) -> bool:
    """Let the layers of ``model`` see no padding, if that is known to be the same.

    Returns:
        Whether it is: the model is one of those, and attends by :mod:`finetune.cpu.attention`.
    """
    if not layers.of_library(model) or not attention.used_by(model):
        return False
    hooks = model._forward_pre_hooks.values()
    if any(isinstance(getattr(hook, "__self__", None), _Hooks) for hook in hooks):
        return True  # of another trainer
    config = model.config
    others = "is_decoder", "chunk_size_feed_forward", *pretrained.DROPOUTS["attention_dropout"]
    if config.model_type not in KNOWN or any(getattr(config, name, 0) for name in others):
        return False
    _Hooks(model)
    return True


def computed(lengths: np.ndarray, padded: int) -> int:
    """The tokens that are computed of rows of these lengths, padded to so many each or not."""
    tokens, cells = int(lengths.sum()) + 1, len(lengths) * padded
    multiple = max(_MULTIPLE, 2 ** (tokens.bit_length() - 5))
    found = _whole(tokens, multiple)
    return found if found < _WORTH * cells else cells


class _Hooks:
    def __init__(self, model: PreTrainedModel) -> None:
        (stack,) = (each for each in model.modules() if isinstance(each, torch.nn.ModuleList))
        self.inside = False
        self.layout: _Layout | None = None
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        stack[0].register_forward_pre_hook(self._enter)
        stack[-1].register_forward_hook(self._leave)
        model.register_forward_hook(self._end)

    def _begin(self, model: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        wanted = (
            named.get(name) or getattr(model.config, name)
            for name in ("output_hidden_states", "output_attentions")
        )
        self.inside = attention.used_by(model) and not any(wanted)

    def _end(self, model: Any, given: tuple[Any, ...], found: Any) -> None:
        self.inside = False

    def _enter(self, layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hidden, mask, *others = given
        self.layout = None
        if not self.inside or mask is None or layer.gradient_checkpointing:
            return None
        self.layout = _layout(mask, hidden)
        if self.layout is None:
            return None
        setattr(mask, attention.GROUPS, self.layout.groups)
        return (hidden.flatten(0, 1)[None, self.layout.source], mask, *others)

    def _leave(self, layer: Any, given: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
        layout, self.layout = self.layout, None
        if layout is None:
            return found
        rows, _, _, tokens = given[1].shape
        padded = found.new_zeros(rows * tokens, found.shape[-1])
        padded = padded.index_copy(0, layout.padded, found[0, : len(layout.padded)])
        return padded.view(rows, tokens, -1)


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of a batch are.

    Attributes:
        padded: Of each token of the rows, its place in the padded batch.
        source: The same of all tokens that are computed: some more, in no group.
        groups: Of the attention.
    """

    padded: torch.Tensor
    source: torch.Tensor
    groups: list[attention.Group]


def _layout(mask: torch.Tensor, hidden: torch.Tensor) -> _Layout | None:
    """None if little is padded, if a row begins with padding, whose state a head may read, or if
    the mask says more than what is padding.
    """
    rows, _, _, tokens = mask.shape
    seen = mask[:, 0, 0]
    lengths = seen.sum(1).numpy()
    if not seen[:, 0].all() or (every := computed(lengths, tokens)) == rows * tokens:
        return None
    if not torch.equal(mask, seen[:, None, None].expand_as(mask)):
        return None
    dtype = hidden.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    sequences = _sequences(lengths)
    groups, first = [], 0
    for mine in _alike(sequences, lengths):
        groups.append(_group(mine, lengths, first, int(lengths.sum()), dtype))
        first = groups[-1].tokens.stop
    places = np.split(np.flatnonzero(seen.numpy()), np.cumsum(lengths)[:-1])
    padded = np.concatenate([places[row] for sequence in sequences for row in sequence])
    source = np.concatenate([padded, np.repeat(padded[:1], every - len(padded))])
    return _Layout(torch.from_numpy(padded), torch.from_numpy(source), groups)


def _group(
    sequences: list[list[int]], lengths: np.ndarray, first: int, other: int, dtype: torch.dtype
) -> attention.Group:
    """Of sequences as long as the first with what fills it up.

    Args:
        sequences: The rows of each.
        lengths: Of all rows.
        first: Their first token.
        other: A token of no row.
        dtype: Of the products.
    """
    length = _filled(sequences[0], lengths)
    count = len(sequences) if len(sequences) < 4 else _whole(len(sequences), 4)
    owner = np.full((count, length), -1)  # the row of each token
    for number, rows in enumerate(sequences):
        owner[number, : sum(lengths[rows])] = np.repeat(rows, lengths[rows])
    real = np.flatnonzero(owner.ravel() >= 0)
    here = slice(first, first + len(real))
    if len(real) == owner.size and all(len(rows) == 1 for rows in sequences):
        return attention.Group(here, count, length)
    taken = np.full(owner.size, other)
    taken[real] = np.arange(here.start, here.stop)
    if any(len(rows) > 1 for rows in sequences):
        visible = owner[:, None] == owner[:, :, None]
    else:
        visible = ((owner >= 0) | (owner[:, :1] < 0))[:, None]
    unseen = ~torch.from_numpy(visible)[:, None]
    bias = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, attention.lowest(dtype))
    return attention.Group(
        here, count, length, bias, torch.from_numpy(taken), torch.from_numpy(real)
    )


def _alike(sequences: list[list[int]], lengths: np.ndarray) -> Iterator[list[list[int]]]:
    """Sequences that are as long with what fills them up, as many as make a group."""
    for length, mine in groupby(sequences, lambda rows: _filled(rows, lengths)):
        every, some = list(mine), attention.at_once(length)
        for first in range(0, len(every), some):
            yield every[first : first + some]


def _sequences(lengths: np.ndarray) -> list[list[int]]:
    """The rows of each, the longest first: a row is in the first that has room for it."""
    found: list[list[int]] = []
    room: list[int] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        for number, left in enumerate(room):
            if lengths[row] <= left:
                found[number].append(row)
                room[number] -= lengths[row]
                break
        else:
            found.append([row])
            room.append(_SHARED - lengths[row])
    return sorted(found, key=lambda rows: -sum(lengths[rows]))


def _filled(rows: list[int], lengths: np.ndarray) -> int:
    """The length of their sequence, with what fills it up."""
    tokens = sum(lengths[rows])
    return _whole(tokens, _SHORT if tokens <= _SHARED else _LONG)


def _whole(tokens: int, multiple: int) -> int:
    return int(batches.padded([tokens], multiple)[0])
