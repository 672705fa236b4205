"""The loss of a step: the sum over its rows divided by the rows of the *global* step.

The stock ``Trainer`` takes a mean-reducing loss for one that it has divided already wherever the
model's ``forward`` accepts ``**kwargs``, and so doubles loss and gradient with two processes or
two accumulation steps. Dividing by ``num_items_in_batch`` is what its ``compute_loss_func`` hook
is for, and also weighs micro-batches of unequal size by their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from finetune.errors import UserError

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class GlobalLoss:
    """A ``compute_loss_func`` for ``transformers.Trainer``."""

    rows: RowLoss  # logits (rows, classes) and labels (rows,) to the loss of each row, (rows,)
    label_smoothing: float = 0.0  # weight of the mean over all classes (Szegedy et al., 2016)
    # what makes the outputs of a document of those of its windows in evaluation: "mean" or "max"
    pooling: str | None = None

    def of_rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, smoothed: shape ``(rows,)``, in nats; refuse a mean."""
        logits = logits.float()
        loss = self.rows(logits, labels)
        if loss.shape != (len(labels),):
            raise UserError(
                f"loss() of the recipe returned shape {tuple(loss.shape)} for {len(labels)} rows: "
                "expected the loss of each row, not reduced (reduction='none')"
            )
        if not self.label_smoothing:
            return loss
        classes = (torch.full_like(labels, each) for each in range(logits.shape[-1]))
        uniform = torch.stack([self.rows(logits, each) for each in classes]).mean(dim=0)
        return (1 - self.label_smoothing) * loss + self.label_smoothing * uniform

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the share of this micro-batch in the loss of the global step, a scalar."""
        rows = len(labels) if num_items_in_batch is None else num_items_in_batch
        return self.of_rows(outputs["logits"], labels).sum() / rows
