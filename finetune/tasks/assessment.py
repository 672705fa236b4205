"""What the outputs of a model are worth: the metrics of the table, and the others of a recipe."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from finetune.statistics import estimates, metrics
from finetune.statistics.metrics import Compute, Scoring, custom_replicates
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
    def custom(self) -> dict[str, np.ndarray]:
        """The replicates of the metrics that are not in the table."""
        return self._custom(self.outputs)

    def statistics(self, temperature: float | None = None) -> dict[str, Any]:
        """Return the fields of :class:`~finetune.training.manifest.Statistics` but ``beyond``.

        Args:
            temperature: Of the probabilities, fitted on other rows: 1 if they need none.
        """
        known_metrics = self.task.counted(self.scoring)
        statistics = self.task.statistics(self.rows, known_metrics, temperature)
        custom = _estimated(self.custom, len(self.rows))
        statistics["notes"] += metrics.describe_gaps(self.rows, custom, custom)
        return {**statistics, "metrics": statistics["metrics"] | custom}

    def compare_to_baseline(self, baseline: np.ndarray) -> dict[str, Any]:
        """Return the paired difference of each metric to a baseline, by its outputs."""
        known_metrics, other = (
            self.task.counted(self.scoring),
            self.task.scored(self.labels, baseline),
        )
        gaps = metrics.estimate_difference(other, self.rows, known_metrics)
        custom = self._custom(baseline) if self.custom else {}
        return gaps | _differences(custom, self.custom, len(self.rows))

    def _custom(self, outputs: np.ndarray) -> dict[str, np.ndarray]:
        if self.scoring and len(self.task.counted(self.scoring)) == len(self.scoring):
            return {}
        return custom_replicates(self.compute, outputs, self.labels, self.rows.groups)


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
    known_metrics = metrics.with_standard(task.label_kind, task.counted(scoring))
    before, after = (
        Assessment(
            task=task, outputs=rows.outputs, labels=rows.labels, scoring=scoring, compute=compute
        ).custom
        for rows in (first, second)
    )
    scores = metrics.estimate(second, known_metrics) | _estimated(after, len(second))
    gaps = metrics.estimate_difference(first, second, known_metrics)
    return scores, gaps | _differences(before, after, len(second))


def _estimated(replicates: Mapping[str, np.ndarray], rows: int) -> dict[str, Any]:
    return {
        name: asdict(estimates.estimate(values, estimates.NUMBER, rows))
        for name, values in replicates.items()
    }


def _differences(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], rows: int
) -> dict[str, Any]:
    return {
        name: asdict(estimates.difference(first[name], second[name], estimates.NUMBER, rows))
        for name in first.keys() & second.keys()
    }
