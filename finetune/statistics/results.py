"""The statistics of a run, as ``metrics.json`` has them; importing this imports no library."""

from dataclasses import dataclass, field
from typing import Any


class Part:
    """A dataclass whose fields can be read by key too, as in its JSON: ``run.metrics["test"]``."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


@dataclass(frozen=True, kw_only=True)
class Statistics(Part):
    """What the test rows say beyond the metrics of the recipe.

    An interval is ``{"value": ..., "low": ..., "high": ...}``, a 95% confidence interval; its ends
    are NaN, null in the file, where there are too few rows. What does not apply, as classes in a
    regression, is None.
    """

    rows: int
    metrics: dict[str, Any]  # an interval for each
    #: By baseline: intervals of the difference in each metric.
    differences: dict[str, dict[str, Any]] = field(default_factory=dict)
    classes: dict[str, Any] | None = None  # precision, recall, F1, areas and support of each
    confusion: list[list[int]] | None = None  # counts, true by predicted; up to 200 classes
    calibration: dict[str, Any] | None = None  # error, bins, and what the temperature changes
    positive_label: str | None = None  # of two classes, see ``--positive_label``
    targets: dict[str, Any] | None = None  # of several numbers: the metrics of each
    thresholds: dict[str, float] | None = None  # by label, fitted on validation rows and folded in
    notes: list[str] = field(default_factory=list)  # what was bounded, left out or went wrong
