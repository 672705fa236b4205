"""The layers of a model that can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import torch
from transformers import PreTrainedModel


def of_library(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Whether ``transformers`` wrote the whole of it: of its layers, and of what is done with them,
    nothing is known in another, whatever it inherits.
    """
    ours = type(model).__module__.startswith("transformers.")
    return ours and isinstance(model, PreTrainedModel)


def of_type(
    model: torch.nn.Module, kind: type[torch.nn.Module]
) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Every layer below ``model`` of exactly this type; a subclass may compute something else.

    Yields:
        The module that holds the layer, the name it has there, and the layer.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is kind:
                yield module, name, child
