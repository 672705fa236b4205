"""Metric modules as one ``compute_metrics``, each called with its own arguments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.comma_list import split_values
from finetune.errors import Report, UserError, suggestion
from finetune.recipe import metric_modules
from finetune.recipe.metric_modules import is_path
from finetune.runtime.importing import describe_error, path_below_cwd
from finetune.statistics.metrics import DIRECTIONS, MODULE, Compute, module_of
from finetune.tasks.base import OF_LABEL_SETS, Task
from finetune.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

    from finetune.recipe import Recipe

_AVERAGED = ("f1", "precision", "recall")
#: What ``--metrics`` accepts beside the folders of ``metrics/``.
_VARIANTS: dict[str, Mapping[str, Any]] = {
    f"{name}_{average}": {MODULE: name, "average": average}
    for name in _AVERAGED
    for average in ("macro", "micro", "weighted")
}
_VARIANTS |= OF_LABEL_SETS
_INPUTS = ("predictions", "prediction_scores", "references")


class Scoring:
    """Computes metrics of what a task decides, or of its probabilities where a metric takes these.

    ``evaluate.combine`` would hand every metric the same arguments, and refuse ``average`` where
    one of them lacks it. The modules are imported when they are first called.

    Args:
        **arguments: For each metric, the arguments of its ``compute``, like ``accuracy={},
            f1={"average": "macro"}``. The names are those of the folders in ``metrics/``; a metric
            of another name has its folder as ``module``, or the path of a custom module:
            ``cost={"module": "my_metrics/cost.py"}``.

    Attributes:
        arguments: Likewise, with the absolute path of each file.

    Raises:
        UserError: For each metric that does not exist.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        self.arguments: dict[str, Mapping[str, Any]] = dict(arguments)
        report = Report()
        names = sorted({*metric_modules.shipped(), *_VARIANTS})
        for name, options in arguments.items():
            module = str(options.get(MODULE, name))
            with report.collect():
                if is_path(module):
                    path = metric_modules.resolve(module)
                    self.arguments[name] = {**options, MODULE: str(path)}
                elif module not in metric_modules.shipped():
                    raise UserError(
                        f"no metric '{module}' in metrics/{suggestion(module, names)} (available: "
                        f"{', '.join(names)}; a custom module is named by its path: ./NAME.py)"
                    )
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
                name, options = word, _VARIANTS.get(word, {})
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
        task, scores = task or SingleLabel(), dict[str, float]()
        for name in self.arguments:
            metric = _Metric(name, self.arguments[name], task)
            scores |= metric.compute(prediction.predictions, prediction.label_ids)
        return scores

    def names(self, task: Task[Any]) -> list[str]:
        """Return the names of what is computed.

        Other metrics than those of the task are tried on a few made-up rows: a custom module names
        its numbers only there, and what cannot be computed is refused before the training.

        Raises:
            UserError: For each metric that cannot be computed for this task, or has the name of
                another.
        """
        if self.arguments == task.metrics:
            return [*self.arguments]
        report, owners = Report(), dict[str, str]()
        reserved = {*metric_modules.shipped(), *_VARIANTS, *DIRECTIONS, "loss"}
        for name, options in self.arguments.items():
            with report.collect():
                metric = _Metric(name, options, task, refresh=True)
                for score in metric.compute(*task.made_up(), is_trial=True):
                    is_taken = score in reserved or score.startswith(("eval_", "test_"))
                    owner = owners.setdefault(score, metric.title)
                    if (metric.is_custom and is_taken) or owner != metric.title:
                        raise UserError(
                            f"{metric.title} computes '{score}', which is a name of the toolkit "
                            "or of another metric: return it by another name"
                        )
        report.raise_errors()
        return [*owners]


class _Metric:
    """One metric of a scoring, for one task.

    Attributes:
        is_custom: Whether it is a module of the user's.
        title: Its name in messages.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], task: Task[Any], *, refresh: bool = False
    ) -> None:
        module, self._arguments = module_of(name, options)
        self._name, self._task, self.is_custom = name, task, is_path(module)
        self._path = Path(module) if self.is_custom else metric_modules.shipped()[module]
        self.title = path_below_cwd(self._path) if self.is_custom else f"'{name}'"
        is_refreshed = refresh and self.is_custom
        self._module = metric_modules.load(self._path, task.metric_config, refresh=is_refreshed)

    def compute(self, outputs: Any, targets: Any, *, is_trial: bool = False) -> dict[str, float]:
        """Return what it computes, by name; one number alone has the name of the metric.

        Args:
            outputs: Of a model, shape ``(rows, outputs)``.
            targets: Of as many rows, see :meth:`~finetune.tasks.base.Task.targets`.
            is_trial: Whether the rows are made up: then any error is a mistake of the user.

        Raises:
            UserError: If a module of the user's fails, or does not return numbers by name.
        """
        inputs = self._inputs(np.asarray(outputs), targets, is_trial)
        try:
            scores = self._module.compute(**inputs, **self._arguments)
        except (Exception, SystemExit) as error:
            if self.is_custom and not isinstance(error, UserError):
                raise UserError(describe_error(error, self._path, self.title)) from error
            if is_trial and isinstance(error, TypeError | ValueError):
                reason = str(error).partition("\n")[0]
                raise UserError(f"{self.title} cannot be computed: {reason}") from error
            raise
        if self.is_custom:
            scores = _numbers(scores, self.title)
        is_named = len(scores) == 1 and not (self.is_custom and self._name == self._path.stem)
        return {self._name: next(iter(scores.values()))} if is_named else dict(scores)

    def _inputs(self, outputs: np.ndarray, targets: Any, is_trial: bool) -> dict[str, np.ndarray]:
        """Return what the module takes: predictions, prediction scores (probabilities), references.

        Whole numbers are refused in a trial where the rows have others: ``evaluate`` would make 0
        of 0.9.
        """
        features: Any = self._module.features
        if isinstance(features, list):  # of several, the library takes the first that fit
            features = features[0]
        if unknown := [name for name in features if name not in _INPUTS]:
            raise UserError(
                f"{self.title} takes {' and '.join(map(repr, unknown))}: a metric gets "
                "'predictions' or 'prediction_scores', and 'references'"
            )
        decided = self._task.decided(outputs)
        inputs = {"predictions": decided, "references": np.asarray(targets).astype(decided.dtype)}
        if "prediction_scores" in features:
            if not self._task.has_probabilities:
                raise UserError(
                    f"{self.title} takes 'prediction_scores', and a task of {self._task.name} has "
                    "no probabilities"
                )
            inputs["prediction_scores"] = self._task.probabilities(outputs)
        for name in features if is_trial else ():
            if inputs[name].dtype.kind == "f" and "int" in str(features[name]):
                raise UserError(
                    f"{self.title} takes {name} as {features[name]}, and a task of "
                    f"{self._task.name} gives {inputs[name].dtype}"
                )
        return {name: inputs[name] for name in features}


def _numbers(scores: Any, title: str) -> dict[str, float]:
    """Return what a module computed as numbers by name, or refuse it."""
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f"{title} returns {scores!r:.60}: expected a dict of numbers by name")
    for name, value in scores.items():
        is_number = np.ndim(value) == 0 and isinstance(np.asarray(value).item(), Real)
        if not isinstance(name, str) or not name or not is_number:
            raise UserError(f"{title} returns {value!r:.60} as {name!r}: expected a number by name")
    return {name: float(value) for name, value in scores.items()}


def choose_best(recipe: Recipe, user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training defaults of a recipe, whose best model is chosen by one of its metrics.

    That is the first of the metrics if a user names them, or if they lack that of the recipe.

    Args:
        recipe: Before its data is loaded its metrics may still change.
        user_options: The training arguments of the user.

    Raises:
        UserError: If it is not clear whether more of the metric is better, or if
            ``greater_is_better`` contradicts it.
    """
    defaults, is_loaded = recipe.defaults(), "splits" in vars(recipe)
    if recipe.metrics != type(recipe).metrics:
        defaults.pop("metric_for_best_model", None)
    if not ((recipe.metrics or is_loaded) and recipe.known_scoring):
        return defaults
    names = recipe.metric_names if is_loaded else [*recipe.known_scoring]
    if str(defaults.get("metric_for_best_model")) not in (*names, "loss"):
        defaults["metric_for_best_model"] = names[0]
    merged = {**defaults, **user_options}
    metric = str(merged.get("metric_for_best_model")).removeprefix("eval_")
    is_greater, direction = merged.get("greater_is_better"), {**DIRECTIONS, "loss": -1}.get(metric)
    if not is_loaded or metric not in (*names, "loss"):
        return defaults
    if direction and is_greater is not None and is_greater != (direction > 0):
        raise UserError(
            f"--greater_is_better {str(is_greater).lower()}: of {metric}, "
            f"{'more' if direction > 0 else 'less'} is better; leave it out"
        )
    if direction is None and is_greater is None:
        raise UserError(
            f"--metric_for_best_model {metric}: it is not known whether more of it is better; add "
            "--greater_is_better true or false"
        )
    return defaults


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
    uncounted = {name: options for name, options in scoring.items() if name not in counted}
    return functools.partial(Scoring(**uncounted), task=task) if uncounted else compute


def load(name: str, config: str | None = None) -> EvaluationModule:
    """Return the metric in ``metrics/NAME``, without the copy in the cache of ``evaluate``."""
    return metric_modules.load(metric_modules.shipped()[name], config)
