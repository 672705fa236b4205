"""Which task the labels of a data set, or of a run, are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finetune.data.labels import have_order
from finetune.data.targets import class_names, is_set
from finetune.tasks.base import Task
from finetune.tasks.decision import FEWEST_ORDERED
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import Ordinal, SingleLabel

if TYPE_CHECKING:
    from datasets import Dataset

KINDS: dict[str, type[Task[Any]]] = {
    kind.name: kind for kind in (SingleLabel, Ordinal, MultiLabel, Regression)
}


def of_rows(
    rows: Dataset,
    *,
    ordered: bool = False,
    loss_function: str | None = None,
    thresholds: str = "one",
    target_names: Sequence[str] = (),
) -> Task[Any]:
    """Return the task of raw rows by the feature of their ``label``.

    Args:
        rows: With ``label``.
        ordered: Whether the order of the classes means something.
        loss_function: One of the task, or None for its first.
        thresholds: Of labels of which a row has any number.
        target_names: Of the numbers of a row, where there are several.

    Raises:
        UserError: if the task has no such loss.
    """
    names, loss = class_names(rows), loss_function or ""
    if is_set(rows):
        return MultiLabel(labels=names, loss_function=loss, thresholds=thresholds)
    if not names:
        return Regression.of(rows, target_names, loss)
    return (Ordinal if ordered else SingleLabel)(labels=names, loss_function=loss)


def in_order(rows: Dataset, ordered_names: Sequence[str]) -> bool:
    """Return whether the classes of rows have an order: three or more that are among those that
    have one, ``ordered_names``, or are numbers that ascend.
    """
    names = class_names(rows)
    return len(names) >= FEWEST_ORDERED and have_order(names, ordered_names)


def from_manifest(
    name: str | None, names: Sequence[str], *, ordered: bool, facts: Mapping[str, Any]
) -> Task[Any]:
    """Return the task that ``run.json`` names; older ones have classes, or are regressions.

    Args:
        name: None in older ones.
        names: See :attr:`~finetune.tasks.base.Task.labels`.
        ordered: Whether an older one says that their order means something.
        facts: See :attr:`~finetune.tasks.base.Task.facts`.
    """
    if ordered and len(names) >= FEWEST_ORDERED:
        name = Ordinal.name
    usual = SingleLabel.name if names else Regression.name
    return KINDS[name or usual](labels=list(names), **facts)
