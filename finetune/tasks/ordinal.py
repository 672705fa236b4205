"""One label a row, of classes that have an order, like stars."""

from __future__ import annotations

from typing import Any

from finetune.tasks import losses
from finetune.tasks.base import Task
from finetune.tasks.single_label import SingleLabel


class Ordinal(SingleLabel):
    """Logits of classes as where they have no order; the losses and the metrics know it.

    ``labels`` go from the lowest class to the highest.
    """

    name = "ordinal"
    metrics = {**SingleLabel.metrics, "quadratic_kappa": {}, "mean_absolute_error": {}}
    losses = {
        "cross_entropy": losses.cross_entropy,
        "soft": losses.soft_labels,
        "emd": losses.squared_earth_movers_distance,
    }
    is_ordered = True

    def find_difference(self, other: Task[Any]) -> str:
        """Return it where the order is another, too: the metrics count how far off a class is."""
        if not (difference := super().find_difference(other)) and other.name == self.name:
            orders = (", ".join(task.labels) for task in (self, other))
            difference = (
                "" if self.labels == other.labels else f"another order: {' and '.join(orders)}"
            )
        return difference
