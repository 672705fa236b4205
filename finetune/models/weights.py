"""The weights of models that are none of the library's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finetune.errors import UserError

if TYPE_CHECKING:
    import torch


def loaded(model: torch.nn.Module, path: Path) -> torch.nn.Module:
    """Return ``model`` with the weights of a safetensors file.

    Raises:
        UserError: if the file is not there, is damaged, or is of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be loaded: {first}") from error
    return model
