"""Losses of predicted numbers, each from standardized outputs and targets, shape
``(rows, targets)``, to the loss of each row, shape ``(rows,)``: the mean over its targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RowLoss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the squared error: 1 for the mean of the training rows."""
    return ((outputs - targets) ** 2).mean(dim=-1)


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the absolute error, in standard deviations."""
    return (outputs - targets).abs().mean(dim=-1)


def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return Huber's loss (Annals of Mathematical Statistics 35, 1964): half the squared error up
    to one standard deviation, beyond which it grows like the absolute error.
    """
    from torch.nn.functional import huber_loss

    return huber_loss(outputs, targets, reduction="none", delta=1.0).mean(dim=-1)


#: By the names of ``--loss_function``; the first is the default.
LOSSES: Mapping[str, RowLoss] = {"mse": squared_error, "mae": absolute_error, "huber": huber}
