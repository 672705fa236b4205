"""The loss of a step: a mean over the rows of the *global* step, weighted or not.

The stock ``Trainer`` takes a mean-reducing loss for one that it has divided already wherever the
model's ``forward`` accepts ``**kwargs``, and so doubles loss and gradient with two processes or
two accumulation steps. Its ``compute_loss_func`` hook, with ``num_items_in_batch``, does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from finetune.errors import UserError

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: The class of a row that does not count, as in torch.
IGNORED = -100


@dataclass(frozen=True)
class GlobalLoss:
    """A ``compute_loss_func`` for ``transformers.Trainer``.

    The stock ``Trainer`` counts the rows of a step. With ``class_weights`` its loss is divided by
    these rows, ours by the sum of their weights, as in ``torch.nn.CrossEntropyLoss``.

    Attributes:
        loss: Logits, shape ``(rows, outputs)``, and targets to the loss of each row, ``(rows,)``.
        label_smoothing: Weight of the mean over all classes in training (Szegedy et al., 2016).
        class_weights: How much a row of each class counts in training; empty if alike.
        training_loss: In training instead of ``loss``, if it is another one.
        pooling: How the outputs for the windows of a document are pooled in an evaluation, ``mean``
            or ``max``; None where a row is a document.
    """

    loss: RowLoss
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    training_loss: RowLoss | None = None
    pooling: str | None = None

    def evaluation_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row in nats, shape ``(rows,)``, as an evaluation reports it: not
        smoothed, not weighted.

        Raises:
            UserError: If the loss of the recipe is reduced.
        """
        return _unreduced(self.loss, logits.float(), labels)

    def training_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row as a step adds it up: smoothed, and weighted as in
        ``torch.nn.CrossEntropyLoss``, where every class that is smoothed to has its own weight.
        """
        logits = logits.float()
        losses = self._weighted(logits, labels)
        if not self.label_smoothing:
            return losses
        classes = (torch.full_like(labels, number) for number in range(logits.shape[-1]))
        uniform = torch.stack([self._weighted(logits, number) for number in classes]).mean(dim=0)
        return (1 - self.label_smoothing) * losses + self.label_smoothing * uniform

    def row_weights(self, labels: np.ndarray) -> np.ndarray:
        """Return how much each training row counts in the divisor of its step, float64, shape
        ``(rows,)``.
        """
        if labels.ndim > 1 or not np.issubdtype(labels.dtype, np.integer):
            return np.ones(len(labels))
        if not self.class_weights:
            return np.asarray(labels != IGNORED, dtype=np.float64)
        weights = np.append(self.class_weights, 0.0)
        return np.asarray(weights[np.where(labels == IGNORED, -1, labels)])

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the share of this micro-batch in the loss of the global step, a scalar.

        ``num_items_in_batch`` is the rows of the global step, times the targets of a row, as the
        library counts them; this batch is the step if it is None.
        """
        total = self.training_losses(outputs["logits"], labels).sum()
        if num_items_in_batch is None:
            return total / self.row_weights(labels.cpu().numpy()).sum()
        return total / (num_items_in_batch / labels.shape[1:].numel())

    def _weighted(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = _unreduced(self.training_loss or self.loss, logits, labels)
        if not self.class_weights:
            return losses
        return losses * _on_device(self.class_weights, logits.device)[labels.clamp(min=0)]


def _unreduced(loss: RowLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = loss(logits, labels)
    if losses.shape != (len(labels),):
        raise UserError(
            f"loss() of the recipe returned shape {tuple(losses.shape)} for {len(labels)} rows: "
            "expected the loss of each row, not reduced (reduction='none')"
        )
    return losses


@functools.lru_cache(maxsize=8)
def _on_device(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device)
