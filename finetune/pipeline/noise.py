"""The noise of the evaluations of a training, kept in its history: loss and metric of groups of the
validation rows, by which the report tells trends from chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState

from finetune.recipe import Recipe
from finetune.statistics import groups

if TYPE_CHECKING:
    from finetune.pipeline.thresholds import Watch
    from finetune.training.trainer import Trainer


def kept(trainer: Trainer, recipe: Recipe) -> Watch:
    """Return what watches evaluations, and put what it finds into the history of the trainer."""
    known = recipe.kind.counted(recipe.known_scoring)
    chosen = str(trainer.args.metric_for_best_model).removeprefix("eval_")
    names = [chosen] if chosen in known else [*known][: chosen == "loss"]
    watch = _Groups(trainer, recipe, {name: known[name] for name in names})
    trainer.add_callback(watch)
    return watch


class _Groups(TrainerCallback):
    """Adds ``groups`` to what the history says of an evaluation: the number of ``rows``, and the
    groups of the ``loss`` and of one metric.
    """

    def __init__(self, trainer: Trainer, recipe: Recipe, metrics: dict[str, Any]) -> None:
        self._loss, self._task, self._metrics = trainer.row_loss, recipe.kind, metrics
        self._found: dict[str, Any] = {}

    def __call__(self, outputs: np.ndarray, fitted: np.ndarray, targets: np.ndarray) -> None:
        """Take the outputs of an evaluation, the same as metrics take them, and the targets."""
        losses = self._loss.evaluation_losses(torch.as_tensor(outputs), torch.as_tensor(targets))
        self._found = {"rows": len(targets), "loss": groups.encode(groups.of_mean(losses.numpy()))}
        for name, metric in self._metrics.items():
            each = self._task.in_groups(self._task.scored(targets, fitted), metric)
            if each is not None:
                self._found[name] = groups.encode(each)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Put them into the history, where the evaluation was just logged."""
        if self._found and "eval_loss" in state.log_history[-1]:
            entry: dict[str, Any] = state.log_history[-1]
            entry["groups"], self._found = self._found, {}
