"""What the outputs of a model are worth: the metrics that a task knows, and those of a recipe of
which nothing is known.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.statistics.metrics import Compute, Custom, Scoring, has_others
from finetune.statistics.scored import Scored
from finetune.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The outputs of a model on labelled rows, and how they are scored.

    Attributes:
        task: Of the labels.
        outputs: Shape ``(rows, number of outputs)``.
        labels: Shape ``(rows,)``.
        scoring: The arguments of each local metric that ``compute`` is made of; empty if it is the
            recipe's own.
        compute: The metrics of the recipe.
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
    def custom(self) -> Custom | None:
        """The metrics that the task does not know; None if there are none."""
        if not has_others(self.scoring, self.task.counted(self.scoring)):
            return None
        return Custom(self.compute, self.outputs, self.labels)

    def statistics(self, temperature: float | None = None) -> dict[str, Any]:
        """Return the fields of :class:`~finetune.training.manifest.Statistics` but ``beyond``.

        Args:
            temperature: Of the probabilities, fitted on other rows: 1 if they need none.
        """
        counted = self.task.counted(self.scoring)
        fields = self.task.statistics(self.rows, counted, temperature)
        custom = self.custom.estimates() if self.custom else {}
        return {**fields, "metrics": fields["metrics"] | custom}

    def compare_to_baseline(self, baseline: np.ndarray) -> dict[str, Any]:
        """Return the difference of each metric to a baseline, whose outputs are those of a model:
        an interval of the paired difference.
        """
        custom = {}
        if self.custom:
            custom = self.custom.minus(Custom(self.compute, baseline, self.labels))
        counted = self.task.counted(self.scoring)
        other = self.task.scored(self.labels, baseline)
        return self.task.compare_to_baseline(self.rows, other, counted) | custom


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
    counted = task.counted(scoring)
    judged = task.scores(second, counted)
    differences = task.differences(first, second, counted)
    if not has_others(scoring, counted):
        return judged, differences
    custom = Custom(compute, second.outputs, second.labels)
    before = Custom(compute, first.outputs, first.labels)
    return judged | custom.estimates(), differences | custom.minus(before)
