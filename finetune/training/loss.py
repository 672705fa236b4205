"""The loss of a step: a mean over the rows of the *global* step, weighted or not.

The stock ``Trainer`` takes a mean-reducing loss for one that it has divided already wherever the
model's ``forward`` accepts ``**kwargs``, and so doubles loss and gradient with two processes or
two accumulation steps. Dividing by ``num_items_in_batch`` is what its ``compute_loss_func`` hook
is for, and also weighs micro-batches of unequal size by their rows.

Where classes have weights, the divisor is the sum of the weights of the rows of the global step.
What the processes exchange for it is how many rows of each class they have: these are whole
numbers, so the divisor is the same bit by bit however the rows are divided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from finetune.errors import UserError

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_IGNORED = -100  # a class that does not count, as in torch


@dataclass(frozen=True)
class GlobalLoss:
    """A ``compute_loss_func`` for ``transformers.Trainer``.

    Its own counts the rows of a step. With ``class_weights`` the loss is then divided by these
    rows, and not by the sum of their weights.

    Attributes:
        rows: Logits, shape ``(rows, outputs)``, and targets to the loss of each row, ``(rows,)``.
        label_smoothing: Weight of the mean over all classes (Szegedy et al., 2016).
        class_weights: How much a row of each class counts in training; empty if alike.
        training_rows: In training instead of ``rows``, if it is another loss.
        pooling: What makes the outputs of a document of those of its windows in an evaluation,
            ``mean`` or ``max``; None where a row is a document.
    """

    rows: RowLoss
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    training_rows: RowLoss | None = None
    pooling: str | None = None

    def of_rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row as an evaluation has it: smoothed, not weighted.

        Args:
            logits: Shape ``(rows, outputs)``.
            labels: The targets.

        Returns:
            Shape ``(rows,)``, in nats.

        Raises:
            UserError: if the loss of the recipe is reduced.
        """
        return self._smoothed(self.rows, logits, labels)

    def in_training(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row as a step adds it up: smoothed, and weighted as in
        ``torch.nn.CrossEntropyLoss``, where every class that is smoothed to has its own weight.

        Arguments, result and errors are those of :meth:`of_rows`.
        """
        rows = self.training_rows or self.rows
        if not self.class_weights:
            return self._smoothed(rows, logits, labels)
        weights = _tensor(self.class_weights, logits.device)

        def weighted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return rows(logits, labels) * weights[labels.clamp(min=0)]

        return self._smoothed(weighted, logits, labels)

    def counted(self, labels: torch.Tensor) -> torch.Tensor:
        """Return how many rows a batch has, shape ``(1,)``, or of each class, ``(classes,)``."""
        if self.class_weights:
            classes = torch.arange(len(self.class_weights), device=labels.device)
            return (labels[:, None] == classes).sum(dim=0)
        if labels.ndim == 1 and not labels.is_floating_point():
            return labels.ne(_IGNORED).sum().reshape(1)
        return torch.full((1,), len(labels), device=labels.device)

    def divisor(self, counts: torch.Tensor) -> torch.Tensor:
        """Return what the loss of a step is divided by, a scalar.

        Args:
            counts: What :meth:`counted` returns, added up over the step.
        """
        if not self.class_weights:
            return counts.sum() / 1  # a float, like the library's
        return (counts * _tensor(self.class_weights, counts.device)).sum()

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the share of this micro-batch in the loss of the global step, a scalar.

        Args:
            outputs: Of the model, with ``logits``.
            labels: The targets.
            num_items_in_batch: The :meth:`divisor` of the step, times the targets of a row where
                it has several: the library counts each. This batch is a step if it is None.
        """
        total = self.in_training(outputs["logits"], labels).sum()
        if num_items_in_batch is None:
            return total / self.divisor(self.counted(labels))
        return total / (num_items_in_batch / labels.shape[1:].numel())

    def _smoothed(self, rows: RowLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        loss = rows(logits, labels)
        if loss.shape != (len(labels),):
            raise UserError(
                f"loss() of the recipe returned shape {tuple(loss.shape)} for {len(labels)} rows: "
                "expected the loss of each row, not reduced (reduction='none')"
            )
        if not self.label_smoothing:
            return loss
        classes = (torch.full_like(labels, each) for each in range(logits.shape[-1]))
        uniform = torch.stack([rows(logits, each) for each in classes]).mean(dim=0)
        return (1 - self.label_smoothing) * loss + self.label_smoothing * uniform


@functools.lru_cache(maxsize=8)
def _tensor(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return numbers on a device, copied there once."""
    return torch.tensor(values, device=device)
