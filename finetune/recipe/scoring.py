"""Metric modules as one ``compute_metrics``, each called with its own arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.comma_list import split_values
from finetune.errors import Mistakes, UserError, suggestion
from finetune.recipe import metric_files, metric_inputs
from finetune.recipe.metric_files import is_path, shown
from finetune.runtime import namesakes
from finetune.statistics.directions import DIRECTIONS
from finetune.statistics.resampling import MODULE, Compute, module_of
from finetune.tasks.base import OF_LABEL_SETS, Task
from finetune.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from evaluate import EvaluationModule
    from transformers import EvalPrediction

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
            of another name has its folder as ``module``, or the path of a module of one's own:
            ``cost={"module": "my_metrics/cost.py"}``.

    Attributes:
        arguments: Likewise, with the absolute path of each file.

    Raises:
        UserError: for each metric that there is not.
    """

    def __init__(self, **arguments: Mapping[str, Any]) -> None:
        known = [path.stem for path in namesakes.files("metrics")]
        self.arguments: dict[str, Mapping[str, Any]] = dict(arguments)
        self.flag, mistakes = "", Mistakes()
        for name, each in arguments.items():
            module = str(each.get(MODULE, name))
            with mistakes:
                if is_path(each.get(MODULE)):
                    path = metric_files.file_of(module)
                    self.arguments[name] = {**each, MODULE: str(path)}
                    if name in {*known, *named()}:
                        raise UserError(
                            f"{shown(path)} has the name of a metric of the toolkit, '{name}': "
                            "give it another"
                        )
                elif module not in known:
                    raise UserError(_unknown(module, {*known, *named()}))
        mistakes.refuse()

    @classmethod
    def of_names(cls, names: str) -> Scoring:
        """Return the metrics of ``--metrics``: ``accuracy,f1_micro,./cost.py``.

        Raises:
            UserError: if there is no such metric, or two of a name.
        """
        if not names.strip(", "):
            raise UserError(f"--metrics '{names}': expected names of metrics, accuracy,f1")
        mistakes, arguments = Mistakes(), dict[str, Mapping[str, Any]]()
        for word in split_values(names):
            with mistakes:
                name, each = _entry(word)
                if arguments.setdefault(name, each) != each:
                    raise UserError(f"two metrics have the name '{name}': give {word} another")
        with mistakes:
            found = cls(**arguments)
            found.flag = "--metrics: "
        if mistakes.found:
            raise UserError(*(f"--metrics: {each}" for each in mistakes.found))
        return found

    def __call__(
        self, prediction: EvalPrediction, task: Task[Any] | None = None
    ) -> dict[str, float]:
        """Return the metrics of one evaluation.

        Args:
            prediction: ``predictions``, the outputs of a model, of shape ``(rows, outputs)``, and
                ``label_ids``, see :meth:`~finetune.tasks.base.Task.targets`.
            task: Of the labels; one class a row if None.

        Raises:
            UserError: if a module of one's own cannot compute, or does not return numbers.
        """
        outputs, true = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        rows = metric_inputs.Rows(task or SingleLabel(), outputs, true)
        scores: dict[str, float] = {}
        for name, each in self.arguments.items():
            scores |= _Metric(name, each)(rows)
        return scores

    def names(self, task: Task[Any]) -> list[str]:
        """Return the names of what is computed.

        Those of modules of one's own are known once they have computed: a few made-up rows of the
        task, as does every other metric, unless they are the usual ones of the task.

        Raises:
            UserError: for each metric that cannot be computed for this task, or has the name of
                another.
        """
        if self.arguments == task.metrics:
            return [*self.arguments]
        rows = metric_inputs.Rows(task, *task.made_up())
        mistakes, owners = Mistakes(), dict[str, str]()
        for metric in (_Metric(name, each) for name, each in self.arguments.items()):
            with mistakes:
                for key in metric.tried(rows):
                    if owners.setdefault(key, metric.shown) != metric.shown:
                        raise UserError(
                            f"{owners[key]} and {metric.shown} both compute '{key}': rename one"
                        )
        if mistakes.found:
            raise UserError(*(f"{self.flag}{each}" for each in mistakes.found))
        return [*owners]


@dataclass(frozen=True)
class _Metric:
    """One metric of a :class:`Scoring`, by its name there and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def path(self) -> Path | None:
        """The file of a module of one's own."""
        return Path(self.arguments[MODULE]) if is_path(self.arguments.get(MODULE)) else None

    @property
    def shown(self) -> str:
        """What a message calls it."""
        return shown(self.path) if self.path else f"'{self.name}'"

    def module(self, task: Task[Any]) -> EvaluationModule:
        """Return the module as it is called for a task."""
        if self.path:
            return metric_files.load(self.path, task.metric_config)
        return load(module_of(self.name, self.arguments)[0], task.metric_config)

    def __call__(self, rows: metric_inputs.Rows) -> dict[str, float]:
        """Return what it computes of rows, by name; one number alone is called like the metric."""
        module = self.module(rows.task)
        _, arguments = module_of(self.name, self.arguments)
        inputs = rows.inputs(module, self.shown)
        if self.path is None:
            found = module.compute(**inputs, **arguments)
        else:
            try:
                found = module.compute(**inputs, **arguments)
            except UserError:
                raise
            except (Exception, SystemExit) as error:
                raise UserError(metric_files.told(error, self.path)) from error
            found = metric_inputs.numbers(found, self.shown)
            if self.name == self.path.stem:
                return found
        return {self.name: next(iter(found.values()))} if len(found) == 1 else dict(found)

    def tried(self, rows: metric_inputs.Rows) -> dict[str, float]:
        """Return the same of made-up rows.

        Raises:
            UserError: if it cannot be used.
        """
        if self.path:
            metric_files.refresh(self.path)
        metric_inputs.refuse_others(self.module(rows.task), rows, self.shown)
        try:
            found = self(rows)
        except (TypeError, ValueError) as error:  # of a module of the toolkit
            first = str(error).partition("\n")[0]
            raise UserError(f"{self.shown} cannot be computed: {first}") from error
        if self.path:
            taken = {*(path.stem for path in namesakes.files("metrics")), *named()}
            for key in found:
                metric_inputs.refuse_name(key, taken, self.shown)
        return found


def with_best(
    usual: Mapping[str, Any], names: Sequence[str], given: Mapping[str, Any], *, are_known: bool
) -> dict[str, Any]:
    """Return training arguments that choose the best model by one of the metrics.

    Args:
        usual: The defaults of a recipe.
        names: Of the metrics.
        given: What is set over the defaults.
        are_known: Whether modules of one's own have said what they compute.

    Raises:
        UserError: if it is not known whether more of that metric is better, or if
            ``greater_is_better`` says the opposite of what is known.
    """
    found = dict(usual)
    if str(found.get("metric_for_best_model")) not in (*names, "loss"):
        found["metric_for_best_model"] = names[0]
    told = {**found, **given}
    chosen = str(told.get("metric_for_best_model")).removeprefix("eval_")
    known = {**DIRECTIONS, "loss": -1}.get(chosen) if chosen in (*names, "loss") else None
    is_greater = told.get("greater_is_better")
    if are_known and known and is_greater is not None and is_greater != (known > 0):
        raise UserError(
            f"--greater_is_better {str(is_greater).lower()}: of {chosen}, "
            f"{'more' if known > 0 else 'less'} is better, and the worst checkpoint would be kept; "
            "leave it out"
        )
    unknown = chosen in names and chosen not in DIRECTIONS
    if are_known and unknown and told.get("greater_is_better") is None:
        instead = next((name for name in names if name in DIRECTIONS), "loss")
        raise UserError(
            f"--metric_for_best_model {chosen}: whether more of it is better is not known; add "
            f"--greater_is_better true or false, or --metric_for_best_model {instead}"
        )
    return found


def with_computed(
    given: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return training arguments with ``metric_for_best_model`` under the name by which it is
    computed: ``f1_macro`` may be called ``f1``, and the other way around.

    Args:
        given: The arguments.
        known: The arguments of each metric, by its name; none of metrics of a recipe's own.
    """
    found = dict(given)
    prefix, name = "", str(given.get("metric_for_best_model"))
    if name.startswith("eval_"):
        prefix, name = "eval_", name.removeprefix("eval_")
    if not known or name in known or is_path(name) or not (wanted := _entry(name)[1]):
        return found
    for other, each in known.items():
        if module_of(other, each) == module_of(name, wanted):
            found["metric_for_best_model"] = prefix + other
    return found


def without_counted(
    compute: Compute, scoring: Mapping[str, Mapping[str, Any]], task: Task[Any]
) -> Compute:
    """Return what computes of resamples only the metrics of which the task does not know more.

    Args:
        compute: The metrics of a recipe.
        scoring: Those that it is made of; empty if it is the recipe's own.
        task: Of the labels.
    """
    counted = task.counted(scoring)
    others = {name: each for name, each in scoring.items() if name not in counted}
    return functools.partial(Scoring(**others), task=task) if others else compute


def named() -> dict[str, Mapping[str, Any]]:
    """Return what ``--metrics`` knows beside the folders: ``f1_micro`` and the like."""
    averaged = {
        f"{name}_{average}": {MODULE: name, "average": average}
        for name in _AVERAGED
        for average in _AVERAGES
    }
    return {**averaged, **OF_LABEL_SETS}


def _entry(word: str) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a metric in ``--metrics``; the mean is over classes."""
    if is_path(word):
        path = metric_files.file_of(word)
        return path.stem, {MODULE: str(path)}
    if word in _AVERAGED:
        return word, {"average": "macro"}
    return word, named().get(word, {})


def _unknown(module: str, known: set[str]) -> str:
    """Return what to type instead of a metric that there is not."""
    hint = suggestion(module, known)
    if Path(module, f"{module}.py").is_file():
        hint = f"; a module of your own is named by its path: ./{module}"
    elif not hint:
        hint = "; a module of your own is named by its path: ./NAME.py"
    return f"no metric '{module}' in metrics/{hint} (available: {', '.join(sorted(known))})"


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
