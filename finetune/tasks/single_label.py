"""One label a row, of several classes, which may have an order, like stars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data.prediction_columns import (
    LABEL,
    LABEL_PROBABILITY,
    MOST_COLUMNS,
    MOST_PROBABLE,
    PREDICTION,
    PROBABILITY,
    of_rank,
    probability_of,
)
from finetune.statistics import baselines, calibration, metrics, scored
from finetune.statistics.baselines import Source
from finetune.statistics.metrics import Metrics
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredRows
from finetune.tasks import losses
from finetune.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd


class SingleLabel(Task[ScoredRows]):
    """Cross-entropy over logits; the most probable class is predicted.

    Attributes:
        is_ordered: Whether the order of the classes means something.
    """

    name = "single_label"
    sections = ("training", "classes", "probabilities", "length", "slices", "mistakes")
    problem_type = "single_label_classification"
    label_kind = "classes"
    metrics = {"accuracy": {}, "f1": {"average": "macro"}}
    metric_modules: ClassVar[Sequence[str]] = (
        *("accuracy", "precision", "recall", "f1", "matthews_correlation"),
        *("roc_auc", "average_precision"),
    )
    unweighted = {"focal": losses.cross_entropy}
    losses = {"cross_entropy": losses.cross_entropy, "focal": losses.focal}
    is_ordered: ClassVar[bool] = False
    has_one_class = has_probabilities = True

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel

        return ClassLabel(names=self.labels)

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.int64)

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        shares = np.bincount(targets, minlength=len(self.labels)) / len(targets)
        return [f"{name} {share:.0%}" for name, share in zip(self.labels, shares, strict=True)]

    # ---- from outputs to predictions -------------------------------------------------------------

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(outputs, axis=-1))

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return Probabilities(outputs, "softmax").rows()

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        classes = np.arange(len(self.labels))
        predicted = np.concatenate([classes, np.roll(classes, 1)])  # right, then wrong
        return 4 * np.eye(len(classes), dtype=np.float32)[predicted], np.tile(classes, 2)

    def scored(
        self, labels: np.ndarray, outputs: np.ndarray, temperature: float = 1.0
    ) -> ScoredRows:
        return ScoredRows(labels, self.labels, Probabilities(outputs, "softmax", temperature))

    def scored_in(self, table: pd.DataFrame) -> ScoredRows:
        columns = table[[probability_of(name) for name in self.labels]].to_numpy(np.float64)
        numbers = scored.class_numbers(table, LABEL, self.labels)
        return ScoredRows(numbers, self.labels, Probabilities(columns))

    def compress_outputs(self, outputs: np.ndarray) -> np.ndarray | None:
        return scored.to_float16(outputs) if len(self.labels) > MOST_COLUMNS else None

    def needs_outputs(self, table: pd.DataFrame) -> bool:
        has_many = len(self.labels) > MOST_COLUMNS
        return has_many and probability_of(self.labels[0]) not in table  # which older runs have

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        rows, names = self.scored(labels, outputs), np.array(self.labels, dtype=object)
        columns: dict[str, Any] = {LABEL: names[rows.labels], PREDICTION: names[rows.classes]}
        if len(names) <= MOST_COLUMNS:
            for index, name in enumerate(names):
                columns[probability_of(name)] = rows.probabilities.column(index)
            return columns
        classes, probabilities = scored.most_probable(rows)
        columns |= {PROBABILITY: probabilities[:, 0], LABEL_PROBABILITY: rows.summary.of_label}
        for place in range(2, MOST_PROBABLE + 1):
            columns[of_rank(PREDICTION, place)] = names[classes[:, place - 1]]
            columns[of_rank(PROBABILITY, place)] = probabilities[:, place - 1]
        return columns

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        probabilities = Probabilities(outputs, "softmax", temperature).rows()
        best = [self.labels[index] for index in probabilities.argmax(axis=1)]
        return [best, probabilities.max(axis=1), *(probabilities.T if all_labels else ())]

    # ---- what predictions are worth --------------------------------------------------------------

    def describe(
        self, rows: ScoredRows, recipe_metrics: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        matrix, confidence = rows.confusion, calibration.describe_calibration(rows)
        if temperature is not None:
            confidence["temperature"] = temperature
        if temperature not in (None, 1.0):
            mended = self.scored(rows.labels, rows.outputs, temperature)
            confidence["after"] = calibration.describe_calibration(mended)
        return {
            "classes": metrics.describe_classes(rows),
            "confusion": matrix.tolist() if len(matrix) <= metrics.MOST_CONFUSED else None,
            "top_k": metrics.describe_top_k(rows),
            "calibration": confidence,
            "ordered": metrics.describe_order(rows) if self.is_ordered else None,
        }

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        return baselines.of_classes(source, len(self.labels))


class Ordinal(SingleLabel):
    """Logits of classes as where they have no order; the losses and the metrics know it.

    ``labels`` go from the lowest class to the highest.
    """

    name = "ordinal"
    metrics = {**SingleLabel.metrics, "quadratic_kappa": {}, "mean_absolute_error": {}}
    metric_modules = (*SingleLabel.metric_modules, "quadratic_kappa", "mean_absolute_error")
    losses = {
        "cross_entropy": losses.cross_entropy,
        "soft": losses.soft_labels,
        "emd": losses.squared_earth_movers_distance,
    }
    is_ordered = True
