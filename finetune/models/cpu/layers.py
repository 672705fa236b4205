"""The layers of a model that can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard, TypeVar

import torch
from transformers import PreTrainedModel

Layer = TypeVar("Layer", bound=torch.nn.Module)


def is_of_library(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether a class of ``transformers`` is used as it is; a subclass may do anything."""
    from_library = type(model).__module__.startswith("transformers.")
    return from_library and isinstance(model, PreTrainedModel)


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
