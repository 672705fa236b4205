"""What a metric module takes of a task, and what it may return."""

from __future__ import annotations

import numbers as numeric
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.errors import UserError
from finetune.statistics.directions import DIRECTIONS

if TYPE_CHECKING:
    from evaluate import EvaluationModule

    from finetune.tasks.base import Task

#: The inputs of a metric, as ``evaluate`` calls them.
_PREDICTIONS, _SCORES, _REFERENCES = "predictions", "prediction_scores", "references"
#: What the library's evaluation puts around names, and its own entries, which end like this.
_PREFIXES = ("eval_", "test_")
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class Rows:
    """Rows with what a model put out for them, as metric modules take them.

    Args:
        task: Of the labels.
        outputs: Shape ``(rows, outputs)``.
        targets: See :meth:`~finetune.tasks.base.Task.targets`.
    """

    def __init__(self, task: Task[Any], outputs: np.ndarray, targets: np.ndarray) -> None:
        self.task, self.outputs = task, outputs
        self.decided = task.decided(outputs)
        self.true = targets.astype(self.decided.dtype)

    def inputs(self, module: EvaluationModule, shown: str) -> dict[str, np.ndarray]:
        """Return those of the inputs that a module takes: predictions are what the task decides,
        prediction scores are probabilities, shape ``(rows, labels)``.

        Raises:
            UserError: if it takes others, or probabilities where there are none.
        """
        names = [*_alternatives(module)[0]]
        if others := [each for each in names if each not in (_PREDICTIONS, _SCORES, _REFERENCES)]:
            raise UserError(
                f"{shown} takes {' and '.join(map(repr, others))}: a metric gets '{_PREDICTIONS}' "
                f"or '{_SCORES}', and '{_REFERENCES}'"
            )
        if _SCORES in names and not self.task.has_probabilities:
            raise UserError(
                f"{shown} takes '{_SCORES}', and a task of {self.task.name} has no probabilities"
            )
        found = {_PREDICTIONS: self.decided, _REFERENCES: self.true}
        if _SCORES in names:
            found[_SCORES] = self.task.probabilities(self.outputs)
        return {each: found[each] for each in names}


def refuse_others(module: EvaluationModule, rows: Rows, shown: str) -> None:
    """Refuse a module whose features are not those of the rows.

    ``evaluate`` fits what it is given into the features: as int64 0.9 becomes 0 without a word.

    Raises:
        UserError: with what it takes and what it would get.
    """
    inputs = rows.inputs(module, shown)
    columns = (values.tolist() for values in inputs.values())
    examples = [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=True)]
    for features in _alternatives(module):
        if "string" in str(features):  # which the library does not fill with numbers
            continue
        try:
            kept = [features.encode_example(each) for each in examples]
        except (TypeError, ValueError, OverflowError):
            continue
        if all(map(_alike, examples, kept)):
            return
        break  # the library would take it
    got = " and ".join(
        f"{name} of {values.dtype}, shape {('rows', *values.shape[1:])}".replace("'rows'", "rows")
        for name, values in inputs.items()
    )
    raise UserError(
        f"{shown} takes {_alternatives(module)[0]}, and a task of {rows.task.name} gives {got}"
    )


def numbers(found: Any, shown: str) -> dict[str, float]:
    """Return what a module computed, by name.

    Raises:
        UserError: if it is anything but numbers by name.
    """
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{shown} returns {found!r:.60}: expected a dict of numbers by name")
    for name, value in found.items():
        is_number = np.ndim(value) == 0 and isinstance(np.asarray(value).item(), numeric.Real)
        if not isinstance(name, str) or not name or not is_number:
            raise UserError(f"{shown} returns {value!r:.60} as {name!r}: expected a number by name")
    return {name: float(value) for name, value in found.items()}


def refuse_name(name: str, taken: Collection[str], shown: str) -> None:
    """Refuse a name under which something else is reported.

    Args:
        name: Of what a module computes.
        taken: Names of the metrics of the toolkit.
        shown: What a message calls the module.

    Raises:
        UserError: if it is taken.
    """
    if name in taken or name in DIRECTIONS:
        raise UserError(
            f"{shown} computes '{name}', which is a metric of the toolkit: return it by another "
            "name"
        )
    if name == "loss" or name.startswith(_PREFIXES) or name.endswith(_SPEED):
        raise UserError(
            f"{shown} computes '{name}', which is a name of the evaluation itself, as are loss, "
            f"{', '.join(f'{each}NAME' for each in _PREFIXES)} and NAME_runtime: return it by "
            "another name"
        )


def _alternatives(module: EvaluationModule) -> list[Any]:
    """Return the features of a module; where there are several, the first that fit are taken."""
    return module.features if isinstance(module.features, list) else [module.features]


def _alike(given: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    return all(np.array_equal(np.asarray(kept[name]), value) for name, value in given.items())
