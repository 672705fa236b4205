"""Combine metrics, by name or path, into one ``compute_metrics`` with arguments for each.

A module is imported from its own file: ``evaluate.load`` would run the copy in its cache, which
others may write to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.comma_list import split_values
from finetune.errors import Findings, UserError, suggestion
from finetune.recipe.catalog import import_file, is_path
from finetune.runtime.importing import HOUSE, describe_error, only_class, path_below_cwd
from finetune.statistics import metrics
from finetune.statistics.functions import AVERAGED
from finetune.statistics.metrics import DIRECTIONS, MODULE
from finetune.tasks.base import Task
from finetune.tasks.classes import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

#: Names for ``--metrics`` besides the folders in ``metrics/``.
_VARIANTS: dict[str, Mapping[str, Any]] = {
    # multi-label only
    "f1_samples": {MODULE: "f1", "average": "samples"},
    "subset_accuracy": {MODULE: "accuracy"},
}
for _name in AVERAGED:
    _VARIANTS[_name] = {"average": "macro"}
    for _average in ("macro", "micro", "weighted", "binary"):
        _VARIANTS[f"{_name}_{_average}"] = {MODULE: _name, "average": _average}


class Scoring:
    """Computes metrics from the decisions of a task, or from its probabilities.

    Args:
        **arguments: The arguments of ``compute`` by metric, e.g. ``accuracy={},
            f1={"average": "macro"}``. The name is a folder in ``metrics/``; for another name,
            ``module`` is the folder or the path of a custom module:
            ``cost={"module": "my_metrics/cost.py"}``.

    Attributes:
        arguments: The arguments with absolute paths of custom modules.

    Raises:
        UserError: For each metric that does not exist.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        self.arguments: dict[str, Mapping[str, Any]] = dict(arguments)
        mistakes: list[str] = []
        folders = shipped()
        for name, options in arguments.items():
            module = str(options.get(MODULE, name))
            if is_path(module):
                path = Path(module).expanduser().absolute()
                if path.suffix != ".py":
                    path /= f"{path.name}.py"
                path = path.resolve()
                self.arguments[name] = {**options, MODULE: str(path)}
                if not path.is_file():
                    mistakes.append(f"--metrics {module}: no such file: {path_below_cwd(path)}")
            elif module not in folders:
                names = sorted({*folders, *_VARIANTS})
                mistakes.append(
                    f"--metrics {module}: no such metric{suggestion(module, names)} (available: "
                    f"{', '.join(names)}, or the path of a custom module, ./NAME.py)"
                )
        if mistakes:
            raise UserError(*mistakes)

    @classmethod
    def from_names(cls, names: str) -> Scoring:
        """Return the scoring for a value of ``--metrics``: ``accuracy,f1_micro,./cost.py``."""
        arguments = dict[str, Mapping[str, Any]]()
        for word in split_values(names):
            name = Path(word).stem if is_path(word) else word
            options = {MODULE: word} if is_path(word) else _VARIANTS.get(word, {})
            if arguments.setdefault(name, options) != options:
                raise UserError(f"--metrics: two metrics have the name '{name}': rename {word}")
        if names and not arguments:
            raise UserError(f"--metrics {names}: expected names, separated by commas")
        return cls(**arguments)

    def __call__(
        self, prediction: EvalPrediction, task: Task[Any] | None = None
    ) -> dict[str, float]:
        """Return the metrics of one evaluation.

        Args:
            prediction: The outputs of the model, shape ``(rows, outputs)``, as ``predictions``,
                and the targets, see :meth:`~finetune.tasks.base.Task.targets`, as ``label_ids``.
            task: The task; None is single-label classification.

        Raises:
            UserError: If a custom module fails, or does not return numbers.
        """
        task = task or SingleLabel()
        scores: dict[str, float] = {}
        modules: Iterable[str] = self.arguments
        table = metrics.extra_metrics(task.label_kind, len(task.labels))
        if task.labels_words:  # a module does not know where a text ends
            modules, table = (), metrics.find_metrics(task.label_kind, self.arguments)
        for name in modules:
            scores |= self._compute(name, task, prediction)
        if table:
            rows = task.scored(np.asarray(prediction.label_ids), np.asarray(prediction.predictions))
            for name, metric in table.items():
                scores[name] = float(metric.function(rows)[0])
        return scores

    def names(self, task: Task[Any]) -> list[str]:
        """Return the names of the computed scores.

        Metrics other than the defaults of the task are computed on a few example rows: this shows
        the names of the scores of a custom module, and finds errors before the training.

        Raises:
            UserError: For each metric that cannot be computed for this task, or whose scores have
                the name of another metric.
        """
        from transformers import EvalPrediction

        task.refuse_metrics(self.arguments)
        extra_names = list(metrics.extra_metrics(task.label_kind, len(task.labels)))
        if self.arguments == task.metrics or task.labels_words:
            return list(self.arguments) + extra_names
        load.cache_clear()  # in a notebook, a file may have been edited
        report = Findings()
        owners: dict[str, str] = {}
        reserved = {*shipped(), *_VARIANTS, *DIRECTIONS, "loss"}
        example = EvalPrediction(*task.example_outputs())
        for name in self.arguments:
            with report.collect():
                for score in self._compute(name, task, example):
                    is_reserved = score in reserved and name in files_of(self.arguments)
                    if owners.setdefault(score, name) != name or is_reserved:
                        report.error(
                            f"the metric '{name}' returns '{score}', which is a metric already: "
                            "choose another name"
                        )
        report.raise_errors()
        return list(owners) + extra_names

    def _compute(self, name: str, task: Task[Any], prediction: EvalPrediction) -> dict[str, float]:
        """Return the scores of a metric by name; a single score is named after the metric."""
        module, options = metrics.module_of(name, self.arguments[name])
        path = shipped().get(module) or Path(module)
        title = path_below_cwd(path) if is_path(module) else f"'{module}'"
        metric = load(module, task.metric_config)
        if task.positive_name and _is_binary(module, options):
            options = {"pos_label": task.labels.index(task.positive_name), **options}
        inputs = _inputs(metric, title, task, prediction)
        scores = call(lambda: metric.compute(**inputs, **options), path, title)
        if not scores:
            raise UserError(f"{title} returned no numbers: expected a dict of numbers by name")
        if len(scores) == 1 and not (is_path(module) and name == path.stem):
            return {name: next(iter(scores.values()))}
        return scores


def call(compute: Callable[[], Any], path: Path, title: str) -> dict[str, float]:
    """Return the scores that a function in a file computes.

    Args:
        compute: Calls it.
        path: The file.
        title: What messages call the function.

    Raises:
        UserError: If it fails, or does not return numbers by name.
    """
    try:
        scores = compute()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(describe_error(error, path, title)) from error
    if not isinstance(scores, Mapping) or not all(isinstance(s, Real) for s in scores.values()):
        raise UserError(f"{title} returned {scores!r:.200}: expected a dict of numbers by name")
    return {str(name): float(score) for name, score in scores.items()}


def _is_binary(module: str, options: Mapping[str, Any]) -> bool:
    """Return whether a metric is that of the positive class, if there are two classes."""
    if module in AVERAGED:
        return bool(options.get("average", "binary") == "binary")
    return module == "average_precision"


def _inputs(
    metric: EvaluationModule, title: str, task: Task[Any], prediction: EvalPrediction
) -> dict[str, Any]:
    """Return the arguments of ``compute`` that a metric declares as its features.

    Raises:
        UserError: If the task lacks one, or has it as another type.
    """
    features: Any = metric.features
    if isinstance(features, list):  # of several, `evaluate` uses the first that fits
        features = features[0]
    outputs = np.asarray(prediction.predictions)
    decided = task.decide(outputs)
    references = np.asarray(prediction.label_ids).astype(decided.dtype)
    inputs = {"predictions": decided, "references": references}
    if task.has_probabilities and "prediction_scores" in features:
        inputs["prediction_scores"] = task.scored(references, outputs).probabilities.rows()
    for column, feature in features.items():
        # `evaluate` would convert 0.9 to 0
        is_cut = column in inputs and inputs[column].dtype.kind == "f" and "int" in str(feature)
        if column not in inputs or is_cut:
            types = ", ".join(f"'{key}' as {array.dtype}" for key, array in inputs.items())
            raise UserError(f"{title} needs '{column}' as {feature}; {task.name} has {types}")
    return {name: inputs[name] for name in features}


def require_direction(metric: str, is_greater: bool | None) -> None:
    """Raise a ``UserError`` if ``--greater_is_better`` is missing or wrong for a metric."""
    direction = {**DIRECTIONS, "loss": -1}.get(metric)
    if is_greater in ((True, False) if direction is None else (None, direction > 0)):
        return
    values = "true or false" if direction is None else str(direction > 0).lower()
    raise UserError(
        f"--metric_for_best_model {metric} with --greater_is_better {str(is_greater).lower()}: "
        f"expected --greater_is_better {values}: is a greater {metric} better?"
    )


def shipped() -> dict[str, Path]:
    """Return the paths of the metric modules in ``metrics/`` by name."""
    paths = sorted((HOUSE / "metrics").glob("*/*.py"))
    return {path.stem: path for path in paths if path.stem == path.parent.name}


@functools.cache
def load(name: str, config: str | None = None) -> EvaluationModule:
    """Load a metric from a folder in ``metrics/`` or from a file, never from its copy in the cache
    of ``evaluate``.
    """
    from evaluate import EvaluationModule

    path = shipped().get(name) or Path(name)
    cls: Any = only_class(import_file(path, "metric"), EvaluationModule, path_below_cwd(path))
    metric: EvaluationModule = cls(config_name=config, keep_in_memory=True)
    metric.download_and_prepare()
    return metric


def files_of(scoring: metrics.MetricArguments) -> dict[str, Path]:
    """Return the paths of custom metric modules by metric."""
    files = {}
    for name, options in scoring.items():
        module = options.get(MODULE)
        if is_path(module):
            files[name] = Path(str(module))
    return files
