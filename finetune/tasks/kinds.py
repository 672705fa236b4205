"""Which task the labels of a data set, or of a run, are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.data.targets import class_names
from finetune.tasks.base import Task
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from datasets import Dataset

KINDS: dict[str, type[Task[Any]]] = {kind.name: kind for kind in (SingleLabel, Regression)}


def of_rows(rows: Dataset, *, ordered: bool = False, loss_function: str | None = None) -> Task[Any]:
    """Return the task of raw rows by the feature of their ``label``.

    Args:
        rows: With ``label``.
        ordered: Whether the order of the classes means something.
        loss_function: One of the task, or None for its first.

    Raises:
        UserError: if the task has no such loss.
    """
    if names := class_names(rows):
        return SingleLabel(labels=names, ordered=ordered, loss_function=loss_function or "")
    return Regression(loss_function=loss_function or "")


def named(name: str | None, labels: Sequence[str], *, ordered: bool) -> Task[Any]:
    """Return the task that ``run.json`` names; older ones have classes, or are regressions."""
    usual = SingleLabel.name if labels else Regression.name
    return KINDS[name or usual](labels=list(labels), ordered=ordered)
