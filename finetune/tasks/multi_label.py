"""Any number of labels a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

from finetune.data import targets
from finetune.data.prediction_columns import LABEL, PREDICTION, probability_of
from finetune.statistics import baselines, metrics
from finetune.statistics.baselines import Source
from finetune.statistics.calibration import fit_threshold
from finetune.statistics.metrics import Metrics
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredLabels
from finetune.tasks import losses
from finetune.tasks.base import Affine, RowLoss, Task

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from finetune.training.loss import GlobalLoss

#: Validation rows that have a label, below which it has the threshold of all labels together.
_FEWEST_POSITIVES = 10


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task[ScoredLabels]):
    """Binary cross-entropy over a sigmoid for each label; those above one half are predicted.

    Attributes:
        thresholds: What is fitted on the validation rows, for the best F1: ``one`` threshold of all
            labels, one for each ``label``, or ``none``.
    """

    name = "multi_label"
    sections = ("training", "labels", "length")
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
    unweighted = {"focal": losses.binary_cross_entropy}
    losses = {"binary_cross_entropy": losses.binary_cross_entropy, "focal": losses.binary_focal}
    has_probabilities = True

    thresholds: str = "one"

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel, List

        return List(ClassLabel(names=self.labels))

    def targets(self, labels: Any) -> np.ndarray:
        return targets.indicators(labels, len(self.labels)).astype(np.float32)

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        shares = zip(self.labels, targets.mean(axis=0), strict=True)
        return [f"{name} {share:.0%}" for name, share in shares]

    def global_loss(self, rows: RowLoss, weight_of_class: np.ndarray | None) -> GlobalLoss:
        from torch import float32, tensor

        loss = super().global_loss(rows, None)
        if weight_of_class is None:
            return loss
        chosen: Any = self.losses[self.loss_function or next(iter(self.losses))]
        positive = tensor(weight_of_class, dtype=float32)

        def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            losses: torch.Tensor = chosen(logits, targets, positive.to(logits.device))
            return losses

        return replace(loss, training_loss=weighted)

    # ---- from outputs to predictions -------------------------------------------------------------

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> Affine | None:
        """Return the shifts after which one half is the threshold that was best."""
        if self.thresholds == "none":
            return None
        probabilities, has = Probabilities(outputs, "sigmoid"), np.asarray(targets, dtype=bool)
        thresholds = np.full(len(self.labels), fit_threshold(probabilities, has))
        if self.thresholds == "label":
            for index in np.flatnonzero(has.sum(axis=0) >= _FEWEST_POSITIVES):
                column = Probabilities(outputs[:, [index]], "sigmoid")
                thresholds[index] = fit_threshold(column, has[:, [index]])
        return Affine(np.ones(len(thresholds)), -logit(np.clip(thresholds, 1e-6, 1 - 1e-6)))

    def without_thresholds(self) -> MultiLabel:
        return replace(self, thresholds="none")

    def thresholds_of(self, after: Affine) -> dict[str, float]:
        """Return the thresholds of which ``after`` makes one half."""
        return dict(zip(self.labels, expit(-after.shift).tolist(), strict=True))

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return (np.asarray(outputs) > 0).astype(np.int64)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(expit(np.asarray(outputs, dtype=np.float64)))

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = np.indices((4, len(self.labels)))
        has = ((rows + labels) % 2).astype(np.float32)
        return 4 * np.where(rows < 2, has, 1 - has) - 2, has  # right, then wrong

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredLabels:
        has = np.asarray(labels).astype(bool)
        return ScoredLabels(has, self.labels, Probabilities(outputs, "sigmoid"))

    def scored_in(self, table: pd.DataFrame) -> ScoredLabels:
        number = {name: index for index, name in enumerate(self.labels)}
        has = targets.indicators(
            [[number[name] for name in names] for names in table[LABEL]], len(self.labels)
        )
        columns = table[[probability_of(name) for name in self.labels]]
        return ScoredLabels(has, self.labels, Probabilities(columns.to_numpy(dtype=np.float64)))

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        rows = self.scored(labels, outputs)
        columns: dict[str, Any] = {
            LABEL: self._list_names(rows.labels),
            PREDICTION: self._list_names(rows.decided),
        }
        for index, name in enumerate(self.labels):
            columns[probability_of(name)] = rows.probabilities.column(index)
        return columns

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        probabilities = self.probabilities(outputs)
        return [self._list_names(probabilities > 0.5), *(probabilities.T if all_labels else ())]

    def describe_row(self, row: pd.Series[Any]) -> tuple[str, str, bool]:
        label, prediction = (", ".join(row[name]) or "none" for name in (LABEL, PREDICTION))
        return label, prediction, set(row[PREDICTION]) == set(row[LABEL])

    def _list_names(self, has: np.ndarray) -> list[list[str]]:
        """Return the names of the labels of each row."""
        return [[self.labels[index] for index in np.flatnonzero(row)] for row in has]

    # ---- what predictions are worth --------------------------------------------------------------

    def describe(
        self, rows: ScoredLabels, recipe_metrics: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        together = rows.labels.T.astype(np.float32) @ rows.labels.astype(np.float32)
        is_short = len(together) <= metrics.MOST_TOGETHER
        return {
            "classes": metrics.describe_classes(rows),
            "together": together.astype(int).tolist() if is_short else None,
        }

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        validation = self.targets(targets.values(source.splits["validation"]))
        for name, logits in baselines.of_labels(source):
            after = self.fit(logits[: len(validation)], validation)  # as the model has it
            tested = logits[len(validation) :]
            yield name, tested if after is None else after(tested)
