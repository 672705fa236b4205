"""Metrics by name and by path, as one ``compute_metrics``: each called with its own arguments.

A module is imported from its file: ``evaluate.load`` would run the copy in its cache, which others
may write to.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.comma_list import join_values, split_values
from finetune.errors import Report, UserError, suggestion
from finetune.recipe import code_files
from finetune.recipe.code_files import is_path
from finetune.runtime.importing import (
    HOUSE,
    describe_error,
    only_class,
    path_below_cwd,
    read_source,
)
from finetune.statistics.functions import AVERAGED
from finetune.statistics.metrics import (
    DIRECTIONS,
    MODULE,
    Compute,
    find_metrics,
    module_of,
)
from finetune.statistics.metrics import Scoring as Arguments
from finetune.tasks.base import OF_LABEL_SETS, Task
from finetune.tasks.classes import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

    from finetune.recipe import Recipe

#: What ``--metrics`` accepts beside the folders of ``metrics/``.
_VARIANTS: dict[str, Mapping[str, Any]] = {
    **{name: {"average": "macro"} for name in AVERAGED},
    **{
        f"{name}_{average}": {MODULE: name, "average": average}
        for name in AVERAGED
        for average in ("macro", "micro", "weighted")
    },
    **OF_LABEL_SETS,
}


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
        report, folders = Report(), shipped()
        names = sorted({*folders, *_VARIANTS})
        for name, options in arguments.items():
            module = str(options.get(MODULE, name))
            if is_path(module):
                path = code_files.absolute(module)
                self.arguments[name] = {**options, MODULE: str(path)}
                if not path.is_file():
                    report.error(f"{module}: expected a .py file, found no {path_below_cwd(path)}")
            elif module not in folders:
                report.error(
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
        for word in split_values(names):
            name, options = word, _VARIANTS.get(word, {})
            if is_path(word):
                name, options = Path(word).stem, {MODULE: word}
            if arguments.setdefault(name, options) != options:
                report.error(f"two metrics have the name '{name}': rename {word}")
        if not arguments:
            report.error(f"'{names}': expected names of metrics, accuracy,f1")
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
        outputs, targets = np.asarray(prediction.predictions), prediction.label_ids
        scores = dict[str, float]()
        for name in self.arguments:
            scores |= self._compute(name, task or SingleLabel(), outputs, targets)
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
        _load.cache_clear()  # a file may have been edited since, in a notebook
        report, owners = Report(), dict[str, str]()
        reserved, custom = {*shipped(), *_VARIANTS, *DIRECTIONS, "loss"}, files_of(self.arguments)
        for name in self.arguments:
            with report.collect():
                for score in self._compute(name, task, *task.example_outputs(), is_trial=True):
                    is_taken = score in reserved or score.startswith(("eval_", "test_"))
                    is_taken = is_taken and name in custom
                    if is_taken or owners.setdefault(score, name) != name:
                        raise UserError(
                            f"the metric '{name}' computes '{score}', a name of the toolkit "
                            "or of another metric: return it by another name"
                        )
        report.raise_errors()
        return [*owners]

    def _compute(
        self, name: str, task: Task[Any], outputs: np.ndarray, targets: Any, is_trial: bool = False
    ) -> dict[str, float]:
        """Return what a metric computes, by name; one number alone has the name of the metric.

        In a trial the rows are made up: then any error is a mistake of the user.
        """
        folder, options = module_of(name, self.arguments[name])
        is_custom = is_path(folder)
        path = Path(folder) if is_custom else shipped()[folder]
        title = path_below_cwd(path) if is_custom else f"'{name}'"
        module = _load(path, task.metric_config)
        inputs = _inputs(module, title, task, outputs, targets, is_trial)
        try:
            scores: Any = module.compute(**inputs, **options)
        except (Exception, SystemExit) as error:
            if is_custom:
                raise UserError(describe_error(error, path, title)) from error
            if is_trial and isinstance(error, TypeError | ValueError):
                reason = str(error).partition("\n")[0]
                raise UserError(f"{title} cannot be computed: {reason}") from error
            raise
        if is_custom and not (isinstance(scores, Mapping) and scores):
            raise UserError(f"{title} returns {scores!r:.60}: expected a dict of numbers by name")
        for key, value in scores.items() if is_custom else ():
            is_number = np.ndim(value) == 0 and isinstance(np.asarray(value).item(), Real)
            if not (isinstance(key, str) and is_number):
                raise UserError(
                    f"{title} returns {value!r:.60} as {key!r}: expected a number by name"
                )
        if len(scores) == 1 and not (is_custom and name == path.stem):
            return {name: float(next(iter(scores.values())))}
        return {key: float(value) for key, value in scores.items()}


def _inputs(
    module: EvaluationModule,
    title: str,
    task: Task[Any],
    outputs: np.ndarray,
    targets: Any,
    is_trial: bool,
) -> dict[str, np.ndarray]:
    """Return what a module takes: predictions, prediction scores (probabilities), references."""
    features: Any = module.features
    if isinstance(features, list):  # of several, the library takes the first that fit
        features = features[0]
    decided = task.decide(outputs)
    inputs = {"predictions": decided, "references": np.asarray(targets).astype(decided.dtype)}
    if task.has_probabilities and "prediction_scores" in features:
        inputs["prediction_scores"] = task.probabilities(outputs)
    for name in features:
        if name not in inputs:
            names = " or ".join(map(repr, inputs))
            raise UserError(f"{title} takes {name!r}: a task of {task.name} gives {names}")
        # or `evaluate` would make 0 of 0.9
        if is_trial and inputs[name].dtype.kind == "f" and "int" in str(features[name]):
            raise UserError(
                f"{title} takes {name} as {features[name]}, and a task of {task.name} gives "
                f"{inputs[name].dtype}"
            )
    return {name: inputs[name] for name in features}


def choose_best(recipe: Recipe, user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training defaults of a recipe, whose best model is chosen by one of its metrics.

    That is the first of the metrics if a user names them, or if they lack that of the recipe.
    Before the data is loaded, which may decide the task, the metrics of the task are not known.

    Args:
        recipe: The recipe.
        user_options: The training arguments of the user.

    Raises:
        UserError: If the metric is not computed, if it is not clear whether more of it is better,
            or if ``greater_is_better`` contradicts that.
    """
    defaults, scoring, names = recipe.defaults(), recipe.known_scoring, [*recipe.own_metrics]
    if recipe.metrics != type(recipe).metrics:
        defaults.pop("metric_for_best_model", None)
    if scoring and "splits" in vars(recipe):
        names = recipe.metric_names
    elif recipe.metrics and not files_of(scoring):
        names = [*scoring]
    if not names:
        return defaults
    if defaults.get("metric_for_best_model") not in (*names, "loss"):
        defaults["metric_for_best_model"] = names[0]
    merged = {**defaults, **user_options}
    metric = str(merged["metric_for_best_model"] or "loss").removeprefix("eval_")
    if metric not in ("loss", *names):
        raise UserError(
            f"--metric_for_best_model {metric}: expected one of loss, {', '.join(names)}"
        )
    is_greater, direction = merged.get("greater_is_better"), {**DIRECTIONS, "loss": -1}.get(metric)
    if scoring and direction is not None and is_greater not in (None, direction > 0):
        raise UserError(
            f"--greater_is_better {str(is_greater).lower()}: of {metric}, "
            f"{'more' if direction > 0 else 'less'} is better; leave it out"
        )
    if scoring and direction is None and is_greater is None:
        raise UserError(
            f"--metric_for_best_model {metric}: it is not known whether more of it is better; add "
            "--greater_is_better true or false"
        )
    return defaults


def without_counted(
    compute: Compute, scoring: Mapping[str, Mapping[str, Any]], task: Task[Any]
) -> Compute:
    """Return a function of the metrics of ``compute`` whose intervals the task does not compute
    itself; ``scoring`` is empty for a recipe's own ``compute_metrics``.
    """
    counted = find_metrics(task.label_kind, scoring)
    uncounted = {name: options for name, options in scoring.items() if name not in counted}
    return functools.partial(Scoring(**uncounted), task=task) if uncounted else compute


def shipped() -> dict[str, Path]:
    """Return the modules in ``metrics/`` by name."""
    paths = sorted((HOUSE / "metrics").glob("*/*.py"))
    return {path.stem: path for path in paths if path.stem == path.parent.name}


def load(name: str, config: str | None = None) -> EvaluationModule:
    """Return the metric in ``metrics/NAME``, without the copy in the cache of ``evaluate``."""
    return _load(shipped()[name], config)


@functools.cache
def _load(path: Path, config: str | None) -> EvaluationModule:
    from evaluate import EvaluationModule

    module = code_files.import_file(path, "metric")
    cls: Any = only_class(module, EvaluationModule, path_below_cwd(path))
    metric: EvaluationModule = cls(config_name=config, keep_in_memory=True)
    metric.download_and_prepare()
    return metric


# ---- files of metrics ----------------------------------------------------------------------------


def files_of(scoring: Arguments) -> dict[str, Path]:
    """Return the files of the user's own modules, by name of the metric."""
    modules = {name: options.get(MODULE) for name, options in scoring.items()}
    return {name: Path(str(module)) for name, module in modules.items() if is_path(module)}


def files_in_option(names: str | None) -> list[Path]:
    """Return the files that a value of ``--metrics`` names, whether they exist or not."""
    return [code_files.absolute(word) for word in split_values(names or "") if is_path(word)]


def hashes(scoring: Arguments) -> dict[str, str]:
    """Return the sha256 of the files of the user's own modules, by name of the metric."""
    files = files_of(scoring)
    return {name: read_source(path, "metric")[1] for name, path in files.items()}


def with_absolute_paths(names: str) -> str:
    """Return a value of ``--metrics`` that means the same in any directory."""
    words = split_values(names)
    return join_values(str(code_files.absolute(word)) if is_path(word) else word for word in words)
