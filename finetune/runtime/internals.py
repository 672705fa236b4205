"""The private members of libraries that are used, and what is lost where one is missing.

All other code uses public names only (``tests/test_internals.py``). A library may rename a private
member in any release, so each is looked up when it is needed: where it is missing, the feature that
needs it is off, and one warning says so. Libraries are imported inside the functions, because some
take seconds. :func:`restored_environment` uses public names, and has nothing to lose.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

from finetune.runtime import distributed

if TYPE_CHECKING:
    import numpy as np
    import torch
    import transformers
    from datasets import Dataset
    from transformers import PretrainedConfig

_LINEAR = "linear layers are not packed: predictions on a CPU are slower"
_ATTENTION = "the attention of transformers is used, with padding: training on a CPU is slower"
_HOOKS = "layers keep their padding and are not packed: training and predictions are slower"
#: Private member -> the version it was seen in, and what is lost without it.
MEMBERS = {
    "_linear_pointwise": ("torch 2.13", _LINEAR),  # of torch.ops.mkldnn
    "_reorder_linear_weight": ("torch 2.13", _LINEAR),
    "_is_mkldnn_bf16_supported": ("torch 2.13", _LINEAR),
    "_softmax_backward_data": ("torch 2.13", _ATTENTION),  # of torch.ops.aten
    "_forward_hooks": ("torch 2.13", _HOOKS),  # of torch.nn.Module
    "_forward_pre_hooks": ("torch 2.13", _HOOKS),
    "_attn_implementation": ("transformers 5.24", _ATTENTION),  # of PreTrainedConfig
    "_save_checkpoint": (  # of Trainer
        "transformers 5.24",
        "a stop during an evaluation loses the steps since the last checkpoint",
    ),
    "_load_rng_state": ("transformers 5.24", "an evaluation that a resume repeats is not saved"),
    "_indices": ("datasets 5.2", "selected rows are copied: large data sets are read slowly"),
    "hf_tqdm": ("datasets 5.2", "tokenizing reports no progress"),  # of datasets.arrow_dataset
}


@functools.cache
def _warn(name: str) -> None:
    version, loss = MEMBERS[name]
    if distributed.is_main_process():
        warnings.warn(f"{loss} ({name} of {version} is missing)", stacklevel=2)


def _has(owner: object, *names: str) -> bool:
    """Return whether ``owner`` has these members, and warn of the first that is missing."""
    for name in names:
        if not hasattr(owner, name):
            _warn(name)
            return False
    return True


def packable_dtypes() -> tuple[torch.dtype, ...]:
    """Return the dtypes of linear layers whose weights torch can pack, see :func:`pack_weight`."""
    import torch

    operators = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    if not _has(torch.ops.mkldnn, *operators):
        return ()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32, torch.bfloat16
    return (torch.float32,)


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight of a linear layer in the layout that oneDNN prefers."""
    import torch

    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def packed_linear(
    input: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the output of a linear layer whose weight is packed."""
    import torch

    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")
    return output


def has_softmax_backward() -> bool:
    """Return whether torch has the operator of :func:`softmax_backward`."""
    import torch

    return _has(torch.ops.aten, "_softmax_backward_data")


def softmax_backward(gradient: torch.Tensor, weights: torch.Tensor) -> None:
    """Replace the gradient of ``weights``, a softmax over the last dimension, by that of its input.

    Public operators would need more memory, which no longer fits into the cache.
    """
    import torch

    torch.ops.aten._softmax_backward_data(
        gradient, weights, -1, gradient.dtype, grad_input=gradient
    )


def may_have_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module has forward hooks; True if that is unknown."""
    if not _has(module, "_forward_hooks", "_forward_pre_hooks"):
        return True
    return bool(module._forward_hooks or module._forward_pre_hooks)


def attention_name(config: PretrainedConfig) -> str | None:
    """Return the ``attn_implementation`` that a model uses; None if that is unknown."""
    if not _has(config, "_attn_implementation"):
        return None
    name: str | None = config._attn_implementation
    return name


def save_checkpoint(trainer: transformers.Trainer) -> bool:
    """Save a checkpoint outside of the library's loop; return whether that is possible."""
    if not _has(trainer, "_save_checkpoint"):
        return False
    trainer._save_checkpoint(trainer.model_wrapped, None)
    return True


def load_random_states(trainer: transformers.Trainer, checkpoint: str) -> bool:
    """Load those of a checkpoint before it is saved again; return whether that is possible."""
    if not _has(trainer, "_load_rng_state"):
        return False
    trainer._load_rng_state(checkpoint)
    return True


def stored_rows(rows: Dataset, column: str) -> tuple[Dataset, np.ndarray | None]:
    """Return rows with a column, and the position of each in ``rows.data``, shape ``(rows,)``.

    The positions are None if the rows are stored in this order.
    """
    if not _has(rows, "_indices"):
        return rows.select_columns([column]).flatten_indices(), None
    if rows._indices is None:
        return rows, None
    return rows, rows._indices.column(0).to_numpy().astype(int)


@contextlib.contextmanager
def map_progress(update: Callable[[int], object]) -> Iterator[None]:
    """Call ``update`` with the number of rows that ``Dataset.map`` finished, instead of its bar.

    A thread that watches a counter would be a public way, but ``map`` forks.
    """
    from datasets import arrow_dataset

    if not _has(arrow_dataset, "hf_tqdm"):
        yield
        return
    bar = arrow_dataset.hf_tqdm
    arrow_dataset.hf_tqdm = lambda **_: contextlib.nullcontext(SimpleNamespace(update=update))
    try:
        yield
    finally:
        arrow_dataset.hf_tqdm = bar


@contextlib.contextmanager
def restored_environment() -> Iterator[None]:
    """Restore ``os.environ`` after ``Dataset.map`` (5.2), which replaces it by a copy and sets
    ``TOKENIZERS_PARALLELISM`` in the original.
    """
    environment = os.environ
    variables = dict(os.environ)
    try:
        yield
    finally:
        os.environ = environment  # noqa: B003
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
        os.environ.update(variables)
