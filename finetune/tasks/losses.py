"""Losses of rows by name: logits and targets to the loss of each row, not reduced.

They compute in fp32 or better, also of bf16 logits, and are finite for logits of thousands. torch
is imported when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: The exponent of the focal loss; the value that Lin et al. recommend.
_GAMMA = 2


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the negative logarithm of the probability of the true class, in nats.

    Args:
        logits: Shape ``(rows, classes)``.
        targets: The true class of each row, shape ``(rows,)``, int64.

    Returns:
        Shape ``(rows,)``.
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(_precise(logits), targets, reduction="none")


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each row times ``(1 - p) ** 2``, ``p`` the probability of its
    class: rows that are right already count little (Lin et al., Focal Loss for Dense Object
    Detection, 2017).

    Args:
        logits: Shape ``(rows, classes)``.
        targets: Shape ``(rows,)``, int64.

    Returns:
        Shape ``(rows,)``.
    """
    return _focused(cross_entropy(logits, targets))


def binary_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, positive_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean over the labels of each row of the cross-entropy of its sigmoid, in nats.

    Args:
        logits: Shape ``(rows, labels)``.
        targets: Whether a row has a label, 0 or 1, shape ``(rows, labels)``.
        positive_weights: How much the rows that have a label count in its loss, shape
            ``(labels,)``; those that do not have it count 1.

    Returns:
        Shape ``(rows,)``.
    """
    return _weighted(_binary(logits, targets), targets, positive_weights).mean(dim=-1)


def binary_focal(
    logits: torch.Tensor, targets: torch.Tensor, positive_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return :func:`focal` of each label by itself, with a sigmoid, as mean over the labels.

    Args:
        logits: Shape ``(rows, labels)``.
        targets: 0 or 1, shape ``(rows, labels)``.
        positive_weights: See :func:`binary_cross_entropy`.

    Returns:
        Shape ``(rows,)``.
    """
    focused = _focused(_binary(logits, targets))
    return _weighted(focused, targets, positive_weights).mean(dim=-1)


def soft_labels(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy with a target that is the softmax of ``-|class - true class|``
    (Diaz and Marathe, Soft Labels for Ordinal Regression, 2019).

    A class next to the true one is a mistake of less weight. The lowest value is the entropy of the
    target, which is above 0.

    Args:
        logits: Of the classes in their order, shape ``(rows, classes)``.
        targets: Shape ``(rows,)``, int64.

    Returns:
        Shape ``(rows,)``, in nats.
    """
    import torch

    precise = _precise(logits)
    place = torch.arange(logits.shape[-1], device=logits.device)
    distances = (place - targets[:, None]).abs().to(precise.dtype)
    return -(torch.softmax(-distances, dim=-1) * torch.log_softmax(precise, dim=-1)).sum(dim=-1)


def squared_earth_movers_distance(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over the classes of the squared difference between the cumulative
    probabilities and those of the true class alone (Hou et al., Squared Earth Mover's
    Distance-based Loss for Training Deep Neural Networks, 2016).

    Args:
        logits: Of the classes in their order, shape ``(rows, classes)``.
        targets: Shape ``(rows,)``, int64.

    Returns:
        Shape ``(rows,)``: from 0 to one less than the number of classes.
    """
    import torch

    precise = _precise(logits)
    place = torch.arange(logits.shape[-1], device=logits.device)
    reached = (place >= targets[:, None]).to(precise.dtype)
    cumulative = torch.softmax(precise, dim=-1).cumsum(dim=-1)
    return ((cumulative - reached) ** 2).sum(dim=-1)


def _precise(logits: torch.Tensor) -> torch.Tensor:
    """Return logits in fp32, or as they are in fp64."""
    import torch

    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _binary(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each label, shape ``(rows, labels)``."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    precise = _precise(logits)
    return binary_cross_entropy_with_logits(precise, targets.to(precise.dtype), reduction="none")


def _focused(losses: torch.Tensor) -> torch.Tensor:
    """Return cross-entropies, logarithms of ``1 / p``, times ``(1 - p) ** 2``."""
    import torch

    return (-torch.expm1(-losses)) ** _GAMMA * losses


def _weighted(
    losses: torch.Tensor, targets: torch.Tensor, positive_weights: torch.Tensor | None
) -> torch.Tensor:
    """Return the losses of labels, shape ``(rows, labels)``, times the weights of the positive."""
    if positive_weights is None:
        return losses
    return losses * (1 + targets.to(losses.dtype) * (positive_weights.to(losses) - 1))
