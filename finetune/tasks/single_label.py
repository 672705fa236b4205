"""One label a row, of several classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import labels as class_labels
from finetune.data.label_columns import list_names
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
from finetune.statistics import baselines, calibration, scored
from finetune.statistics.baselines import Source
from finetune.statistics.estimates import McNemar, mcnemar
from finetune.statistics.metrics import (
    MOST_CONFUSED,
    Metrics,
    describe_classes,
    describe_gaps,
    describe_order,
    describe_top_k,
    estimate,
    with_standard,
)
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredRows
from finetune.tasks import losses, weights
from finetune.tasks.base import OF_AN_ORDER, OF_LABEL_SETS, RowLoss, Task
from finetune.tasks.decision import FEWEST_ORDERED

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from finetune.errors import Report
    from finetune.training.loss import GlobalLoss

#: Classes that the start block names.
_MOST_NAMED = 12


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
    unweighted = {"focal": losses.cross_entropy}
    losses = {"cross_entropy": losses.cross_entropy, "focal": losses.focal}
    is_ordered: ClassVar[bool] = False
    label_word = "classes"
    smooths_labels = has_one_class = has_probabilities = calibrates = bears_bf16 = True

    @property
    def feature(self) -> Any:
        from datasets import ClassLabel

        return ClassLabel(names=self.labels)

    def match_labels(self, rows: Dataset, split: str, report: Report) -> Dataset:
        return class_labels.match_labels(rows, self.labels, split, report)

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.int64)

    def class_weights(self, text: str, targets: np.ndarray) -> np.ndarray | None:
        return weights.of_classes(text, self.labels, targets)

    def global_loss(self, rows: RowLoss, weights: np.ndarray | None) -> GlobalLoss:
        from finetune.training.loss import GlobalLoss

        return GlobalLoss(
            self.evaluation_loss(rows),
            training_loss=rows,
            class_weights=() if weights is None else tuple(weights.tolist()),
        )

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(outputs, axis=-1))

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return Probabilities(outputs, "softmax").rows()

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        classes = np.arange(len(self.labels))
        predicted = np.concatenate([classes, np.roll(classes, 1)])  # right, then wrong
        return 4 * np.eye(len(classes), dtype=np.float32)[predicted], np.tile(classes, 2)

    def balance(self, labels: Sequence[Any]) -> tuple[str, str]:
        rows = Counter(labels)
        shares = [
            f"{name} {rows[index] / len(labels):.0%}" for index, name in enumerate(self.labels)
        ]
        rest = f" and {len(shares) - _MOST_NAMED} more" if len(shares) > _MOST_NAMED else ""
        return "classes", f"{len(shares)}: {', '.join(shares[:_MOST_NAMED])}{rest}"

    def on_hub(self, *, is_text: bool) -> str:
        return "text-classification" if is_text else "image-classification"

    def scored(
        self, labels: np.ndarray, outputs: np.ndarray, temperature: float = 1.0
    ) -> ScoredRows:
        return ScoredRows.from_outputs(self.labels, labels, outputs, temperature)

    def scored_in(self, table: pd.DataFrame) -> ScoredRows:
        return ScoredRows.from_table(table, self.labels)

    def compress_outputs(self, outputs: np.ndarray) -> np.ndarray | None:
        return scored.to_float16(outputs) if len(self.labels) > MOST_COLUMNS else None

    def needs_outputs(self, table: pd.DataFrame) -> bool:
        has_many = len(self.labels) > MOST_COLUMNS
        return has_many and probability_of(self.labels[0]) not in table  # which older runs have

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        rows, names = self.scored(labels, outputs), np.array(self.labels, dtype=object)
        if len(names) <= MOST_COLUMNS:
            of_classes = {
                probability_of(name): rows.probabilities.column(index)
                for index, name in enumerate(names)
            }
            return {LABEL: names[rows.labels], PREDICTION: names[rows.classes], **of_classes}
        classes, probabilities = scored.most_probable(rows)
        columns: dict[str, Any] = {
            LABEL: names[rows.labels],
            PREDICTION: names[rows.classes],
            PROBABILITY: probabilities[:, 0],
            LABEL_PROBABILITY: rows.summary.of_label,
        }
        for place in range(2, MOST_PROBABLE + 1):
            columns[of_rank(PREDICTION, place)] = names[classes[:, place - 1]]
            columns[of_rank(PROBABILITY, place)] = probabilities[:, place - 1]
        return columns

    def predicted_names(self, *, all_labels: bool) -> list[str]:
        return [LABEL, PROBABILITY, *(map(probability_of, self.labels) if all_labels else ())]

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        probabilities = Probabilities(outputs, "softmax", temperature).rows()
        best = [self.labels[index] for index in probabilities.argmax(axis=1)]
        return [best, probabilities.max(axis=1), *(probabilities.T if all_labels else ())]

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        probabilities = {label: row[probability_of(label)] for label in self.labels}
        first, *rest_of_labels = sorted(probabilities.items(), key=lambda pair: -pair[1])[:most]
        rest = ", ".join(f"{label} {probability:.4f}" for label, probability in rest_of_labels)
        return f"{first[0]}  {first[1]:.4f}" + (f"  ({rest})" if rest else "")

    def describe_row(self, row: pd.Series[Any]) -> tuple[str, float | None, bool]:
        predicted = row[PREDICTION]
        column = probability_of(predicted)
        return predicted, row[column if column in row else PROBABILITY], predicted == row[LABEL]

    def unsuited(self, name: str, module: str) -> str:
        """Refuse metrics of numbers, of sets of labels, and of an order if there is none."""
        if name in OF_LABEL_SETS:
            return f"a metric of rows with any number of labels, and these have one; use {module}"
        if module not in OF_AN_ORDER:
            return super().unsuited(name, module)
        if self.is_ordered:
            return ""
        if len(self.labels) < FEWEST_ORDERED:
            return f"it needs {FEWEST_ORDERED} classes or more in an order; use accuracy"
        return (
            f"it needs classes in an order, and {list_names(self.labels)} have none; "
            "texts: --task ordinal, with --label_order from the lowest to the highest if they are "
            "names; images: ordered_labels = True in a recipe of your own"
        )

    def statistics(
        self, rows: ScoredRows, metrics: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        scores = estimate(rows, with_standard("classes", metrics))
        matrix, confidence = rows.confusion, calibration.describe_calibration(rows)
        if temperature is not None:
            confidence["temperature"] = temperature
        if temperature not in (None, 1.0):
            mended = self.scored(rows.labels, rows.outputs, temperature)
            confidence["after"] = calibration.describe_calibration(mended)
        return {
            "rows": len(rows),
            "metrics": scores,
            "classes": describe_classes(rows),
            "confusion": matrix.tolist() if len(matrix) <= MOST_CONFUSED else None,
            "top_k": describe_top_k(rows),
            "calibration": confidence,
            "ordered": describe_order(rows) if self.is_ordered else None,
            "notes": describe_gaps(rows, metrics, scores),
        }

    def tests(self, rows: Sequence[ScoredRows]) -> list[McNemar]:
        return [mcnemar(rows[0].right, other.right) for other in rows[1:]]

    def rank_disagreements(self, rows: Sequence[ScoredRows]) -> np.ndarray:
        predictions = [run.classes for run in rows]
        confidence = np.sum([run.summary.confidence for run in rows], axis=0)
        different = np.flatnonzero(
            np.any([other != predictions[0] for other in predictions[1:]], axis=0)
        )
        return different[np.argsort(-confidence[different], kind="stable")]

    def temperature(self, outputs: np.ndarray, labels: np.ndarray) -> float | None:
        return calibration.fit_temperature(outputs, labels)

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        return baselines.of_classes(source, len(self.labels))
