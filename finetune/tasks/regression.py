"""A number a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.statistics.resampling import Metrics
from finetune.statistics.scored import LABEL, PREDICTION, ScoredNumbers
from finetune.tasks.base import Task, Tell

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import DatasetDict


def _squared_error(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.squeeze(-1) - labels) ** 2


class Regression(Task[ScoredNumbers]):
    """The squared error of one output, which is the prediction."""

    name = "regression"
    sections = ("predictions", "training")
    problem_type = "regression"
    losses = {"mse": _squared_error}

    @property
    def feature(self) -> Any:
        from datasets import Value

        return Value("float32")

    def targets(self, labels: Any) -> np.ndarray:
        return np.asarray(labels, dtype=np.float32)

    def decided(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.reshape(len(outputs))

    def balance(self, labels: Sequence[Any]) -> tuple[str, str]:
        values = np.asarray(labels)
        spread = f"mean {values.mean():.4g}, standard deviation {values.std():.4g}"
        return "label", f"a number, {spread}"

    def on_hub(self, *, is_text: bool) -> str:
        return "tabular-regression"

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredNumbers:
        return ScoredNumbers(labels, outputs.reshape(len(outputs)))

    def scored_in(self, table: pd.DataFrame) -> ScoredNumbers:
        labels, values = (table[name].to_numpy(dtype=np.float64) for name in (LABEL, PREDICTION))
        return ScoredNumbers(labels, values)

    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        return {LABEL: labels, PREDICTION: outputs.reshape(len(labels))}

    def predicted_names(self, *, every: bool) -> list[str]:
        return [PREDICTION]

    def predicted(self, outputs: np.ndarray, temperature: float, *, every: bool) -> list[Any]:
        return [outputs.reshape(len(outputs))]

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        return f"{row[PREDICTION]:.6g}"

    def shown(self, row: pd.Series[Any]) -> tuple[str, float | None, bool]:
        return f"{row[PREDICTION]:.4g}", None, False

    def scores(self, rows: ScoredNumbers, counted: Metrics) -> dict[str, Any]:
        return {}

    def statistics(
        self, rows: ScoredNumbers, counted: Metrics, temperature: float | None
    ) -> dict[str, Any]:
        return {"rows": len(rows), "metrics": {}}

    def differences(
        self, first: ScoredNumbers, second: ScoredNumbers, counted: Metrics
    ) -> dict[str, Any]:
        return {}

    def apart(self, rows: Sequence[ScoredNumbers]) -> np.ndarray:
        gaps = np.max([np.abs(each.values - rows[0].values) for each in rows[1:]], axis=0)
        apart = np.flatnonzero(gaps > 0)
        return apart[np.argsort(-gaps[apart], kind="stable")]

    def baselines(
        self,
        splits: DatasetDict,
        input_column: str,
        seed: int,
        fingerprint: str,
        *,
        fit: bool,
        note: Tell,
    ) -> Iterator[tuple[str, np.ndarray]]:
        mean = np.mean(splits["train"][LABEL][:])
        yield "mean", np.full((len(splits["test"]), 1), mean, dtype=np.float32)
