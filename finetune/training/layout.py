"""The labels of training rows that hold more than a target: the answers of a teacher.

``compute_loss_func`` gets outputs and labels only, so ``labels`` have everything that the loss of a
row reads. Evaluated rows have their targets only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LabelLayout:
    """The columns of ``labels``: target, weight of the teacher, answers of the teacher.

    The loss of a row is ``(1 - weight) * loss + weight * divergence``.

    Attributes:
        shape: The shape of the target of a row: ``()`` or ``(outputs,)``.
        has_class: Whether the target is a class id.
        is_soft: Whether the target is a probability for each class.
        divergence: Takes logits and answers, both ``(rows, outputs)``; returns how much they
            differ, ``(rows,)``. None without a teacher; then there are no answers.
    """

    shape: tuple[int, ...]
    has_class: bool = False
    is_soft: bool = False
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def pack(self, targets: np.ndarray, weight: float, answers: np.ndarray) -> np.ndarray:
        """Return the labels of rows, float32, shape ``(rows, columns)``."""
        targets = targets.reshape(len(targets), -1)
        weights = np.full((len(targets), 1), weight)
        return np.concatenate([targets, weights, answers], axis=1).astype(np.float32)

    def unpack(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return targets, ``(rows, *shape)``, weights, ``(rows,)``, and answers."""
        size = math.prod(self.shape)
        targets = labels[:, :size].reshape(-1, *self.shape)
        if self.has_class:
            targets = targets.long()
        return targets, labels[:, size], labels[:, size + 1 :]
