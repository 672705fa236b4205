"""Metric modules as one ``compute_metrics``, each called with its own arguments."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.comma_list import split_values
from finetune.errors import Report, UserError, suggestion
from finetune.recipe import metric_modules
from finetune.recipe.metric_modules import is_path
from finetune.runtime.importing import describe_error, path_below_cwd
from finetune.statistics.directions import DIRECTIONS
from finetune.statistics.resampling import MODULE, Compute, module_of
from finetune.tasks.base import OF_LABEL_SETS, Task
from finetune.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

#: Metrics of classes, which are averaged over the classes in several ways.
_AVERAGED, _AVERAGES = ("f1", "precision", "recall"), ("macro", "micro", "weighted")
_INPUTS = ("predictions", "prediction_scores", "references")


class Scoring:
    """Computes metrics of what a task decides, or of its probabilities where a metric takes these.

    ``evaluate.combine`` would hand every metric the same arguments, and refuse ``average`` where
    one of them lacks it. The modules are imported when they are first called.

    Args:
        **arguments: For each metric, the arguments of its ``compute``, like ``accuracy={},
            f1={"average": "macro"}``. The names are those of the folders in ``metrics/``; a metric
            of another name has its folder as ``module``, or the path of a module of one's own:
            ``cost={"module": "my_metrics/cost.py"}``.

    Attributes:
        arguments: Likewise, with the absolute path of each file.

    Raises:
        UserError: For each metric that does not exist.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        self.arguments: dict[str, Mapping[str, Any]] = dict(arguments)
        self._flag, report = "", Report()
        for name, options in arguments.items():
            module = options.get(MODULE, name)
            with report.collect():
                if is_path(module):
                    path = metric_modules.resolve(str(module))
                    self.arguments[name] = {**options, MODULE: str(path)}
                elif module not in metric_modules.shipped():
                    raise UserError(_unknown_metric(str(module)))
        report.raise_errors()

    @classmethod
    def of_names(cls, names: str) -> Scoring:
        """Return the metrics of ``--metrics``: ``accuracy,f1_micro,./cost.py``.

        Raises:
            UserError: If a metric does not exist, or two have the same name.
        """
        report, arguments = Report(), dict[str, Mapping[str, Any]]()
        if not names.strip(", "):
            report.error(f"'{names}': expected names of metrics, accuracy,f1")
        for word in split_values(names):
            with report.collect():
                name, options = word, _variants().get(word, {})
                if word in _AVERAGED:
                    options = {"average": "macro"}
                elif is_path(word):
                    path = metric_modules.resolve(word)
                    name, options = path.stem, {MODULE: str(path)}
                if arguments.setdefault(name, options) != options:
                    raise UserError(f"two metrics have the name '{name}': rename {word}")
        with report.collect():
            scoring = cls(**arguments)
        report.raise_errors(prefix="--metrics: ")
        scoring._flag = "--metrics: "
        return scoring

    def __call__(
        self, prediction: EvalPrediction, task: Task[Any] | None = None
    ) -> dict[str, float]:
        """Return the metrics of one evaluation.

        Args:
            prediction: ``predictions``, the outputs of a model, of shape ``(rows, outputs)``, and
                ``label_ids``, see :meth:`~finetune.tasks.base.Task.targets`.
            task: Of the labels; one class a row if None.

        Raises:
            UserError: If a module of the user's cannot compute, or does not return numbers.
        """
        rows = _Rows(task or SingleLabel(), prediction.predictions, prediction.label_ids)
        scores: dict[str, float] = {}
        for name, options in self.arguments.items():
            scores |= _compute(name, options, rows)
        return scores

    def names(self, task: Task[Any]) -> list[str]:
        """Return the names of what is computed.

        A module of the user's tells them by computing a few made-up rows of the task, which also
        shows early what cannot be computed. The usual metrics of the task are not tried.

        Raises:
            UserError: For each metric that cannot be computed for this task, or has the name of
                another.
        """
        if self.arguments == task.metrics:
            return [*self.arguments]
        rows, report, owners = _Rows(task, *task.made_up()), Report(), dict[str, str]()
        for name, options in self.arguments.items():
            with report.collect():
                shown = _shown(name, options)
                for score in _try(name, options, rows):
                    if (owner := owners.setdefault(score, shown)) != shown:
                        raise UserError(f"{owner} and {shown} both compute '{score}': rename one")
        report.raise_errors(prefix=self._flag)
        return [*owners]


class _Rows:
    """Rows with the outputs of a model, shape ``(rows, outputs)``, as metric modules take them."""

    def __init__(self, task: Task[Any], outputs: Any, targets: Any) -> None:
        self.task, self.outputs = task, np.asarray(outputs)
        self.decided = task.decided(self.outputs)
        self.true = np.asarray(targets).astype(self.decided.dtype)

    def inputs(self, module: EvaluationModule, shown: str) -> dict[str, np.ndarray]:
        """Return what a module takes: predictions, prediction scores (probabilities), references.

        Raises:
            UserError: If it takes something else, or probabilities where there are none.
        """
        names = [*_alternatives(module)[0]]
        if unknown := [name for name in names if name not in _INPUTS]:
            raise UserError(
                f"{shown} takes {' and '.join(map(repr, unknown))}: a metric gets 'predictions' "
                "or 'prediction_scores', and 'references'"
            )
        inputs = {"predictions": self.decided, "references": self.true}
        if "prediction_scores" in names:
            if not self.task.has_probabilities:
                raise UserError(
                    f"{shown} takes 'prediction_scores', and a task of {self.task.name} has no "
                    "probabilities"
                )
            inputs["prediction_scores"] = self.task.probabilities(self.outputs)
        return {name: inputs[name] for name in names}


def _compute(name: str, options: Mapping[str, Any], rows: _Rows) -> dict[str, float]:
    """Return what a metric computes, by name; one number alone has the name of the metric."""
    path, shown = _path(name, options), _shown(name, options)
    module = metric_modules.load(path, rows.task.metric_config)
    inputs, (_, arguments) = rows.inputs(module, shown), module_of(name, options)
    try:
        scores = module.compute(**inputs, **arguments)
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) or not is_path(options.get(MODULE)):
            raise
        raise UserError(describe_error(error, path, shown)) from error
    if is_path(options.get(MODULE)):
        scores = _numbers(scores, shown)
        if name == path.stem:
            return scores
    return {name: next(iter(scores.values()))} if len(scores) == 1 else dict(scores)


def _try(name: str, options: Mapping[str, Any], rows: _Rows) -> dict[str, float]:
    """Return what a metric computes of made-up rows, or refuse a metric that cannot be used."""
    shown, is_own = _shown(name, options), is_path(options.get(MODULE))
    module = metric_modules.load(_path(name, options), rows.task.metric_config, refresh=is_own)
    _refuse_features(module, rows, shown)
    try:
        scores = _compute(name, options, rows)
    except (TypeError, ValueError) as error:  # of a module of the toolkit
        reason = str(error).partition("\n")[0]
        raise UserError(f"{shown} cannot be computed: {reason}") from error
    reserved = {*metric_modules.shipped(), *_variants(), *DIRECTIONS, "loss"}
    for score in scores if is_own else ():
        if score in reserved or score.startswith(("eval_", "test_")):
            raise UserError(
                f"{shown} computes '{score}', which is a name of the toolkit or of the library's "
                "evaluation: return it by another name"
            )
    return scores


def _refuse_features(module: EvaluationModule, rows: _Rows, shown: str) -> None:
    """Refuse whole numbers as the features of a module where the rows have others: ``evaluate``
    would make 0 of 0.9.
    """
    features = _alternatives(module)[0]
    for name, values in rows.inputs(module, shown).items():
        if values.dtype.kind == "f" and "int" in str(features[name]):
            raise UserError(
                f"{shown} takes {name} as {features[name]}, and a task of {rows.task.name} gives "
                f"{values.dtype}"
            )


def _numbers(scores: Any, shown: str) -> dict[str, float]:
    """Return what a module computed as numbers by name, or refuse it."""
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f"{shown} returns {scores!r:.60}: expected a dict of numbers by name")
    for name, value in scores.items():
        is_number = np.ndim(value) == 0 and isinstance(np.asarray(value).item(), Real)
        if not isinstance(name, str) or not name or not is_number:
            raise UserError(f"{shown} returns {value!r:.60} as {name!r}: expected a number by name")
    return {name: float(value) for name, value in scores.items()}


def _alternatives(module: EvaluationModule) -> list[Any]:
    """Return the features of a module; of several, the library takes the first that fit."""
    return module.features if isinstance(module.features, list) else [module.features]


def _path(name: str, options: Mapping[str, Any]) -> Path:
    module = str(options.get(MODULE, name))
    return Path(module) if is_path(module) else metric_modules.shipped()[module]


def _shown(name: str, options: Mapping[str, Any]) -> str:
    return path_below_cwd(_path(name, options)) if is_path(options.get(MODULE)) else f"'{name}'"


def _variants() -> dict[str, Mapping[str, Any]]:
    """Return what ``--metrics`` accepts beside the folders: ``f1_micro`` and the like."""
    averaged = {
        f"{name}_{average}": {MODULE: name, "average": average}
        for name in _AVERAGED
        for average in _AVERAGES
    }
    return {**averaged, **OF_LABEL_SETS}


def _unknown_metric(module: str) -> str:
    names = sorted({*metric_modules.shipped(), *_variants()})
    hint = suggestion(module, names)
    return (
        f"no metric '{module}' in metrics/{hint} (available: {', '.join(names)}; a module of your "
        "own is named by its path: ./NAME.py)"
    )


def with_best(
    defaults: Mapping[str, Any], names: Collection[str], given: Mapping[str, Any], *, is_final: bool
) -> dict[str, Any]:
    """Return training arguments that choose the best model by one of the metrics.

    Args:
        defaults: The training arguments of a recipe.
        names: The metrics.
        given: What the user set.
        is_final: Whether the names are final; before the data is loaded they may change.

    Raises:
        UserError: If it is not clear whether more of the metric is better, or if
            ``greater_is_better`` contradicts it.
    """
    arguments = dict(defaults)
    if str(arguments.get("metric_for_best_model")) not in (*names, "loss"):
        arguments["metric_for_best_model"] = next(iter(names))
    merged = {**arguments, **given}
    metric = str(merged.get("metric_for_best_model")).removeprefix("eval_")
    is_greater, direction = merged.get("greater_is_better"), {**DIRECTIONS, "loss": -1}.get(metric)
    if not is_final or metric not in (*names, "loss"):
        return arguments
    if direction and is_greater is not None and is_greater != (direction > 0):
        raise UserError(
            f"--greater_is_better {str(is_greater).lower()}: of {metric}, "
            f"{'more' if direction > 0 else 'less'} is better, and the worst checkpoint would be "
            "saved; leave it out"
        )
    if direction is None and is_greater is None:
        instead = next((name for name in names if name in DIRECTIONS), "loss")
        raise UserError(
            f"--metric_for_best_model {metric}: it is not known whether more of it is better; add "
            f"--greater_is_better true or false, or use --metric_for_best_model {instead}"
        )
    return arguments


def without_counted(
    compute: Compute, scoring: Mapping[str, Mapping[str, Any]], task: Task[Any]
) -> Compute:
    """Return a function of the metrics whose intervals the task does not compute itself.

    Args:
        compute: The metrics of a recipe.
        scoring: The metrics that it is made of; empty for a recipe's own ``compute_metrics``.
        task: Of the labels.
    """
    counted = task.counted(scoring)
    others = {name: options for name, options in scoring.items() if name not in counted}
    return functools.partial(Scoring(**others), task=task) if others else compute


def load(name: str, config: str | None = None) -> EvaluationModule:
    """Return the metric in ``metrics/NAME``, without the copy in the cache of ``evaluate``."""
    return metric_modules.load(metric_modules.shipped()[name], config)
