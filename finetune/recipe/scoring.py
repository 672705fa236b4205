"""The local metric modules as one ``compute_metrics``, each called with its own arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.errors import UserError, suggestion
from finetune.runtime import namesakes
from finetune.statistics.resampling import MODULE, module_of
from finetune.tasks.base import Task
from finetune.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

#: The input of a metric that takes probabilities instead of decisions, as ``evaluate`` calls it.
_SCORES = "prediction_scores"

#: Metrics of classes, each averaged in several ways.
_AVERAGED, _AVERAGES = ("f1", "precision", "recall"), ("macro", "micro", "weighted")


class Scoring:
    """Computes metrics of what a task decides, or of its probabilities where a metric takes these.

    ``evaluate.combine`` would hand every metric the same arguments, and refuse ``average`` where
    one of them lacks it. The modules are loaded by path, so that neither the Hub nor a folder of
    the same name in the current directory is asked, and compute in memory, so that two runs do not
    share a lock. They are imported when they are first called: it takes half a second.

    Args:
        **arguments: For each metric, the arguments of its ``compute``, like ``accuracy={},
            f1={"average": "macro"}``. The names are those of the folders in ``metrics/``; a metric
            of another name has its folder as ``module``.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        known = [path.stem for path in namesakes.files("metrics")]
        mistakes = []
        for name, each in arguments.items():
            module = str(each.get(MODULE, name))
            if module not in known:
                available = ", ".join(sorted({*known, *named()}))
                hint = suggestion(module, {*known, *named()})
                mistakes.append(f"no metric '{module}' in metrics/{hint} (available: {available})")
        if mistakes:
            raise UserError(*mistakes)
        self.arguments = arguments

    @classmethod
    def of_names(cls, names: str) -> Scoring:
        """Return the metrics of ``--metrics``: ``accuracy,f1_micro``.

        Raises:
            UserError: if there is no such metric.
        """
        if not names.strip(", "):
            raise UserError(f"--metrics '{names}': expected names of metrics, accuracy,f1")
        try:
            return cls(**dict(map(_entry, filter(None, map(str.strip, names.split(","))))))
        except UserError as error:
            raise UserError(*(f"--metrics: {each}" for each in error.mistakes)) from error

    def __call__(
        self, prediction: EvalPrediction, task: Task[Any] | None = None
    ) -> dict[str, float]:
        """Return the metrics of one evaluation.

        Args:
            prediction: ``predictions``, the outputs of a model, of shape ``(rows, outputs)``, and
                ``label_ids``, see :meth:`~finetune.tasks.base.Task.targets`.
            task: Of the labels; one class a row if None.
        """
        task = task or SingleLabel()
        outputs, scores = np.asarray(prediction.predictions), dict[str, float]()
        decided, true = task.decided(outputs), np.asarray(prediction.label_ids)
        for name, each in self.arguments.items():
            folder, arguments = module_of(name, each)
            module = load(folder, task.metric_config)
            if _SCORES in _inputs(module):
                inputs = {_SCORES: task.probabilities(outputs)}
            else:
                inputs, true = {"predictions": decided}, true.astype(decided.dtype)
            found = module.compute(references=true, **inputs, **arguments)
            scores |= {name: next(iter(found.values()))} if len(found) == 1 else found
        return scores


def named() -> dict[str, Mapping[str, Any]]:
    """Return what ``--metrics`` knows beside the folders: ``f1_micro`` and the like."""
    return {
        f"{name}_{average}": {MODULE: name, "average": average}
        for name in _AVERAGED
        for average in _AVERAGES
    }


def _entry(word: str) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a metric in ``--metrics``; the mean is over classes."""
    if word in _AVERAGED:
        return word, {"average": "macro"}
    return word, named().get(word, {})


def _inputs(module: EvaluationModule) -> set[str]:
    """Return the names of what a metric takes."""
    features = module.features
    return {
        name for each in (features if isinstance(features, list) else [features]) for name in each
    }


@functools.cache
def load(name: str, config: str | None = None) -> EvaluationModule:
    """Return the metric in ``metrics/NAME`` of the toolkit.

    ``evaluate.load`` would run the copy that it keeps in a cache, which others may write to.

    Args:
        name: Of the folder.
        config: The configuration, which says what shape the inputs have: ``multilabel``.
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
    return metric(config_name=config, keep_in_memory=True)
