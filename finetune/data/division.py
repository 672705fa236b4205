"""Which rows of training become the validation and test splits that a source lacks.

They are drawn by class, by group (no group is in two splits) or by time (the newest rows are the
test set, the next newest the validation set).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from finetune.data import stratification
from finetune.data.keys import Keys, Numbers
from finetune.data.plan import Plan
from finetune.errors import UserError, counted


def divided(
    numbers: np.ndarray, strata: np.ndarray, names: Sequence[str], keys: Keys, plan: Plan
) -> tuple[Numbers, str]:
    """Return which training rows go into which split, and how they were split, for people.

    Args:
        numbers: The rows to be divided, sorted.
        strata: What the rows of the source are stratified by, see
            :func:`~finetune.data.targets.strata`.
        names: The splits to be made of them, ``train`` first.
        keys: The groups and times of the rows of the source.
        plan: How.

    Raises:
        UserError: if groups or times leave a split without rows.
    """
    whole, left, found = len(numbers), numbers, Numbers()
    begins = {}
    for step, name in enumerate(names[1:]):
        size, seed = plan.size(name, whole, whole - len(left)), plan.seed + (name == "validation")
        labels = strata[left]
        if keys.groups is not None:
            _, groups = np.unique(keys.groups[left], return_inverse=True)
            taken = stratification.apart_by_group(labels, groups, size, seed)
            if not taken.any():
                every = np.unique(keys.groups[numbers])
                raise UserError(_too_few_groups(plan, names[1:], step, len(every), groups))
        elif keys.times is not None:
            if size < 1:
                raise UserError(
                    f"--time_column {plan.time_column}: {counted(len(left), 'row')} of {whole} "
                    f"left, of which none is split off for {name}: give more rows, or "
                    f"--{name}_size 2 or more"
                )
            taken = stratification.apart_by_time(keys.times[left], size)
            if not taken.any():
                raise UserError(
                    f"--time_column {plan.time_column}: all {len(left):,} rows that are left have "
                    f"the same time ({keys.shown(int(left[0]))}), so that none can be split off "
                    f"for {name}: expected several times"
                )
            newest = left[taken]
            begins[name] = keys.shown(int(newest[np.argmin(keys.times[newest])]))
        else:
            taken = stratification.apart(labels, size, seed)
        found[name], left = left[taken], left[~taken]
    return {"train": left, **found}, _told(found, plan, whole, begins, strata)


def _too_few_groups(
    plan: Plan, wanted: Sequence[str], step: int, every: int, groups: np.ndarray
) -> str:
    """Return why no group can be split off.

    Args:
        plan: How rows are split.
        wanted: The splits to be split off, in their order.
        step: The number of that which has none.
        every: Groups of the source.
        groups: Those that are left.
    """
    count = int(groups.max()) + 1
    splits = ("train", *wanted)
    why = (
        f"the data has {counted(every, 'group')} for {len(splits)} splits ({', '.join(splits)})"
        if every < len(splits)
        else f"of {counted(count, 'group')} each has all rows of some class"
        if count > 1
        else f"{counted(every - count, 'group')} went to {' and '.join(wanted[:step])}"
    )
    return (
        f"--group_column {plan.group_column}: no rows are left for {wanted[step]}: {why}; "
        "choose another column, or give the splits as files"
    )


def _told(
    found: Numbers, plan: Plan, rows: int, begins: Mapping[str, str], strata: np.ndarray
) -> str:
    """Return how rows were split, for people; empty if nothing was split off."""
    if not found:
        return ""
    parts = [
        f"{name} {len(each) / rows:.1%}" + (f" from {begins[name]} on" if name in begins else "")
        for name, each in found.items()
    ]
    how = f"of {rows:,} training rows split off: {', '.join(parts)}"
    if plan.time_column is not None:
        return f"{how}, the newest by '{plan.time_column}'"
    alike = "stratified" if strata.any() else "at random"
    if plan.group_column is not None:
        return f"{how}, {alike}, no '{plan.group_column}' in two splits (seed {plan.seed})"
    return f"{how}, {alike} (seed {plan.seed})"
