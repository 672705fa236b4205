"""Run the rules: of a recipe, of a training, of a task, of a prediction."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from finetune.errors import UserError
from finetune.rules import batch, prediction, ranges, recipe, task
from finetune.rules.options import OptionValues


def check_options(options: OptionValues) -> None:
    """Check the options of a recipe.

    Raises:
        UserError: With a line for each mistake.
    """
    _refuse((ranges, recipe), options)


def check_arguments(options: OptionValues) -> None:
    """Check training arguments.

    Raises:
        UserError: With a line for each mistake.
    """
    from finetune.rules import arguments, devices, schedule  # which import torch

    _refuse((ranges, batch, schedule, devices, arguments), options)


def check_command(options: OptionValues) -> None:
    """Check the options of a recipe, the training arguments and the options of a run together.

    Raises:
        UserError: With a line for each mistake.
    """
    from finetune.rules import command  # which imports torch

    _refuse((command,), options)


def check_task(options: OptionValues, labels_task: Any) -> None:
    """Check the options of a recipe and, if they are known, the training arguments for a task.

    Raises:
        UserError: With a line for each mistake.
    """
    _refuse((task,), options, labels_task)


def check_prediction(options: OptionValues) -> None:
    """Check the options of a prediction.

    Raises:
        UserError: With a line for each mistake.
    """
    _refuse((ranges, prediction), options)


def _refuse(subjects: Iterable[ModuleType], *values: Any) -> None:
    mistakes: list[str] = []
    for subject in subjects:
        for rule in subject.RULES:
            mistakes.extend(rule(*values))
    if mistakes:
        raise UserError(*mistakes)
