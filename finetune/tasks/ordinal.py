"""One label a row, of classes that have an order, like stars."""

from __future__ import annotations

from finetune.tasks import losses
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
