"""Parse the space of a search: ``learning_rate=1e-5..1e-3:log,num_train_epochs=1..6,model=a|b``."""

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from finetune.config.parser import RUN_OPTIONS, RecipeParser
from finetune.config.settings import Settings
from finetune.data.comma_list import split_pairs
from finetune.errors import Findings, UserError
from finetune.recipe import Recipe
from finetune.training.arguments import ArgumentValues
from finetune.training.options import describe_unknown

#: Groups of recipe options that decide the rows, which the trials of a search share.
_SHARED_GROUPS = ("data", "splits", "labels")
#: Training arguments that choose the best trial, or where and when it is evaluated and saved.
_SHARED = {
    *RUN_OPTIONS,
    "output_dir",
    "resume",
    "resume_from_checkpoint",
    "metric_for_best_model",
    "greater_is_better",
    "eval_strategy",
    "save_strategy",
    "load_best_model_at_end",
    "final_epochs",
    "metrics",
}
_MAX_TRIED_VALUES = 32  # values of a dimension that are checked before the first trial


def default_space(task: str, values: ArgumentValues, typed: Collection[str]) -> str:
    """Return the space of a search without ``--space``, around the defaults of the recipe.

    Args:
        task: The name of the task.
        values: The training arguments of the recipe.
        typed: The options that the user has set, which are not varied.

    Raises:
        UserError: If no option is left.
    """
    rate, epochs = values.learning_rate, max(1, round(values.num_train_epochs))
    parts = [f"learning_rate={rate / 5:g}..{rate * 10:g}:log"]
    if values.max_steps <= 0:
        parts.append(f"num_train_epochs=1..{2 * epochs}")
    if task == "regression":
        parts.append("weight_decay=0.001..0.1:log")
    else:
        parts.append("warmup_steps=0.0..0.2")
    varied = [part for part in parts if part.partition("=")[0] not in typed]
    if not varied:
        raise UserError(f"--space: expected one, as {', '.join(parts)} are given as flags")
    return ",".join(varied)


def nearest_values(
    space: Mapping[str, BaseDistribution], values: ArgumentValues
) -> dict[str, float]:
    """Return for each range of a space the value that is nearest to the training argument."""
    nearest: dict[str, float] = {}
    for name, distribution in space.items():
        assert isinstance(distribution, (IntDistribution, FloatDistribution))
        value = min(max(getattr(values, name), distribution.low), distribution.high)
        if isinstance(distribution, IntDistribution):
            value = round(value)
        nearest[name] = value
    return nearest


def parse_space(text: str | Mapping[str, Any], recipe: type[Recipe]) -> dict[str, BaseDistribution]:
    """Return the distribution of each option in a space.

    Args:
        text: As on the command line, or a mapping from options to ``LOW..HIGH``, ``LOW..HIGH:log``,
            ``A|B`` or a list of values.
        recipe: The class of the recipe, which has the options.

    Raises:
        UserError: With a line for each mistake.
    """
    pairs = list(text.items()) if isinstance(text, Mapping) else split_pairs(text)
    report = Findings()
    names = RecipeParser(recipe).names
    groups = {f.name: f.metadata.get("group") for f in recipe.__dataclass_fields__.values()}
    space = {}
    for name, values in pairs:
        name = name.replace("-", "_")
        if name not in names:
            report.error(f"--space: {describe_unknown(repr(name), names)}")
        elif name in _SHARED or groups.get(name) in _SHARED_GROUPS:
            report.error(f"--space {name}: all trials share it: give it as --{name} VALUE")
        elif name in space:
            report.error(f"--space {name}: expected each option once")
        else:
            with report.collect():
                space[name] = _distribution(name, values)
    if not pairs:
        report.error("--space: expected such as learning_rate=1e-5..1e-3:log,num_train_epochs=1..6")
    report.raise_errors()
    return space


def _distribution(name: str, values: Any) -> BaseDistribution:
    if not isinstance(values, str):
        if not isinstance(values, Sequence) or len(values) < 2:
            raise UserError(f"--space {name}: expected two values or more, found {values!r}")
        return _choice(name, values, list(values))
    if ".." in values.partition(":")[0] and "|" not in values:  # a path may have two dots
        return _range(name, values)
    choices = [choice.strip() for choice in values.split("|")]
    if len(choices) < 2:
        raise UserError(f"--space {name}={values}: expected LOW..HIGH, LOW..HIGH:log or A|B")
    for kind in (int, float):  # numbers, for options that are numbers in Python
        with contextlib.suppress(ValueError):
            return _choice(name, values, list(map(kind, choices)))
    return _choice(name, values, choices)


def _range(name: str, text: str) -> BaseDistribution:
    ends, _, scale = text.partition(":")
    low_text, _, high_text = ends.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        raise UserError(f"--space {name}={text}: expected numbers, LOW..HIGH") from None
    if not low < high < math.inf:
        raise UserError(f"--space {name}={text}: the range is empty: expected LOW below HIGH")
    if scale not in ("", "log") or (scale and low <= 0):
        raise UserError(f"--space {name}={text}: expected LOW..HIGH, or LOW..HIGH:log above 0")
    is_log = scale == "log"
    if all(end.strip().lstrip("-").isdecimal() for end in (low_text, high_text)):
        return IntDistribution(int(low_text), int(high_text), log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _choice(name: str, text: Any, choices: Sequence[Any]) -> CategoricalDistribution:
    if len(set(choices)) < len(choices) or "" in choices:
        raise UserError(f"--space {name}={text}: expected different values")
    return CategoricalDistribution(choices)


def check_values(space: Mapping[str, BaseDistribution], base: Settings) -> None:
    """Check the ends of each range, and all values of short ones, as options of a trial.

    Raises:
        UserError: With a line for each mistake, e.g. a batch that does not divide.
    """
    mistakes = []
    if "num_train_epochs" in space and base.user_options.get("max_steps", 0) > 0:
        mistakes.append("--space num_train_epochs: --max_steps decides: leave one of them out")
    for name, distribution in space.items():
        for value in list_values(distribution):
            settings = base.with_options({name: value})
            with settings.report.collect():
                _ = settings.values
            sentences = settings.report.sentences("error")
            mistakes += [f"--space {name}: {sentence}" for sentence in sentences]
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))


def max_epochs(space: Mapping[str, BaseDistribution], values: ArgumentValues) -> int:
    """Return the most epochs of a trial, rounded up."""
    epochs: float = values.num_train_epochs
    if "num_train_epochs" in space:
        epochs = max(list_values(space["num_train_epochs"]))
    return math.ceil(epochs)


def list_values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return all values of a short range or a choice, or the ends of a longer range."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    low, high = distribution.low, distribution.high
    if isinstance(low, int) and isinstance(high, int) and high - low < _MAX_TRIED_VALUES:
        return range(low, high + 1)
    return (low, high)
