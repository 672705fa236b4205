"""The layers of a text model over the tokens of a batch, with next to none of its padding.

All that the layers compute, but for the attention, they compute for one token at a time. So on
their way through the layers the rows of a batch follow each other as one sequence, and the
attention is told where each of them lies.
"""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from finetune.models.cpu import attention, layers

#: Models whose layers are handed hidden states and a mask, and nothing else that depends on
#: the positions of the tokens; no attribute of a configuration says so.
KNOWN = frozenset({"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"})
#: Where modules come from that compute for one token at a time, besides those of the library.
_TORCH_MODULES = ("activation", "container", "dropout", "linear", "normalization")
_TOKEN_BY_TOKEN = (
    *("transformers.", layers.__name__),
    *(f"torch.nn.modules.{name}" for name in _TORCH_MODULES),
)


def use(model: torch.nn.Module) -> bool:
    """Let the layers of ``model`` see no padding from now on, and let it attend by
    :mod:`finetune.models.cpu.attention`; return whether they did see it and compute the same now.

    They do if it is of a known class, attention weights are not dropped, and nobody has replaced a
    module, or hung a hook on one that would see the states of all rows as one sequence.
    """
    if not (
        layers.is_of_library(model)
        and model.config.model_type in KNOWN
        # such a head reads the state of the first token; others may read those of padding
        and type(model).__name__.endswith("ForSequenceClassification")
        and not getattr(model.config, "is_decoder", False)
        and not getattr(model.config, "chunk_size_feed_forward", 0)
    ):
        return False
    stack = _stack(model)
    if stack is not None:
        attention.use(model)
    if stack is None or not attention.used_by(model):
        return False
    _Hooks(model, stack)
    return True


def computed(lengths: np.ndarray, padded: int) -> int:
    """Return the tokens that are computed of rows of these ``lengths``, shape ``(rows,)``: with
    ``padded`` tokens each, or without padding.
    """
    tokens = int(lengths.sum()) + 1
    cells = len(lengths) * padded
    rounded = _round_up(tokens, max(64, 2 ** (tokens.bit_length() - 5)))
    return rounded if rounded < 0.95 * cells else cells


def _stack(model: torch.nn.Module) -> torch.nn.ModuleList | None:
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    if len(stacks) != 1 or not len(stacks[0]):
        return None
    layers_only = all(isinstance(layer, GradientCheckpointingLayer) for layer in stacks[0])
    return stacks[0] if layers_only and all(map(_is_supported, stacks[0].modules())) else None


def _is_supported(module: torch.nn.Module) -> bool:
    is_mixing = isinstance(module, torch.nn.MultiheadAttention)
    if is_mixing or not type(module).__module__.startswith(_TOKEN_BY_TOKEN):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    # of an attention: what the configuration says may have been changed in the model since
    if getattr(module, "is_causal", None) is None:
        return True
    is_plain = isinstance(module.dropout, torch.nn.Dropout) and not module.dropout.p
    return not module.is_causal and is_plain


class _Hooks:
    """Takes the padding out before the first layer, and puts it back after the last one."""

    def __init__(self, model: PreTrainedModel, stack: torch.nn.ModuleList) -> None:
        self.is_active = False  # inside a forward pass of the model that needs no hidden states
        #: Rows and tokens of the padded batch, and the places there of what is computed.
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
        # little is padded; a head may read the state of a row's first token, which is padding; or
        # the mask says more than what is padding
        if (
            total == rows * tokens
            or not is_token[:, 0].all()
            or not torch.equal(mask, is_token[:, None, None].expand_as(mask))
        ):
            return None
        # matrix products are of few shapes: oneDNN keeps half a megabyte of each
        order = np.argsort(-lengths, kind="stable")
        groups: list[attention.Group] = []
        for length, rows_of_length in groupby(lengths[order], _padded_length):
            of_length = list(rows_of_length)
            size = attention.at_once(length)
            for first in range(0, len(of_length), size):
                first_token = groups[-1].tokens.stop if groups else 0
                group = of_length[first : first + size]
                groups.append(_group(group, length, first_token, lengths.sum(), hidden))
        setattr(mask, attention.GROUPS, groups)
        places = np.split(np.flatnonzero(is_token.numpy()), np.cumsum(lengths)[:-1])
        real = np.concatenate([places[row] for row in order])
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
    """Return whether a layer is handed hidden states and their mask, and nothing else of effect."""
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
    is_autocast = torch.is_autocast_enabled("cpu")
    return torch.get_autocast_dtype("cpu") if is_autocast else hidden.dtype


def _group(
    lengths: list[int], length: int, first: int, no_row: int, hidden: torch.Tensor
) -> attention.Group:
    """Return rows as a group whose first token is ``first``, filled up with one of no row."""
    count = len(lengths) if len(lengths) < 4 else _round_up(len(lengths), 4)
    is_token = np.arange(length) < np.resize([*lengths, 0, 0, 0], count)[:, None]
    real = np.flatnonzero(is_token)
    tokens = slice(first, first + len(real))
    if len(real) == is_token.size:
        return attention.Group(tokens, count, length)
    source = np.full(is_token.size, no_row)
    source[real] = np.arange(tokens.start, tokens.stop)
    visible = torch.from_numpy(is_token | ~is_token[:, :1])[:, None, None]
    bias = attention.as_bias(visible, _dtype_of_products(hidden))
    return attention.Group(tokens, count, length, bias, *map(torch.from_numpy, (source, real)))


def _padded_length(tokens: int) -> int:
    return _round_up(int(tokens), 32 if tokens <= 64 else 64)


def _round_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple
