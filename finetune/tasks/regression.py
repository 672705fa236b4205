"""The task of predicting one or several numbers for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, List, Value

from finetune.data import targets as data_targets
from finetune.data.prediction_columns import LABEL, PREDICTION, of_target
from finetune.errors import UserError
from finetune.statistics import baselines, linear, metrics
from finetune.statistics.baselines import BaselineData, Baselines
from finetune.statistics.metrics import NamedMetrics
from finetune.statistics.results import Statistics
from finetune.statistics.scored import ScoredNumbers
from finetune.tasks import losses
from finetune.tasks.base import Columns, Task, Tell

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from finetune.errors import Findings


@dataclass(frozen=True, kw_only=True)
class Regression(Task[ScoredNumbers]):
    """Regression: the outputs are the predicted numbers, in the units of the data.

    The loss is computed on numbers divided by the standard deviation of the training rows.
    """

    name = "regression"
    sections = ("predictions", "targets", "training")
    problem_type = "regression"
    label_kind = "numbers"
    metrics = {metric: {} for metric in ("r2", "mae", "rmse", "pearson", "spearman")}
    linear_model = "ridge regression"
    linear_fit = linear.fit_numbers
    losses = {  # means over the targets
        "mse": lambda outputs, targets: ((outputs - targets) ** 2).mean(dim=-1),
        "mae": lambda outputs, targets: (outputs - targets).abs().mean(dim=-1),
        "huber": losses.huber,
    }

    #: Mean and standard deviation of each target over the training rows. Both are empty if unknown
    #: or if a target is constant; then the loss is in the units of the data.
    mean: Sequence[float] = ()
    deviation: Sequence[float] = ()

    @classmethod
    def of(cls, rows: Dataset, names: Sequence[str], loss_function: str) -> Regression:
        """Return the task of raw training rows. ``names`` are those of several targets, and
        ``loss_function`` is a key of :attr:`losses`, or empty for the first.
        """
        labels = np.asarray(data_targets.values(rows), dtype=np.float64)
        targets = labels.reshape(len(labels), -1)
        facts: dict[str, Any] = {}
        if (deviation := targets.std(axis=0)).all():
            facts = {"mean": targets.mean(axis=0).tolist(), "deviation": deviation.tolist()}
        names = list(names) or [f"target {number + 1}" for number in range(targets.shape[1])]
        target_names = names if labels.ndim == 2 else []
        return cls(labels=target_names, loss_function=loss_function, **facts)

    @property
    def facts(self) -> dict[str, Any]:
        if self.deviation:
            return {"mean": list(self.mean), "deviation": list(self.deviation)}
        return {}

    @property
    def feature(self) -> Any:
        number = Value("float32")
        if self.labels:
            return List(number, length=len(self.labels))
        return number

    def match_labels(self, rows: Dataset, split: str, report: Findings) -> Dataset:
        count = getattr(rows.features[LABEL], "length", 1)
        if data_targets.are_classes(rows) or count != self.width:
            expected = ",".join(self.labels) or "one for each row"
            actual = "classes" if data_targets.are_classes(rows) else f"numbers, {count} per row"
            raise UserError(f"the model predicts numbers: {expected}; the data has {actual}")
        return rows

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.float32)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs, targets = logits.reshape(len(labels), -1), labels.reshape(len(labels), -1)
        if self.deviation:
            unit = outputs.new_tensor(self.deviation)
            outputs, targets = outputs / unit, targets / unit
        return super().loss(outputs, targets)

    def divergence(
        self, logits: torch.Tensor, answers: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        return replace(self, loss_function="mse").loss(logits, answers)

    def initialized(self, model: torch.nn.Module, note: Tell) -> torch.nn.Module:
        """Scale a new last layer so that its outputs start with the mean and the spread of the
        training rows. Without a bias, the layer's weights have to learn the mean.
        """
        from transformers import PreTrainedModel

        from finetune.models import head, pretrained

        if not self.deviation or not isinstance(model, PreTrainedModel):
            return model
        layer = head.last_linear(model, self.width)
        if not getattr(model, pretrained.FRESH_HEAD, True):
            note(f"{model.name_or_path} has a trained head for these labels, which is kept")
            return model
        shift = np.array(self.mean) if layer.bias is not None else np.zeros(self.width)
        head.fold(layer, self._scale(layer), shift)
        return model

    def scaled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Make the last layer a :class:`~finetune.models.head.ScaledLinear`: it is trained with
        outputs near 1, and returns them in the units of the data.
        """
        from transformers import PreTrainedModel

        from finetune.models import head

        if self.deviation and isinstance(model, PreTrainedModel):
            head.scale_outputs(layer := head.last_linear(model, self.width), self._scale(layer))
        return model

    def _scale(self, layer: torch.nn.Linear) -> np.ndarray:
        """Return a power of two for each output: multiplying float32 by it does not round."""
        mean = 0 if layer.bias is not None else np.array(self.mean)
        exponents = np.round(np.log2(np.hypot(self.deviation, mean)))
        return np.exp2(np.clip(exponents, -100, 100))

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        columns = targets.reshape(len(targets), -1).astype(np.float64).T
        texts = []
        for name, column in zip(self.labels or [""], columns, strict=True):
            text = f"{name} mean {column.mean():.4g}, standard deviation {column.std():.4g}"
            texts.append(text.lstrip())
        return texts

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        if self.labels:
            return outputs.reshape(len(outputs), -1)
        return outputs.reshape(len(outputs))

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return made-up numbers near the mean of the training rows, none of them an integer."""
        ones = np.ones(self.width)
        steps = np.array([[-0.531], [0.273], [0.497], [0.719]]) * (self.deviation or ones)
        targets = (steps + (self.mean or ones)).astype(np.float32)
        outputs = targets[[0, 2, 1, 3]] * np.float32(1.013)
        return outputs, self.decide(targets)

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredNumbers:
        return ScoredNumbers(labels, self.decide(outputs))

    def scored_in(self, table: pd.DataFrame) -> ScoredNumbers:
        labels = table[self._names(LABEL)].to_numpy(dtype=np.float64)
        outputs = table[self._names(PREDICTION)].to_numpy(dtype=np.float64)
        return self.scored(self.decide(labels), outputs)

    def columns(self, labels: Any, outputs: np.ndarray) -> Columns:
        return self._columns(LABEL, self.targets(labels)) | self._columns(PREDICTION, outputs)

    def _columns(self, column: str, values: np.ndarray) -> Columns:
        return dict(zip(self._names(column), values.reshape(-1, self.width).T, strict=True))

    def _names(self, column: str) -> list[str]:
        return [of_target(column, name) for name in self.labels] or [column]

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        values = zip(self.labels or [""], self._names(PREDICTION), strict=True)
        return ", ".join(f"{label} {row[name]:.6g}".lstrip() for label, name in values)

    def describe(self, row: pd.Series[Any], column: str) -> str:
        return ", ".join(f"{row[name]:.4g}" for name in self._names(column))

    def statistics(self, rows: ScoredNumbers, recipe_metrics: NamedMetrics) -> Statistics:
        in_table = {name: metric for name, metric in recipe_metrics.items() if metric.name}
        columns = zip(self.labels, rows.targets.T, rows.outputs.T, strict=False)
        targets = {}
        for name, *column in columns:
            targets[name] = metrics.estimate(ScoredNumbers(*column), in_table)
        return replace(super().statistics(rows, recipe_metrics), targets=targets or None)

    def baselines(self, data: BaselineData) -> Baselines:
        return baselines.number_baselines(data)
