"""The local metric modules as one ``compute_metrics``, each called with its own arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.errors import UserError, suggestion
from finetune.runtime import namesakes

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction


class Scoring:
    """Computes metrics of the most probable class.

    ``evaluate.combine`` would hand every metric the same arguments, and refuse ``average`` where
    one of them lacks it. The modules are loaded by path, so that neither the Hub nor a folder of
    the same name in the current directory is asked, and compute in memory, so that two runs do not
    share a lock. They are imported when they are first called: it takes half a second.

    Args:
        **arguments: For each metric, the arguments of its ``compute``, like ``accuracy={},
            f1={"average": "macro"}``. The names are those of the folders in ``metrics/``.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        known = [path.stem for path in namesakes.files("metrics")]
        if mistakes := [
            f"no metric '{name}' in metrics/{suggestion(name, known)} "
            f"(available: {', '.join(known)})"
            for name in arguments
            if name not in known
        ]:
            raise UserError(*mistakes)
        self.arguments = arguments

    @functools.cached_property
    def modules(self) -> dict[str, EvaluationModule]:
        """The metrics, loaded."""
        return {name: load(name) for name in self.arguments}

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of one evaluation.

        Args:
            prediction: ``predictions`` of shape ``(rows, classes)`` and ``label_ids`` of shape
                ``(rows,)``.
        """
        predicted = np.argmax(prediction.predictions, axis=-1)
        scores: dict[str, float] = {}
        for name, module in self.modules.items():
            scores |= module.compute(
                predictions=predicted, references=prediction.label_ids, **self.arguments[name]
            )
        return scores


def load(name: str) -> EvaluationModule:
    """Return the metric in ``metrics/NAME`` of the toolkit.

    ``evaluate.load`` would run the copy that it keeps in a cache, which others may write to.
    """
    from evaluate import EvaluationModule

    path = namesakes.HOUSE / "metrics" / name / f"{name}.py"
    own = f"finetune_metric_{name}"
    module = sys.modules.get(own) or namesakes.load_file(own, path)
    (metric,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, EvaluationModule)
        and value.__module__ == own
    )
    return metric(keep_in_memory=True)
