"""Labels with names: one a row, of several classes, which may have an order, like stars; or any
number a row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from scipy.special import logit

from finetune.data import targets
from finetune.data.prediction_columns import (
    LABEL,
    LABEL_PROBABILITY,
    MOST_PROBABLE,
    PREDICTION,
    PROBABILITY,
    of_rank,
    probability_of,
)
from finetune.statistics import baselines, metrics, mistakes, scored
from finetune.statistics.baselines import Source
from finetune.statistics.metrics import Metrics, Statistics
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredRows
from finetune.tasks import losses
from finetune.tasks.base import Columns, Task

if TYPE_CHECKING:
    from finetune.training.steps import GlobalLoss, RowLoss

#: Validation rows that have a label, below which it has the threshold of all labels together.
_FEWEST_POSITIVES = 10
_MOST_TOGETHER = 100  # labels: the co-occurrences of more would be most of metrics.json


def _probabilities_in(table: pd.DataFrame, names: Sequence[str]) -> Probabilities:
    return Probabilities(table[[*map(probability_of, names)]].to_numpy(np.float64))


def _probability_columns(names: Sequence[str], values: np.ndarray) -> Columns:
    return dict(zip(map(probability_of, names), values, strict=True))


class SingleLabel(Task[ScoredRows]):
    """Cross-entropy over logits; the most probable class is predicted."""

    name = "single_label"
    sections = ("training", "classes", "probabilities", "slices", "mistakes")
    problem_type = "single_label_classification"
    label_kind = "classes"
    metrics = {"accuracy": {}, "f1": {"average": "macro"}}
    metric_modules: ClassVar[Sequence[str]] = (
        *("accuracy", "precision", "recall", "f1", "matthews_correlation"),
        *("roc_auc", "average_precision"),
    )
    losses = {"cross_entropy": losses.cross_entropy, "focal": losses.focal}
    is_ordered: ClassVar[bool] = False  # whether the order of the classes means something
    has_one_class = has_probabilities = True

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel

        return ClassLabel(names=self.labels)

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.int64)

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(outputs, axis=-1))

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        classes = np.arange(len(self.labels))
        predicted = np.concatenate([classes, np.roll(classes, 1)])  # right, then wrong
        return 4 * np.eye(len(classes), dtype=np.float32)[predicted], np.tile(classes, 2)

    def scored(
        self, labels: np.ndarray, outputs: np.ndarray, temperature: float = 1.0
    ) -> ScoredRows:
        return ScoredRows(labels, self.labels, Probabilities(outputs, "softmax", temperature))

    def scored_in(self, table: pd.DataFrame) -> ScoredRows:
        numbers = scored.class_numbers(table, LABEL, self.labels)
        return ScoredRows(numbers, self.labels, _probabilities_in(table, self.labels))

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> Columns:
        rows = self.scored(labels, outputs)
        names = np.array(self.labels, dtype=object)
        columns: Columns = {LABEL: names[rows.labels], PREDICTION: names[rows.classes]}
        if not self.has_outputs_file:
            return columns | _probability_columns(self.labels, rows.probabilities.columns())
        classes, probabilities = scored.most_probable(rows)
        columns |= {PROBABILITY: probabilities[:, 0], LABEL_PROBABILITY: rows.summary.of_label}
        for place in range(2, MOST_PROBABLE + 1):
            columns[of_rank(PREDICTION, place)] = names[classes[:, place - 1]]
            columns[of_rank(PROBABILITY, place)] = probabilities[:, place - 1]
        return columns

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> Columns:
        probabilities = Probabilities(outputs, "softmax", temperature).rows()
        best = [self.labels[index] for index in probabilities.argmax(axis=1)]
        columns = {LABEL: best, PROBABILITY: probabilities.max(axis=1)}
        return columns | (_probability_columns(self.labels, probabilities.T) if all_labels else {})

    def statistics(
        self, rows: ScoredRows, recipe_metrics: Metrics, temperature: float | None = None
    ) -> Statistics:
        confidence = mistakes.describe_calibration(rows) | {"temperature": temperature}
        if temperature not in (None, 1.0):
            mended = self.scored(rows.labels, rows.outputs, temperature)
            confidence["after"] = mistakes.describe_calibration(mended)
        is_short = len(self.labels) <= metrics.MOST_CONFUSED
        return replace(
            super().statistics(rows, recipe_metrics),
            classes=metrics.describe_classes(rows),
            confusion=rows.confusion.tolist() if is_short else None,
            top_k=metrics.describe_top_k(rows),
            calibration=confidence,
            ordered=metrics.describe_order(rows) if self.is_ordered else None,
        )

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


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task[ScoredLabels]):
    """Binary cross-entropy over a sigmoid for each label; those above one half are predicted."""

    name = "multi_label"
    sections = ("training", "labels")
    problem_type = "multi_label_classification"
    label_kind = "labels"
    metric_config = "multilabel"
    metrics = {
        "f1_micro": {"module": "f1", "average": "micro"},
        "f1_macro": {"module": "f1", "average": "macro"},
        "subset_accuracy": {"module": "accuracy"},
        "average_precision": {"average": "macro"},
    }
    metric_modules = ("f1", "precision", "recall", "accuracy", "average_precision", "roc_auc")
    losses = {"binary_cross_entropy": losses.binary_cross_entropy, "focal": losses.binary_focal}
    has_probabilities = True

    #: What is fitted on the validation rows, for the best F1: ``one`` threshold of all labels, one
    #: for each ``label``, or ``none``.
    thresholds: str = "one"

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel, List

        return List(ClassLabel(names=self.labels))

    def targets(self, labels: Any) -> np.ndarray:
        return targets.indicators(labels, len(self.labels)).astype(np.float32)

    def global_loss(self, rows: RowLoss, weight_of_class: np.ndarray | None) -> GlobalLoss:
        loss = super().global_loss(rows, None)
        if weight_of_class is None:
            return loss
        row_loss: Any = self.losses[self.loss_function or "binary_cross_entropy"]
        weighted = functools.partial(row_loss, positive_weights=weight_of_class)
        return replace(loss, training_loss=weighted)

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """Return the shifts after which one half is the threshold that was best."""
        if self.thresholds == "none":
            return None
        has = np.asarray(targets, dtype=bool)
        thresholds = np.full(len(self.labels), mistakes.fit_threshold(outputs, has))
        if self.thresholds == "label":
            for index in np.flatnonzero(has.sum(axis=0) >= _FEWEST_POSITIVES):
                thresholds[index] = mistakes.fit_threshold(outputs[:, index], has[:, index])
        return np.asarray(-logit(np.clip(thresholds, 1e-6, 1 - 1e-6)))

    def without_thresholds(self) -> MultiLabel:
        return replace(self, thresholds="none")

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return (np.asarray(outputs) > 0).astype(np.int64)

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = np.indices((4, len(self.labels)))
        has = ((rows + labels) % 2).astype(np.float32)
        return 4 * np.where(rows < 2, has, 1 - has) - 2, has  # right, then wrong

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredLabels:
        has = np.asarray(labels).astype(bool)
        return ScoredLabels(has, self.labels, Probabilities(outputs, "sigmoid"))

    def scored_in(self, table: pd.DataFrame) -> ScoredLabels:
        index = pd.Index(self.labels)
        has = targets.indicators([*map(index.get_indexer, table[LABEL])], len(self.labels))
        return ScoredLabels(has, self.labels, _probabilities_in(table, self.labels))

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> Columns:
        rows = self.scored(labels, outputs)
        decided = {LABEL: self._list_names(rows.labels), PREDICTION: self._list_names(rows.decided)}
        return decided | _probability_columns(self.labels, rows.probabilities.columns())

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> Columns:
        probabilities = Probabilities(outputs, "sigmoid").rows()
        columns = {LABEL: self._list_names(probabilities > 0.5)}
        return columns | (_probability_columns(self.labels, probabilities.T) if all_labels else {})

    def describe(self, row: pd.Series[Any], column: str) -> str:
        return ", ".join(row[column]) or "none"

    def _list_names(self, has: np.ndarray) -> list[list[str]]:
        """Return the names of the labels of each row."""
        return [[self.labels[index] for index in np.flatnonzero(row)] for row in has]

    def statistics(
        self, rows: ScoredLabels, recipe_metrics: Metrics, temperature: float | None = None
    ) -> Statistics:
        has = rows.labels.astype(np.float32)
        is_short = len(self.labels) <= _MOST_TOGETHER
        together = (has.T @ has).astype(int).tolist() if is_short else None
        scores = super().statistics(rows, recipe_metrics)
        return replace(scores, classes=metrics.describe_classes(rows), together=together)

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        validation = self.targets(targets.values(source.splits["validation"]))
        for name, logits in baselines.of_labels(source):
            shift = self.fit(logits[: len(validation)], validation)  # as the model has it
            tested = logits[len(validation) :]
            yield name, tested if shift is None else (tested + shift).astype(tested.dtype)
