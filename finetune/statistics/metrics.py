"""The metrics of a recipe: how they are declared, which way they get better, and custom ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.statistics.estimates import Measured, group_of_rows

if TYPE_CHECKING:
    from transformers import EvalPrediction

Compute = Callable[["EvalPrediction"], dict[str, float]]
#: The arguments of local metrics, by their names.
Scoring = Mapping[str, Mapping[str, Any]]
#: The key of the folder in ``metrics/`` among the arguments of a metric of another name.
MODULE = "module"
#: What a task knows its metrics by: functions of tallies, see :mod:`finetune.statistics.counts`,
#: names of :mod:`finetune.statistics.ranking`, or metrics of :mod:`finetune.statistics.numbers`.
Metrics = Mapping[str, Any]
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
    **{f"{name}_{average}": 1 for name in _AVERAGED for average in _AVERAGES},
    **dict.fromkeys(_LOWER_IS_BETTER, -1),
}


def module_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the folder in ``metrics/`` of a metric, and the arguments of its ``compute``."""
    others = {key: value for key, value in arguments.items() if key != MODULE}
    return str(arguments.get(MODULE, name)), others


def has_others(scoring: Scoring, metrics: Metrics) -> bool:
    """Return whether a recipe has metrics of its own, beside those that its task knows."""
    return not scoring or len(metrics) < len(scoring)


class Custom:
    """The metrics of a function, each computed without each of 64 groups of rows.

    Metrics that are no single number are left out; one that is not defined without some group has
    no interval.

    Args:
        compute: The metrics of a recipe.
        outputs: Shape ``(rows, outputs)``.
        labels: Shape ``(rows, ...)``.
    """

    def __init__(self, compute: Compute, outputs: np.ndarray, labels: np.ndarray) -> None:
        values = _evaluate(compute, outputs, labels)
        groups = group_of_rows(len(labels))
        without = []
        for group in range(int(groups.max(initial=-1)) + 1 if values else 0):
            rows = groups != group
            try:
                without.append(_evaluate(compute, outputs[rows], labels[rows]))
            except Exception:  # all rows could be evaluated: these lack a class, or the like
                without.append({})
        self.measured = {
            name: Measured.of_jackknife(
                value, np.array([others.get(name, np.nan) for others in without])
            )
            for name, value in values.items()
        }

    def estimates(self) -> dict[str, Any]:
        """Return the interval of each metric."""
        return {name: asdict(found.difference()) for name, found in self.measured.items()}

    def minus(self, other: Custom) -> dict[str, Any]:
        """Return how much more of each metric these outputs have than others on the same rows."""
        return {
            name: asdict((found - other.measured[name]).difference())
            for name, found in self.measured.items()
            if name in other.measured
        }


def _evaluate(compute: Compute, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if outputs.dtype == np.float16:  # of a file; metrics get what a model gives
        outputs = outputs.astype(np.float32)
    from transformers import EvalPrediction

    values = compute(EvalPrediction(predictions=outputs, label_ids=labels))
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
