"""What the outputs of a model are worth: the metrics of the table, and the others of a recipe."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from finetune.statistics import estimates, metrics
from finetune.statistics.metrics import Compute, Metrics, Scoring
from finetune.statistics.scored import Scored
from finetune.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The outputs of a model on labelled rows, and how they are scored.

    Attributes:
        task: Of the labels.
        outputs: Shape ``(rows, outputs)``.
        labels: Shape ``(rows,)``.
        scoring: The arguments of each local metric that ``compute`` is made of; empty if it is the
            recipe's own.
        compute: The metrics of the recipe that are not in the table.
    """

    task: Task[Any]
    outputs: np.ndarray
    labels: np.ndarray
    scoring: Scoring
    compute: Compute

    @functools.cached_property
    def rows(self) -> Scored:
        """The rows as the statistics of the task take them."""
        rows: Scored = self.task.scored(self.labels, self.outputs)
        return rows

    @functools.cached_property
    def table_metrics(self) -> Metrics:
        """The metrics of the recipe that are in the table."""
        return metrics.find_metrics(self.task.label_kind, self.scoring)

    @functools.cached_property
    def custom(self) -> dict[str, np.ndarray]:
        """The replicates of the metrics that are not in the table."""
        if self.scoring and len(self.table_metrics) == len(self.scoring):
            return {}
        groups = estimates.group_rows(len(self.labels))
        return metrics.custom_replicates(self.compute, self.outputs, self.labels, groups)

    def statistics(self, temperature: float | None = None) -> dict[str, Any]:
        """Return the fields of :class:`~finetune.training.manifest.Statistics` but ``beyond``.

        Args:
            temperature: Of the probabilities, fitted on other rows: 1 if they need none.
        """
        statistics = self.task.statistics(self.rows, self.table_metrics, temperature)
        custom = self._estimate_custom()
        statistics["notes"] += metrics.describe_gaps(self.rows, custom, custom)
        return {**statistics, "metrics": statistics["metrics"] | custom}

    def compare_to_baseline(self, baseline: np.ndarray) -> dict[str, Any]:
        """Return the paired difference of each metric to a baseline, by its outputs."""
        other = replace(self, outputs=baseline)
        gaps = metrics.estimate_difference(other.rows, self.rows, self.table_metrics)
        return gaps | self._custom_differences(other)

    def _estimate_custom(self) -> dict[str, Any]:
        return {
            name: asdict(estimates.estimate(values, estimates.NUMBER, len(self.labels)))
            for name, values in self.custom.items()
        }

    def _custom_differences(self, other: Assessment) -> dict[str, Any]:
        rows = len(self.labels)
        return {
            name: asdict(estimates.difference(first, self.custom[name], estimates.NUMBER, rows))
            for name, first in (other.custom if self.custom else {}).items()
            if name in self.custom
        }


def compared(
    task: Task[Any], first: Scored, second: Scored, scoring: Scoring, compute: Compute
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the metrics of the second, and how much more of each it has than the first.

    Args:
        task: Of both.
        first: Rows of one model.
        second: The same rows of another.
        scoring: See :class:`Assessment`.
        compute: Likewise.
    """
    before, after = (
        Assessment(
            task=task, outputs=rows.outputs, labels=rows.labels, scoring=scoring, compute=compute
        )
        for rows in (first, second)
    )
    all_metrics = metrics.with_standard(task.label_kind, after.table_metrics)
    scores = metrics.estimate(second, all_metrics) | after._estimate_custom()
    gaps = metrics.estimate_difference(first, second, all_metrics)
    return scores, gaps | after._custom_differences(before)
