"""Run the layers of a text model on the tokens of a batch with almost no padding.

Apart from attention, a layer computes each token independently. So the rows of a batch pass through
the layers as one long sequence, and attention gets the position of each row in it.
"""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from finetune.models.cpu import attention, layers
from finetune.runtime import internals

#: Model types whose layers get hidden states and a mask, but nothing else that depends on the
#: positions of the tokens. No attribute of a configuration shows this.
KNOWN = frozenset({"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"})
#: The modules that compute each token independently; all of ``transformers`` are allowed.
_TOKEN_BY_TOKEN = (
    "transformers.",
    layers.__name__,
    "torch.nn.modules.activation",
    "torch.nn.modules.container",
    "torch.nn.modules.dropout",
    "torch.nn.modules.linear",
    "torch.nn.modules.normalization",
)


def use(model: torch.nn.Module) -> bool:
    """Remove the padding from the layers of ``model``, in place, and return whether that was done.

    This needs a type in :data:`KNOWN`, attention without dropout, and modules that were not
    replaced and have no hooks, which would get the states of all rows as one sequence. Attention is
    that of :mod:`finetune.models.cpu.attention` then. Results are the same but for rounding.
    """
    if not (
        layers.is_of_library(model)
        and model.config.model_type in KNOWN
        # these heads read the state of the first token, or of each; others may read padding
        and type(model).__name__.endswith(("ForSequenceClassification", "ForTokenClassification"))
        and not getattr(model.config, "is_decoder", False)
        and not getattr(model.config, "chunk_size_feed_forward", 0)
    ):
        return False
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    if len(stacks) != 1 or not all(map(_is_supported, stacks[0].modules())):
        return False
    if not len(stacks[0]) or not all(isinstance(m, GradientCheckpointingLayer) for m in stacks[0]):
        return False
    attention.use(model)
    if is_used := attention.used_by(model):
        _Hooks(model, stacks[0])
    return is_used


def computed(lengths: np.ndarray, padded: int) -> int:
    """Return how many tokens the layers compute for rows of ``lengths`` tokens, shape ``(rows,)``:
    with ``padded`` tokens for each row if removing the padding saves less than 5%.
    """
    tokens = int(lengths.sum()) + 1
    cells = len(lengths) * padded
    rounded = _round_up(tokens, max(64, 2 ** (tokens.bit_length() - 5)))
    return rounded if rounded < 0.95 * cells else cells


def _is_supported(module: torch.nn.Module) -> bool:
    mixes_tokens = isinstance(module, torch.nn.MultiheadAttention)
    if mixes_tokens or not type(module).__module__.startswith(_TOKEN_BY_TOKEN):
        return False
    if internals.may_have_hooks(module):
        return False
    # an attention may have been changed since it was built from the configuration
    if getattr(module, "is_causal", None) is None:
        return True
    has_no_dropout = isinstance(module.dropout, torch.nn.Dropout) and not module.dropout.p
    return not module.is_causal and has_no_dropout


class _Hooks:
    """Hooks that remove the padding before the first layer and restore it after the last one."""

    def __init__(self, model: PreTrainedModel, stack: torch.nn.ModuleList) -> None:
        self.is_active = False  # True in a forward pass that does not return hidden states
        #: Rows and tokens of the padded batch, and the flat indices of the computed tokens.
        self.layout: tuple[int, int, torch.Tensor] | None = None
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        stack[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        stack[-1].register_forward_hook(self._leave)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        asks_for_states = any(
            kwargs.get(name) or getattr(model.config, name)
            for name in ("output_hidden_states", "output_attentions")
        )
        self.is_active = attention.used_by(model) and not asks_for_states

    def _end(self, model: Any, args: tuple[Any, ...], output: Any) -> None:
        self.is_active = False

    def _enter(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.layout = None
        if not self.is_active or layer.gradient_checkpointing or not _is_known_call(args, kwargs):
            return None
        hidden, mask, *rest = args
        is_token = mask[:, 0, 0]
        lengths = is_token.sum(1).numpy()
        rows, tokens = is_token.shape
        total = computed(lengths, tokens)
        # too little padding; or a first token, which a head may read, is padding; or the mask hides
        # more than padding
        if (
            total == rows * tokens
            or not is_token[:, 0].all()
            or not torch.equal(mask, is_token[:, None, None].expand_as(mask))
        ):
            return None
        # few different shapes of matrix products: oneDNN caches half a megabyte for each
        order = np.argsort(-lengths, kind="stable")
        groups: list[attention.Group] = []
        for length, rows_of_length in groupby(lengths[order], _padded_length):
            row_lengths = list(rows_of_length)
            size = attention.at_once(length)
            for first in range(0, len(row_lengths), size):
                first_token = 0
                if groups:
                    first_token = groups[-1].tokens.stop
                group = row_lengths[first : first + size]
                groups.append(_group(group, length, first_token, lengths.sum(), hidden))
        setattr(mask, attention.GROUPS, groups)
        indices = np.split(np.flatnonzero(is_token.numpy()), np.cumsum(lengths)[:-1])
        real = np.concatenate([indices[row] for row in order])
        self.layout = rows, tokens, torch.from_numpy(real)
        source = np.concatenate([real, np.repeat(real[:1], total - len(real))])
        return (hidden.flatten(0, 1)[None, torch.from_numpy(source)], mask, *rest), kwargs

    def _leave(self, layer: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        if self.layout is None:
            return output
        rows, tokens, real = self.layout
        padded = output.new_zeros(rows * tokens, output.shape[-1])
        return padded.index_copy(0, real, output[0, : len(real)]).view(rows, tokens, -1)


def _is_known_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether hidden states and their mask are the only arguments that have an effect."""
    if len(args) < 2 or not isinstance(args[1], torch.Tensor):
        return False
    hidden, mask, *encoder_states = args
    rows, tokens, _ = hidden.shape
    return (
        mask.dtype == torch.bool
        and mask.shape == (rows, 1, tokens, tokens)
        and _dtype_of_products(hidden) in attention.DTYPES
        and all(states is None for states in encoder_states)
        and attention.has_no_effect(kwargs)
    )


def _dtype_of_products(hidden: torch.Tensor) -> torch.dtype:
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return hidden.dtype


def _group(
    lengths: list[int], length: int, first: int, padding: int, hidden: torch.Tensor
) -> attention.Group:
    """Return rows as a group whose first token is ``first``, padded with the token ``padding``."""
    count = len(lengths) if len(lengths) < 4 else _round_up(len(lengths), 4)
    is_token = np.arange(length) < np.resize([*lengths, 0, 0, 0], count)[:, None]
    real = np.flatnonzero(is_token)
    tokens = slice(first, first + len(real))
    if len(real) == is_token.size:
        return attention.Group(tokens, count, length)
    source = np.full(is_token.size, padding)
    source[real] = np.arange(tokens.start, tokens.stop)
    visible = torch.from_numpy(is_token | ~is_token[:, :1])[:, None, None]
    bias = attention.as_bias(visible, _dtype_of_products(hidden))
    return attention.Group(tokens, count, length, bias, *map(torch.from_numpy, (source, real)))


def _padded_length(tokens: int) -> int:
    return _round_up(int(tokens), 32 if tokens <= 64 else 64)


def _round_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple
