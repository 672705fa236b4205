"""The layers of a model that can be replaced."""

from __future__ import annotations

from collections.abc import Iterator

import torch


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
