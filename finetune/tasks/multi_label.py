"""Any number of labels a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

from finetune.data import labels as class_labels
from finetune.data import targets
from finetune.data.prediction_columns import LABEL, PREDICTION, probability_of
from finetune.statistics import baselines
from finetune.statistics.baselines import Source
from finetune.statistics.calibration import fit_threshold
from finetune.statistics.estimates import McNemar, mcnemar
from finetune.statistics.metrics import (
    MOST_TOGETHER,
    Metrics,
    describe_classes,
    describe_gaps,
    estimate,
    with_standard,
)
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredLabels
from finetune.tasks import losses, weights
from finetune.tasks.base import Affine, RowLoss, Task

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import Dataset, DatasetDict

    from finetune.errors import Report
    from finetune.training.loss import GlobalLoss

#: Labels that the start block names.
_MOST_NAMED = 12
#: The metrics of the toolkit that take any number of labels a row.
_OF_LABELS = ("f1", "precision", "recall", "accuracy", "average_precision", "roc_auc")
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
    unweighted = {"focal": losses.binary_cross_entropy}
    weighs_in_loss = True
    losses = {"binary_cross_entropy": losses.binary_cross_entropy, "focal": losses.binary_focal}
    has_probabilities = bears_bf16 = True

    thresholds: str = "one"

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel, List

        return List(ClassLabel(names=self.labels))

    @property
    def pipeline_arguments(self) -> Mapping[str, Any]:
        return {"top_k": None}

    def match_labels(self, rows: Dataset, split: str, report: Report) -> Dataset:
        return class_labels.match_labels(rows, self.labels, split, report)

    def targets(self, labels: Any) -> np.ndarray:
        return targets.indicators(labels, len(self.labels)).astype(np.float32)

    def balance(self, labels: Sequence[Any]) -> tuple[str, str]:
        has = targets.indicators(labels, len(self.labels))
        shares = [
            f"{name} {share:.0%}" for name, share in zip(self.labels, has.mean(axis=0), strict=True)
        ]
        rest = f" and {len(shares) - _MOST_NAMED} more" if len(shares) > _MOST_NAMED else ""
        per_row, none = has.sum(axis=1).mean(), (~has.any(axis=1)).mean()
        rows = f"; {per_row:.2g} a row on average, {none:.0%} of the rows have none"
        return "labels", f"{len(shares)}: {', '.join(shares[:_MOST_NAMED])}{rest}{rows}"

    def remarks(self, splits: DatasetDict) -> list[str]:
        """Return which labels cannot be learned, and which have no threshold of their own."""
        rows, validation = (
            self.targets(targets.values(splits[split])) for split in ("train", "validation")
        )
        unlearnable = self._counted(rows, np.isin(rows.sum(axis=0), (0, len(rows))), "training")
        sentences = [f"labels that cannot be learned: {unlearnable}"] if unlearnable else []
        rare = self._counted(validation, validation.sum(axis=0) < _FEWEST_POSITIVES, "validation")
        if rare and self.thresholds == "label":
            sentences.append(
                f"--thresholds label: below {_FEWEST_POSITIVES} validation rows a label has the "
                f"threshold of all labels together, not one of its own: {rare}"
            )
        return sentences

    def _counted(self, has: np.ndarray, chosen: np.ndarray, split: str) -> str:
        """Return the names of labels, each with the number of rows that have it."""
        counts = has.sum(axis=0)
        descriptions = [
            f"'{self.labels[number]}' ({counts[number]:,.0f})" for number in np.flatnonzero(chosen)
        ]
        rest = (
            f" and {len(descriptions) - _MOST_NAMED} more"
            if len(descriptions) > _MOST_NAMED
            else ""
        )
        listed = f"{', '.join(descriptions[:_MOST_NAMED])}{rest}"
        return f"{listed} of {len(has):,} {split} rows have it" if descriptions else ""

    def on_hub(self, *, is_text: bool) -> str:
        return "text-classification" if is_text else "image-classification"

    def class_weights(self, text: str, targets: np.ndarray) -> np.ndarray | None:
        return weights.of_positives(text, self.labels, targets)

    def global_loss(self, rows: RowLoss, weights: np.ndarray | None) -> GlobalLoss:
        from torch import float32, tensor

        from finetune.training.loss import GlobalLoss

        evaluated = self.evaluation_loss(rows)
        if weights is None:
            return GlobalLoss(evaluated, training_loss=rows)
        chosen: Any = self.losses[self.loss_function or next(iter(self.losses))]
        positive = tensor(weights, dtype=float32)

        def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = chosen(logits, targets, positive.to(logits.device))
            return loss

        return GlobalLoss(evaluated, training_loss=weighted)

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
        return {
            LABEL: self._named(rows.labels),
            PREDICTION: self._named(rows.decided),
            **{
                probability_of(name): rows.probabilities.column(index)
                for index, name in enumerate(self.labels)
            },
        }

    def predicted_names(self, *, all_labels: bool) -> list[str]:
        return [LABEL, *(map(probability_of, self.labels) if all_labels else ())]

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        probabilities = self.probabilities(outputs)
        return [self._named(probabilities > 0.5), *(probabilities.T if all_labels else ())]

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        probabilities = {label: row[probability_of(label)] for label in self.labels}
        predicted = [f"{label} {probabilities[label]:.4f}" for label in row[LABEL]]
        rest = sorted(
            (label for label in probabilities if label not in row[LABEL]),
            key=lambda n: -probabilities[n],
        )
        unpredicted = ", ".join(f"{label} {probabilities[label]:.4f}" for label in rest[:most])
        return (", ".join(predicted) or "none") + (f"  ({unpredicted})" if unpredicted else "")

    def label_shown(self, label: Any) -> str:
        return ", ".join(label) or "none"

    def describe_row(self, row: pd.Series[Any]) -> tuple[str, float | None, bool]:
        return self.label_shown(row[PREDICTION]), None, set(row[PREDICTION]) == set(row[LABEL])

    def _named(self, has: np.ndarray) -> list[list[str]]:
        """Return the names of the labels of each row."""
        return [[self.labels[index] for index in np.flatnonzero(row)] for row in has]

    # ---- what predictions are worth --------------------------------------------------------------

    def unsuited(self, name: str, module: str) -> str:
        """Refuse metrics of one class a row, too."""
        if reason := super().unsuited(name, module):
            return reason
        if module in _OF_LABELS or module.endswith(".py"):  # the user's own
            return ""
        return (
            "a metric of one class a row, and these rows have any number of labels (expected "
            f"{', '.join(_OF_LABELS)})"
        )

    def statistics(
        self, rows: ScoredLabels, metrics: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        scores = estimate(rows, with_standard("labels", metrics))
        together = rows.labels.T.astype(np.float32) @ rows.labels.astype(np.float32)
        is_short = len(together) <= MOST_TOGETHER
        return {
            "rows": len(rows),
            "metrics": scores,
            "classes": describe_classes(rows),
            "together": together.astype(int).tolist() if is_short else None,
            "notes": describe_gaps(rows, metrics, scores),
        }

    def tests(self, rows: Sequence[ScoredLabels]) -> list[McNemar]:
        return [mcnemar(rows[0].right, other.right) for other in rows[1:]]

    def rank_disagreements(self, rows: Sequence[ScoredLabels]) -> np.ndarray:
        decisions = [run.decided for run in rows]
        is_different = np.any(
            [(other != decisions[0]).any(axis=1) for other in decisions[1:]], axis=0
        )
        first, *probabilities = (run.probabilities.rows() for run in rows)
        gaps = [np.abs(other - first).max(axis=1) for other in probabilities]
        different = np.flatnonzero(is_different)
        return different[np.argsort(-np.max(gaps, axis=0)[different], kind="stable")]

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        validation_targets = self.targets(targets.values(source.splits["validation"]))
        for name, logits in baselines.of_labels(source):
            after = self.fit(
                logits[: len(validation_targets)], validation_targets
            )  # as the model has it
            tested = logits[len(validation_targets) :]
            yield name, tested if after is None else after(tested)
