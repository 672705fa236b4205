"""Tasks whose labels have names: single-label, ordinal (such as stars) and multi-label."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import ClassLabel, List
from scipy.special import logit

from finetune.data import targets
from finetune.data.prediction_columns import (
    LABEL,
    LABEL_PROBABILITY,
    MAX_PROBABLE_CLASSES,
    PREDICTION,
    PROBABILITY,
    probability_of,
    ranked_name,
)
from finetune.statistics import baselines, linear, mistakes, scored
from finetune.statistics.baselines import BaselineData, Baselines
from finetune.statistics.metrics import NamedMetrics
from finetune.statistics.results import Statistics
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredRows
from finetune.tasks import losses
from finetune.tasks.base import Columns, Task
from finetune.tasks.decoding import label_sets

if TYPE_CHECKING:
    from finetune.training.steps import GlobalLoss, RowLoss

#: A label with fewer positive validation rows uses the threshold that all labels share.
_MIN_POSITIVES = 10


def _probabilities_in(table: pd.DataFrame, names: Sequence[str]) -> Probabilities:
    return Probabilities(table[list(map(probability_of, names))].to_numpy(np.float64))


def _probability_columns(names: Sequence[str], probabilities: Probabilities) -> Columns:
    return dict(zip(map(probability_of, names), probabilities.rows().T, strict=True))


class SingleLabel(Task[ScoredRows]):
    """One class for each row: cross-entropy over logits, the most probable class is predicted."""

    name = "single_label"
    sections = ("training", "classes", "probabilities", "slices", "mistakes")
    problem_type = "single_label_classification"
    label_kind = "classes"
    metrics = {"accuracy": {}, "f1": {"average": "macro"}}
    losses = {"cross_entropy": losses.cross_entropy, "focal": losses.focal}
    has_one_class = has_probabilities = True
    function = "softmax"
    predicted_type = pa.string()

    @property
    def feature(self) -> Any:
        return ClassLabel(names=self.labels)

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.int64)

    @property
    def positive(self) -> int:
        """The id of the positive class, if there are two."""
        return self.labels.index(self.positive_name) if self.positive_name else 1

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredRows:
        return ScoredRows(labels, self.labels, Probabilities(outputs, "softmax"), self.positive)

    def scored_in(self, table: pd.DataFrame) -> ScoredRows:
        numbers = pd.Index(self.labels).get_indexer(pd.Index(table[LABEL]))
        probabilities = _probabilities_in(table, self.labels)
        return ScoredRows(numbers, self.labels, probabilities, self.positive)

    def columns(self, labels: Any, outputs: np.ndarray) -> Columns:
        rows = self.scored(self.targets(labels), outputs)
        names = np.array(self.labels, dtype=object)
        columns: Columns = {LABEL: names[rows.labels], PREDICTION: names[rows.classes]}
        if not self.has_outputs_file:
            return columns | _probability_columns(self.labels, rows.probabilities)
        classes, probabilities = scored.most_probable(rows)
        columns |= {PROBABILITY: probabilities[:, 0], LABEL_PROBABILITY: rows.summary.of_label}
        for rank in range(2, MAX_PROBABLE_CLASSES + 1):
            columns[ranked_name(PREDICTION, rank)] = names[classes[:, rank - 1]]
            columns[ranked_name(PROBABILITY, rank)] = probabilities[:, rank - 1]
        return columns

    def statistics(self, rows: ScoredRows, recipe_metrics: NamedMetrics) -> Statistics:
        return replace(
            super().statistics(rows, recipe_metrics),
            calibration=mistakes.describe_calibration(rows.summary.confidence, rows.is_correct),
            positive_label=self.positive_name,
        )

    def baselines(self, data: BaselineData) -> Baselines:
        return baselines.class_baselines(data, len(self.labels))


class Ordinal(SingleLabel):
    """Single-label classification whose losses and metrics use the order of the classes.

    ``labels`` are sorted from the lowest class to the highest.
    """

    name = "ordinal"
    metrics = {**SingleLabel.metrics, "quadratic_kappa": {}, "mean_absolute_error": {}}
    losses = {"cross_entropy": losses.cross_entropy, "soft": losses.soft_labels}


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task[ScoredLabels]):
    """Any number of labels for each row: binary cross-entropy over a sigmoid for each label.

    Labels with a probability above one half are predicted, after the shift of :meth:`fit`.
    """

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
    losses = {"binary_cross_entropy": losses.binary_cross_entropy, "focal": losses.binary_focal}
    linear_fit = linear.fit_labels
    has_probabilities = True
    function = "sigmoid"

    #: The thresholds to fit on the validation rows for the best F1: ``one`` for all labels, one for
    #: each ``label``, or ``none``.
    thresholds: str = "one"

    @property
    def feature(self) -> Any:
        return List(ClassLabel(names=self.labels))

    def targets(self, labels: Any) -> np.ndarray:
        return targets.indicators(labels, len(self.labels)).astype(np.float32)

    def global_loss(self, row_loss: RowLoss, class_weights: np.ndarray | None) -> GlobalLoss:
        global_loss = super().global_loss(row_loss, None)
        if class_weights is None:
            return global_loss
        loss: Any = self.losses[self.loss_function or "binary_cross_entropy"]
        weighted_loss = functools.partial(loss, positive_weights=class_weights)
        return replace(global_loss, training_loss=weighted_loss)

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """Return the shift of each output that moves the best threshold for F1 to one half."""
        if self.thresholds == "none":
            return None
        is_positive = targets.astype(bool)
        thresholds = np.full(len(self.labels), mistakes.fit_threshold(outputs, is_positive))
        if self.thresholds == "label":
            for index in np.flatnonzero(is_positive.sum(axis=0) >= _MIN_POSITIVES):
                thresholds[index] = mistakes.fit_threshold(outputs[:, index], is_positive[:, index])
        return np.asarray(-logit(np.clip(thresholds, 1e-6, 1 - 1e-6)))

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0).astype(np.int64)

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = np.indices((4, len(self.labels)))
        targets = ((rows + labels) % 2).astype(np.float32)
        return 4 * np.where(rows < 2, targets, 1 - targets) - 2, targets  # correct, then wrong

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredLabels:
        is_positive = labels.astype(bool)
        return ScoredLabels(is_positive, self.labels, Probabilities(outputs, "sigmoid"))

    def scored_in(self, table: pd.DataFrame) -> ScoredLabels:
        index = pd.Index(self.labels)
        is_positive = targets.indicators(
            list(map(index.get_indexer, table[LABEL])), len(self.labels)
        )
        return ScoredLabels(is_positive, self.labels, _probabilities_in(table, self.labels))

    def columns(self, labels: Any, outputs: np.ndarray) -> Columns:
        rows = self.scored(self.targets(labels), outputs)
        names = {
            LABEL: label_sets(rows.labels, self.labels),
            PREDICTION: label_sets(rows.decided, self.labels),
        }
        return names | _probability_columns(self.labels, rows.probabilities)

    def describe(self, row: pd.Series[Any], column: str) -> str:
        return ", ".join(row[column]) or "none"

    def baselines(self, data: BaselineData) -> Baselines:
        validation = self.targets(targets.values(data.splits["validation"]))
        for name, logits in baselines.label_baselines(data):
            shift = self.fit(logits[: len(validation)], validation)  # as for the model
            outputs = logits[len(validation) :]
            yield name, outputs if shift is None else (outputs + shift).astype(outputs.dtype)
