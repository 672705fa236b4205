"""Losses of rows, and weights of classes.

Logits, ``(rows, classes)``, and int64 targets, ``(rows,)``, or of several labels 0 and 1 for each,
go to the loss of each row, not reduced: in fp32 or better, also of bf16 logits, and finite for
logits of thousands. torch is imported when they are called.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from finetune.data.comma_list import split_values
from finetune.data.labels import list_names
from finetune.errors import UserError, suggestion

if TYPE_CHECKING:
    import torch

#: Between these, weights of classes and their sums are far from the ends of float32.
_LEAST, _MOST = 1e-6, 1e6


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
    """Return the cross-entropy with a target that is the softmax of ``-|class - true class|``, in
    nats (Diaz and Marathe, Soft Labels for Ordinal Regression, 2019). The lowest value is the
    entropy of the target, which is above 0.
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
    """
    import torch

    precise = _precise(logits)
    place = torch.arange(logits.shape[-1], device=logits.device)
    reached = (place >= targets[:, None]).to(precise.dtype)
    cumulative = torch.softmax(precise, dim=-1).cumsum(dim=-1)
    return ((cumulative - reached) ** 2).sum(dim=-1)


def binary_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    positive_weights: torch.Tensor | np.ndarray | None = None,
    *,
    is_focal: bool = False,
) -> torch.Tensor:
    """Return the mean over the labels of each row of the cross-entropy of its sigmoid, in nats.

    Args:
        logits: Shape ``(rows, labels)``.
        targets: 0 or 1, of the same shape.
        positive_weights: How much the rows that have a label count in its loss, shape
            ``(labels,)``; others count 1.
        is_focal: Whether each label counts as in :func:`focal`.
    """
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    precise = _precise(logits)
    has = targets.to(precise.dtype)
    losses = binary_cross_entropy_with_logits(precise, has, reduction="none")
    if is_focal:
        losses = _focused(losses)
    if positive_weights is not None:
        losses = losses * (1 + has * (torch.as_tensor(positive_weights).to(losses) - 1))
    return losses.mean(dim=-1)


binary_focal = functools.partial(binary_cross_entropy, is_focal=True)


def _precise(logits: torch.Tensor) -> torch.Tensor:
    """Return logits in fp32, or as they are in fp64."""
    import torch

    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _focused(losses: torch.Tensor) -> torch.Tensor:
    """Return cross-entropies, logarithms of ``1 / p``, times ``(1 - p) ** 2``."""
    import torch

    return (-torch.expm1(-losses)) ** 2 * losses


def class_weights(text: str, names: Sequence[str], targets: np.ndarray) -> np.ndarray:
    """Return how much each class, or each label, counts in the loss of training, ``(names,)``.

    Of one class a row, balanced weights are those of scikit-learn's ``compute_class_weight``, and
    all are scaled to the mean 1 over the training rows, which changes no loss that is divided by
    their sum. Of any number of labels, a weight is that of the rows that have the label, and others
    count 1. Balanced weights are the rows without a label divided by those with it, as in torch's
    ``BCEWithLogitsLoss``; 1 for a label that no row has, or that every row has.

    Args:
        text: ``balanced`` or ``NAME=WEIGHT,NAME=WEIGHT``; other classes have 1.
        names: Of the classes or labels.
        targets: The class of each training row, ``(rows,)``, or 0 and 1, ``(rows, labels)``.

    Raises:
        UserError: One line for each mistake in ``text``.
    """
    total = len(targets)
    has_one_class = targets.ndim == 1
    if has_one_class:
        rows = np.bincount(targets, minlength=len(names))
    else:
        rows = np.count_nonzero(targets, axis=0)
    if text == "balanced" and has_one_class:
        return np.where(rows, total / (np.count_nonzero(rows) * np.maximum(rows, 1)), 1.0)
    if text == "balanced":
        return np.where(rows * (total - rows), (total - rows) / np.maximum(rows, 1), 1.0)
    weights: dict[str, float] = {}
    mistakes: list[str] = []
    for part in split_values(text) or [text]:
        name, _, written = part.rpartition("=")
        name = name if name in names else name.strip()
        try:
            weight = float(written)
        except ValueError:
            weight = 0.0
        if name not in names:
            hint = suggestion(name, names) if name else suggestion(written, ("balanced", "none"))
            problem = f"no class '{name or written}'{hint}"
        elif not rows[names.index(name)]:
            problem = f"no training row is of the class '{name}'"
        elif name in weights or not _LEAST <= weight <= _MOST:
            problem = f"expected one weight from {_LEAST} to {_MOST:.0f} of '{name}'"
        else:
            weights[name] = weight
            continue
        mistakes.append(
            f"--class_weights {part.strip()}: {problem} (expected balanced, none or "
            f"NAME=WEIGHT,NAME=WEIGHT with {list_names(names)})"
        )
    if mistakes:
        raise UserError(*mistakes)
    values = np.array([weights.get(name, 1.0) for name in names])
    return values * total / float(values @ rows) if has_one_class else values
