"""A number a row, or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.prediction_columns import LABEL, PREDICTION, of_target
from finetune.data.targets import values as label_values
from finetune.errors import UserError
from finetune.statistics import baselines
from finetune.statistics.baselines import Source
from finetune.statistics.metrics import (
    METRICS,
    Metrics,
    describe_gaps,
    describe_outliers,
    estimate,
)
from finetune.statistics.scored import ScoredNumbers
from finetune.tasks import number_losses
from finetune.tasks.base import Task, Tell

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import Dataset

    from finetune.errors import Report

#: Targets that a sentence names.
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Regression(Task[ScoredNumbers]):
    """The outputs are the predicted numbers, in the units of the data; losses are in standard
    deviations of the training rows.

    Attributes:
        mean: Of each target, over the training rows; empty if not known.
        deviation: Standard deviation of each target, likewise; then losses are in the units of the
            data.
    """

    name = "regression"
    sections = ("predictions", "targets", "training")
    problem_type = "regression"
    label_kind = "numbers"
    label_word = "targets"
    are_named = False
    metrics = {metric: {} for metric in ("r2", "mae", "rmse", "pearson", "spearman")}
    losses = number_losses.LOSSES

    mean: Sequence[float] = ()
    deviation: Sequence[float] = ()

    @classmethod
    def of(cls, rows: Dataset, names: Sequence[str], loss_function: str) -> Regression:
        """Return the task of training rows.

        Args:
            rows: With numbers as ``label``.
            names: Of the targets, where there are several.
            loss_function: See :class:`Task`.
        """
        labels = np.asarray(label_values(rows), dtype=np.float64)
        has_several = labels.ndim == 2
        target_names = [*names] or [f"target {number + 1}" for number in range(labels.shape[-1])]
        targets = labels.reshape(len(labels), -1)
        deviation = targets.std(axis=0) if len(targets) else np.zeros(targets.shape[1])
        has_deviation = bool(len(targets)) and bool((deviation > 0).all())
        return cls(
            labels=target_names if has_several else [],
            loss_function=loss_function,
            mean=targets.mean(axis=0).tolist() if has_deviation else (),
            deviation=deviation.tolist() if has_deviation else (),
        )

    @property
    def pipeline_arguments(self) -> Mapping[str, Any]:
        return {"top_k": None} if self.labels else {}

    @property
    def facts(self) -> dict[str, Any]:
        return {"mean": [*self.mean], "deviation": [*self.deviation]} if self.deviation else {}

    @property
    def feature(self) -> Any:
        from datasets import List, Value

        number = Value("float32")
        return List(number, length=len(self.labels)) if self.labels else number

    def match_labels(self, rows: Dataset, split: str, report: Report) -> Dataset:
        from datasets import ClassLabel, List

        feature, flag = rows.features[LABEL], f"--label_columns {','.join(self.labels)}"
        expected = (
            f"{len(self.labels)} numbers a row ({flag})" if self.labels else "one number a row"
        )
        actual = "classes" if isinstance(feature, ClassLabel) else "one number a row"
        if isinstance(feature, List):
            actual = f"{feature.length} numbers a row"
        if actual == "classes" or not expected.startswith(actual):
            raise UserError(f"the data has {actual}, and the model predicts {expected}")
        return rows

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.float32)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs, targets = logits.reshape(len(labels), -1), labels.reshape(len(labels), -1)
        if self.deviation:
            unit = outputs.new_tensor(self.deviation)
            outputs, targets = outputs / unit, targets / unit
        return super().loss(outputs, targets)

    def initialized(self, model: torch.nn.Module, note: Tell) -> torch.nn.Module:
        """Return a model whose outputs begin at the mean of the training rows, spread like them."""
        from transformers import PreTrainedModel

        from finetune.models import head, pretrained

        if not self.deviation or not isinstance(model, PreTrainedModel):
            return model
        layer = head.last_linear(model, self.width)
        if not pretrained.is_fresh(model, layer):
            note(f"the last layer of {model.name_or_path} is trained further: it has one already")
            return model
        shift = np.array(self.mean)
        if not head.has_bias(layer):
            shift = np.zeros(self.width)
            note(
                f"the last layer of {type(model).__name__} has no bias: the mean of the labels has "
                "to be learned by its weights"
            )
        head.fold(layer, self._scale(layer), shift)
        return model

    def scaled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a model that is trained in standard deviations and returns the units of the data:
        see :class:`~finetune.models.head.ScaledLinear`.
        """
        from transformers import PreTrainedModel

        from finetune.models import head

        if self.deviation and isinstance(model, PreTrainedModel):
            head.scale_outputs(layer := head.last_linear(model, self.width), self._scale(layer))
        return model

    def _scale(self, layer: torch.nn.Linear) -> np.ndarray:
        from finetune.models import head

        mean = 0 if head.has_bias(layer) else np.array(self.mean)
        return head.power_of_two(np.hypot(self.deviation, mean))

    def balance(self, labels: Sequence[Any]) -> tuple[str, str]:
        values = np.asarray(labels, dtype=np.float64).reshape(len(labels), -1)
        descriptions = [
            f"mean {column.mean():.4g}, standard deviation {column.std():.4g}"
            for column in values.T[:_MOST_NAMED]
        ]
        if not self.labels:
            return "label", f"a number, {descriptions[0]}"
        listed = "; ".join(
            f"{name}: {text}" for name, text in zip(self.labels, descriptions, strict=False)
        )
        unnamed = len(self.labels) - _MOST_NAMED
        return "labels", f"{len(self.labels)} numbers; {listed}" + f" and {unnamed} more" * (
            unnamed > 0
        )

    def on_hub(self, *, is_text: bool) -> str:
        return "text-classification" if is_text else "tabular-regression"

    # ---- from outputs to predictions -------------------------------------------------------------

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.reshape(len(outputs), -1) if self.labels else outputs.reshape(len(outputs))

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers near the mean of the training rows, none of which is a whole number."""
        mean, deviation = np.array(self.mean or 1.0), np.array(self.deviation or 1.0)
        steps = np.array([[-0.531], [0.273], [0.497], [0.719]])
        targets, outputs = (
            np.broadcast_to(mean + deviation * offsets, (len(steps), self.width)).astype(np.float32)
            for offsets in (steps, steps[[0, 2, 1, 3]] + 0.113)
        )
        return outputs, self.decide(targets)

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredNumbers:
        return ScoredNumbers(labels, self.decide(outputs))

    def scored_in(self, table: pd.DataFrame) -> ScoredNumbers:
        labels, values = (
            self.decide(table[self._names(name)].to_numpy(dtype=np.float64))
            for name in (LABEL, PREDICTION)
        )
        return ScoredNumbers(labels, values)

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        rows = len(labels)
        return {
            **dict(zip(self._names(LABEL), labels.reshape(rows, -1).T, strict=True)),
            **dict(zip(self._names(PREDICTION), outputs.reshape(rows, -1).T, strict=True)),
        }

    def _names(self, column: str) -> list[str]:
        return [of_target(column, name) for name in self.labels] or [column]

    def predicted_names(self, *, all_labels: bool) -> list[str]:
        return self._names(PREDICTION)

    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        return [*outputs.reshape(len(outputs), -1).T]

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        values = [f"{row[name]:.6g}" for name in self._names(PREDICTION)]
        pairs = zip(self.labels, values, strict=True) if self.labels else ()
        return ", ".join(f"{name} {value}" for name, value in pairs) or values[0]

    def describe_row(self, row: pd.Series[Any]) -> tuple[str, float | None, bool]:
        values = [f"{row[name]:.4g}" for name in self._names(PREDICTION)[:_MOST_NAMED]]
        return ", ".join(values), None, False

    # ---- what predictions are worth --------------------------------------------------------------

    def unsuited(self, name: str, module: str) -> str:
        """Refuse metrics of classes too, which would round the numbers."""
        if ("numbers", module) in METRICS or module.endswith(".py"):  # the user's own
            return ""
        expected = ", ".join(metric for kind, metric in METRICS if kind == "numbers")
        return f"a metric of classes, and the labels are numbers (expected {expected})"

    def statistics(
        self, rows: ScoredNumbers, metrics: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        scores = estimate(rows, metrics)
        notes = describe_gaps(rows, metrics, scores) + describe_outliers(rows, metrics)
        targets = {
            name: estimate(ScoredNumbers(rows.targets[:, number], rows.outputs[:, number]), metrics)
            for number, name in enumerate(self.labels)
        }
        return {"rows": len(rows), "metrics": scores, "targets": targets or None, "notes": notes}

    def rank_disagreements(self, rows: Sequence[ScoredNumbers]) -> np.ndarray:
        unit = np.array(self.deviation) if self.deviation else 1.0
        gaps = [np.abs(run.outputs - rows[0].outputs) / unit for run in rows[1:]]
        widest = np.max(gaps, axis=(0, 2))
        different = np.flatnonzero(widest > 0)
        return different[np.argsort(-widest[different], kind="stable")]

    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        return baselines.of_numbers(source)
