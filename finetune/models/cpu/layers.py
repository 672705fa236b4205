"""The layers of a model that can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard, TypeVar

import torch
from transformers import PreTrainedModel

Layer = TypeVar("Layer", bound=torch.nn.Module)


def of_library(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether ``transformers`` wrote all of it: nothing is known of what a subclass does."""
    ours = type(model).__module__.startswith("transformers.")
    return ours and isinstance(model, PreTrainedModel)


def of_type(
    model: torch.nn.Module, kind: type[Layer]
) -> Iterator[tuple[torch.nn.Module, str, Layer]]:
    """Yield every layer below ``model`` of exactly this type, after the module that holds it and
    its name there; a subclass may compute something else.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is kind:
                yield module, name, child
