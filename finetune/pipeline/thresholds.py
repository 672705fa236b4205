"""What a task fits on the validation rows, the thresholds of labels: applied in each evaluation of
a training, and folded into the last layer of the model after it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import EvalPrediction

from finetune.errors import UserError
from finetune.models import head
from finetune.recipe import Recipe
from finetune.runtime.signals import Stopped

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.tasks.base import Affine, Task
    from finetune.training.trainer import Trainer


def without_place(recipe: Recipe, model: torch.nn.Module) -> str | None:
    """Leave the thresholds of a recipe out where the last layer of its model has no bias that they
    could be folded into, those of the baselines too; return a sentence that says so.
    """
    task = recipe.kind.without_thresholds()
    if task == recipe.kind:
        return None
    with contextlib.suppress(UserError):  # there is no such layer
        if head.has_bias(head.last_linear(model, recipe.kind.width)):
            return None
    recipe.kind = task
    return (
        f"{type(model).__name__}: the last layer has no bias that thresholds could be folded into; "
        "without them the model and its baselines give labels above a probability of one half"
    )


@contextlib.contextmanager
def in_evaluations(trainer: Trainer, task: Task[Any]) -> Iterator[None]:
    """Let evaluations compute metrics of outputs after what the task fits on them, as they are of
    the model that is saved: these choose the best checkpoint, and stop the training early.

    Args:
        trainer: Of the training.
        task: Of its labels.
    """
    compute = trainer.compute_metrics

    def of_fitted(prediction: EvalPrediction) -> dict[str, float]:
        assert compute is not None
        outputs, targets = map(np.asarray, (prediction.predictions, prediction.label_ids))
        after = task.fit(outputs, targets)
        fitted = after(outputs) if after else outputs
        return compute(EvalPrediction(fitted, targets, prediction.inputs, prediction.losses))

    trainer.compute_metrics = compute and of_fitted
    try:
        yield
    finally:
        trainer.compute_metrics = compute


@contextlib.contextmanager
def unfolded_if_stopped(trainer: Trainer, task: Task[Any]) -> Iterator[None]:
    """Give the last layer its weights back if a signal stops what follows the training: a resumed
    run fits and folds again.
    """
    if task == task.without_thresholds():
        yield
        return
    assert trainer.model is not None
    layer = head.last_linear(trainer.model, task.width)
    weights = copy.deepcopy(layer.state_dict())
    try:
        yield
    except Stopped:
        layer.load_state_dict(weights)
        raise


def folded(
    trainer: Trainer, task: Task[Any], validated: PredictionOutput
) -> tuple[PredictionOutput, Affine | None]:
    """Fold what the task fits on the validation rows into the model.

    Args:
        trainer: Whose model takes it.
        task: Which fits it.
        validated: Outputs for the validation rows.

    Returns:
        The outputs for these rows as the model gives them now, and what was folded; None if nothing
        was.
    """
    outputs, targets = map(np.asarray, (validated.predictions, validated.label_ids))
    after = task.fit(outputs, targets)
    if after is None:
        return validated, None
    assert trainer.model is not None
    head.fold(head.last_linear(trainer.model, task.width), after.scale, after.shift)
    return trainer.predict(trainer.eval_dataset, metric_key_prefix="eval"), after
