"""Losses of rows: logits and targets to the loss of each row, not reduced.

Those of classes compute in fp32 or better, also of bf16 logits, and are finite for logits of
thousands. torch is imported when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: The exponent of the focal loss; the value that Lin et al. recommend.
_GAMMA = 2


# ---- one class a row: logits (rows, classes), int64 targets (rows,) to losses (rows,) ------------


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the negative logarithm of the probability of the true class, in nats."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(_precise(logits), targets, reduction="none")


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each row times ``(1 - p) ** 2``, ``p`` the probability of its
    class: rows that are right already count little (Lin et al., Focal Loss for Dense Object
    Detection, 2017).
    """
    return _focused(cross_entropy(logits, targets))


def soft_labels(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy with a target that is the softmax of ``-|class - true class|``
    (Diaz and Marathe, Soft Labels for Ordinal Regression, 2019), in nats.

    A class next to the true one is a mistake of less weight. The lowest value is the entropy of the
    target, which is above 0.
    """
    import torch

    precise = _precise(logits)
    place = torch.arange(logits.shape[-1], device=logits.device)
    distances = (place - targets[:, None]).abs().to(precise.dtype)
    return -(torch.softmax(-distances, dim=-1) * torch.log_softmax(precise, dim=-1)).sum(dim=-1)


def squared_earth_movers_distance(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over the classes of the squared difference between the cumulative
    probabilities and those of the true class alone (Hou et al., Squared Earth Mover's
    Distance-based Loss for Training Deep Neural Networks, 2016): from 0 to one less than the number
    of classes.
    """
    import torch

    precise = _precise(logits)
    place = torch.arange(logits.shape[-1], device=logits.device)
    reached = (place >= targets[:, None]).to(precise.dtype)
    cumulative = torch.softmax(precise, dim=-1).cumsum(dim=-1)
    return ((cumulative - reached) ** 2).sum(dim=-1)


# ---- any number of labels a row ------------------------------------------------------------------


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
    return _mean_over_labels(logits, targets, positive_weights, is_focal=False)


def binary_focal(
    logits: torch.Tensor, targets: torch.Tensor, positive_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return :func:`focal` of each label by itself, with a sigmoid, as mean over the labels;
    arguments are those of :func:`binary_cross_entropy`.
    """
    return _mean_over_labels(logits, targets, positive_weights, is_focal=True)


# ---- numbers: standardized, (rows, targets) to the mean over the targets of each row, (rows,) ----


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


def _precise(logits: torch.Tensor) -> torch.Tensor:
    """Return logits in fp32, or as they are in fp64."""
    import torch

    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _focused(losses: torch.Tensor) -> torch.Tensor:
    """Return cross-entropies, logarithms of ``1 / p``, times ``(1 - p) ** 2``."""
    import torch

    return (-torch.expm1(-losses)) ** _GAMMA * losses


def _mean_over_labels(
    logits: torch.Tensor,
    targets: torch.Tensor,
    positive_weights: torch.Tensor | None,
    *,
    is_focal: bool,
) -> torch.Tensor:
    from torch.nn.functional import binary_cross_entropy_with_logits

    precise = _precise(logits)
    has = targets.to(precise.dtype)
    losses = binary_cross_entropy_with_logits(precise, has, reduction="none")
    if is_focal:
        losses = _focused(losses)
    if positive_weights is not None:
        losses = losses * (1 + has * (positive_weights.to(losses) - 1))
    return losses.mean(dim=-1)
