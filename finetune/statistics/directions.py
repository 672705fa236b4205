"""Which way metrics get better."""

from __future__ import annotations

from collections.abc import Mapping

_AVERAGES = ("macro", "micro", "weighted", "samples")
_AVERAGED = ("f1", "precision", "recall")
_HIGHER_IS_BETTER = (
    *("accuracy", *_AVERAGED, "matthews_correlation", "r2", "pearson", "spearman"),
    *("roc_auc", "roc_area", "average_precision", "subset_accuracy", "quadratic_kappa"),
)
_LOWER_IS_BETTER = (
    *("mse", "rmse", "mae", "log_loss", "brier_score", "mean_absolute_error", "hamming_loss"),
)
#: 1 where more is better, -1 where less is, by metric.
DIRECTIONS: Mapping[str, int] = {
    **dict.fromkeys(_HIGHER_IS_BETTER, 1),
    **{f"{name}_{each}": 1 for name in _AVERAGED for each in _AVERAGES},
    **dict.fromkeys(_LOWER_IS_BETTER, -1),
}
