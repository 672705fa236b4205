"""Loss functions that return one loss for each row, and class weights.

Losses take logits, ``(rows, classes)``, and int64 class ids, ``(rows,)``, or for several labels 0
and 1, ``(rows, labels)``. They return shape ``(rows,)``, not reduced, and stay finite for logits of
thousands; ``GlobalLoss`` passes logits in fp32. torch is imported when they are called.
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

#: The range of a class weight: float32 represents such weights and their sums well.
_MIN_WEIGHT, _MAX_WEIGHT = 1e-6, 1e6


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy, minus the logarithm of the true class's probability, in nats."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, targets, reduction="none")


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the focal loss with gamma 2, in nats (Lin et al., Focal Loss for Dense Object
    Detection, 2017): the cross-entropy times ``(1 - p) ** 2``, where ``p`` is the probability of
    the true class, so that rows predicted correctly count little.
    """
    return _focused(cross_entropy(logits, targets))


def soft_labels(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy with soft labels, the softmax of ``-|class - true class|``, in nats
    (Diaz and Marathe, Soft Labels for Ordinal Regression, 2019). The minimum is the entropy of the
    soft labels, which is above 0.
    """
    import torch
    from torch.nn.functional import cross_entropy

    classes = torch.arange(logits.shape[-1], device=logits.device)
    distances = (classes - targets[:, None]).abs().to(logits.dtype)
    return cross_entropy(logits, torch.softmax(-distances, dim=-1), reduction="none")


def binary_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    positive_weights: torch.Tensor | np.ndarray | None = None,
    *,
    is_focal: bool = False,
) -> torch.Tensor:
    """Return the binary cross-entropy of each row, averaged over its labels, in nats.

    Args:
        logits: Shape ``(rows, labels)``.
        targets: 0 or 1, same shape.
        positive_weights: The weight of each label in the rows that have it, shape ``(labels,)``;
            other rows have weight 1.
        is_focal: Whether to multiply each label's loss by ``(1 - p) ** 2``, as in :func:`focal`.
    """
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    positives = targets.to(logits.dtype)
    losses = binary_cross_entropy_with_logits(logits, positives, reduction="none")
    if is_focal:
        losses = _focused(losses)
    if positive_weights is not None:
        losses = losses * (1 + positives * (torch.as_tensor(positive_weights).to(losses) - 1))
    return losses.mean(dim=-1)


binary_focal = functools.partial(binary_cross_entropy, is_focal=True)


def divergence(
    logits: torch.Tensor, probabilities: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the divergence from the probabilities of a teacher, of Kullback and Leibler, in nats,
    times the square of the temperature (Hinton et al., Distilling the Knowledge in a Neural
    Network, 2015).

    Args:
        logits: Shape ``(rows, classes)``.
        probabilities: Those of the teacher at this temperature, same shape.
        temperature: Divides the logits.
    """
    from torch.nn.functional import kl_div

    student = (logits / temperature).log_softmax(dim=-1)
    return temperature**2 * kl_div(student, probabilities, reduction="none").sum(dim=-1)


def binary_divergence(
    logits: torch.Tensor, probabilities: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return :func:`divergence` for the two outcomes of each label, averaged over the labels."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    scaled = logits / temperature
    losses = binary_cross_entropy_with_logits(scaled, probabilities, reduction="none")
    pairs = torch.stack([probabilities, 1 - probabilities])
    entropies: torch.Tensor = torch.special.entr(pairs).sum(dim=0)
    return (losses - entropies).mean(dim=-1) * temperature**2


def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the Huber loss with delta 1, averaged over the targets: half the squared error up to
    1, above it the absolute error minus one half. A regression has targets in standard deviations.
    """
    from torch.nn.functional import huber_loss

    return huber_loss(outputs, targets, reduction="none").mean(dim=-1)


def _focused(losses: torch.Tensor) -> torch.Tensor:
    """Return cross-entropies, ``-log(p)``, times ``(1 - p) ** 2``."""
    import torch

    return (-torch.expm1(-losses)) ** 2 * losses


def class_weights(text: str, names: Sequence[str], targets: np.ndarray) -> np.ndarray:
    """Return the weight of each class or label in the training loss, ``(names,)``, float64.

    With one class a row, weights are scaled to mean 1 over the training rows, which does not change
    a loss that is divided by their sum; balanced weights equal scikit-learn's
    ``compute_class_weight``. With several labels, a weight applies to the rows that have the label;
    a balanced one is the rows without the label divided by those with it, as recommended for
    ``torch.nn.BCEWithLogitsLoss``, and 1 if no row or every row has it.

    Args:
        text: ``balanced`` or ``NAME=WEIGHT,NAME=WEIGHT``; classes not named have weight 1.
        names: The class or label names.
        targets: Class ids of the training rows, ``(rows,)``, where a negative one is no class, or
            0 and 1, ``(rows, labels)``.

    Raises:
        UserError: One line for each mistake in ``text``.
    """
    has_one_class = targets.ndim == 1
    if has_one_class:
        targets = targets[targets >= 0]
        counts = np.bincount(targets, minlength=len(names))
    else:
        counts = np.count_nonzero(targets, axis=0)
    total = len(targets)
    if text == "balanced":
        divisors = np.maximum(counts, 1)
        if has_one_class:
            return np.where(counts, total / (np.count_nonzero(counts) * divisors), 1.0)
        return np.where(counts * (total - counts), (total - counts) / divisors, 1.0)
    weights: dict[str, float] = {}
    mistakes: list[str] = []
    for part in split_values(text) or [text]:
        name, equals, number = part.rpartition("=")
        if not equals:
            name, number = part, ""
        if name not in names:
            name = name.strip()
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if name not in names:
            reason = f"no class '{name}'{suggestion(name, [*names, 'balanced', 'none'])}"
        elif not counts[names.index(name)]:
            reason = f"no training row is of the class '{name}'"
        elif name in weights or not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
            reason = f"expected one weight for '{name}', {_MIN_WEIGHT} to {_MAX_WEIGHT:.0f}"
        else:
            weights[name] = weight
            continue
        mistakes.append(
            f"--class_weights {part.strip()}: {reason} (expected balanced, none or "
            f"NAME=WEIGHT,NAME=WEIGHT with {list_names(names)})"
        )
    if mistakes:
        raise UserError(*mistakes)
    values = np.array([weights.get(name, 1.0) for name in names])
    if has_one_class:
        return values * total / float(values @ counts)
    return values
