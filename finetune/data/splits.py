"""Split off ``train``, ``validation`` and ``test``, so that selection never sees the test set.

Exact duplicates (white space aside) are dropped, the splits are split off, then rows are sampled.
Of many rows of which few are asked for, they are sampled first, and duplicates dropped among those.
The result depends only on a seed of its own, not on the training seed, so that runs with other
seeds stay comparable.

All of it works on the row index; each split is selected once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from finetune.data import arrow, stratification, targets
from finetune.data.plan import HELD_OUT, Plan
from finetune.data.row_index import build_index, drop_repeated
from finetune.errors import Report, UserError, counted

#: Of a source with more rows than these, only those are checked for duplicates that are sampled.
CHECKED_WHOLE = 100_000
#: How many more rows than are asked for are sampled before duplicates are dropped: a share, rows.
_MARGIN, _SPARE = 0.05, 10
SPLITS = ("train", "validation", "test")


def make_splits(
    dataset: DatasetDict, plan: Plan, *, column: str, report: Report
) -> tuple[DatasetDict, str]:
    """Return the three splits, each in the order of its source, and how they were split.

    Args:
        dataset: A ``train`` split, and ``validation`` and ``test`` where the source has them, with
            ``column`` and ``label``. What is missing is split off the training rows.
        plan: How.
        column: Rows with the same value here are duplicates, see
            :func:`~finetune.data.row_index.drop_repeated`. The test set is left as it is.
        report: Gets facts about the rows that are dropped.

    Raises:
        UserError: If no training rows are left, or if the rows cannot be split so.
    """
    plan.check_sizes(dataset)
    index = build_index(dataset, plan, report)
    strata = {name: targets.strata(rows) for name, rows in dataset.items()}
    if _samples_first(index, dataset, plan):
        index, messages, how = _sample(index, dataset, plan, column, strata)
    else:
        index, messages = drop_repeated(index, dataset, column, plan)
        if not targets.are_classes(dataset["train"]):
            index = _join_texts(index)
        index, how = _divide(index, dataset, plan, strata["train"])
    for message in messages:
        report.info(message, name="dropped_rows")
    splits = DatasetDict()
    for name in SPLITS:
        cap = plan.train_samples if name == "train" else plan.eval_samples
        rows = _draw(index[index["part"] == name], cap, strata, plan.seed)
        splits[name] = select_rows(dataset[name if name in dataset else "train"], rows["row"])
    return splits, how


def select_rows(rows: Dataset, numbers: np.ndarray | pd.Series) -> Dataset:
    """Return ``rows.select(numbers)``, or the same rows if that is all of them."""
    numbers = np.asarray(numbers)
    is_whole = len(numbers) == len(rows) and np.array_equal(numbers, np.arange(len(rows)))
    return rows if is_whole else rows.select(numbers)


def _missing(dataset: DatasetDict) -> list[str]:
    """Return the splits that a source lacks, in the order in which they are split off."""
    return [name for name in HELD_OUT if name not in dataset]


def _draw(
    rows: pd.DataFrame, size: int | None, strata: Mapping[str, np.ndarray], seed: int
) -> pd.DataFrame:
    """Return at most ``size`` rows of one split, drawn by class."""
    if size is None or size >= len(rows):
        return rows
    labels = strata[rows["split"].iloc[0]][rows["row"]]
    return rows.iloc[stratification.draw_rows(labels, size, seed + 2)]


def _samples_first(index: pd.DataFrame, dataset: DatasetDict, plan: Plan) -> bool:
    """Return whether so few of many rows are asked for that the others need not be checked.

    Rows of one text and different numbers have to stay together, so all of these are checked.
    """
    rows, total = int((index["split"] == "train").sum()), plan.train_samples
    if rows <= CHECKED_WHOLE or total is None or not targets.are_classes(dataset["train"]):
        return False
    taken = 0
    for name in _missing(dataset):
        size = plan.size(name, rows, taken)
        taken += size
        total += size if plan.eval_samples is None else min(plan.eval_samples, size)
    return 2 * total <= rows


def _sample(
    index: pd.DataFrame,
    dataset: DatasetDict,
    plan: Plan,
    column: str,
    strata: Mapping[str, np.ndarray],
) -> tuple[pd.DataFrame, list[str], str]:
    """Return somewhat more rows than are asked for, checked, with what was dropped, and how."""
    index, how = _divide(index, dataset, plan, strata["train"])
    pools = {name: index[index["part"] == name] for name in SPLITS}
    caps = {name: plan.train_samples if name == "train" else plan.eval_samples for name in SPLITS}
    margin, is_enough = _MARGIN, False
    while not is_enough:
        sizes = {
            name: None if cap is None else math.ceil((1 + margin) * cap) + _SPARE
            for name, cap in caps.items()
        }
        drawn = {name: _draw(pools[name], sizes[name], strata, plan.seed) for name in SPLITS}
        sampled = pd.concat(drawn.values()).sort_index()
        clean, messages = drop_repeated(sampled, dataset, column, plan)
        counts = clean["part"].value_counts()
        is_enough = all(
            cap is None or counts.get(name, 0) >= cap or len(drawn[name]) == len(pools[name])
            for name, cap in caps.items()
        )
        margin *= 4
    looked_at, total = ((frame["split"] == "train").sum() for frame in (sampled, index))
    message = (
        f"duplicates were looked for among the rows sampled ({looked_at:,} of {total:,} training "
        "rows)"
    )
    return clean, [message, *messages], how


def _join_texts(index: pd.DataFrame) -> pd.DataFrame:
    """Return the index with groups and times that keep the rows of one text in one split."""
    is_train = index["split"] == "train"
    rows = index[is_train]
    if not rows["digest"].duplicated().any():
        return index
    index = index.copy()
    if "time" in index:
        index.loc[is_train, "time"] = rows.groupby("digest")["time"].transform("min")
        return index
    texts = pd.factorize(rows["digest"])[0]
    if "group" not in index:
        index["group"] = -1
        index.loc[is_train, "group"] = texts
        return index
    groups = pd.factorize(rows["group"])[0]
    size = int(groups.max()) + 1 + int(texts.max()) + 1
    links = coo_array((np.ones(len(rows)), (groups, groups.max() + 1 + texts)), (size, size))
    index.loc[is_train, "group"] = connected_components(links, directed=False)[1][groups]
    return index


def _divide(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, strata: np.ndarray
) -> tuple[pd.DataFrame, str]:
    """Return the index with the split that each row goes to, as ``part``, and how, for people.

    Args:
        index: With the rows to be divided.
        dataset: The source.
        plan: How.
        strata: What its training rows are stratified by, see :func:`~finetune.data.targets.strata`.

    Raises:
        UserError: If groups or times leave a split without rows.
    """
    parts = index["split"].astype(object)
    left = train = index[index["split"] == "train"]
    missing, shares = _missing(dataset), list[str]()
    for name in missing:
        size = plan.size(name, len(train), len(train) - len(left))
        seed = plan.seed + (name == "validation")
        labels = strata[left["row"]]
        if "group" in index:
            _, groups = np.unique(left["group"], return_inverse=True)
            is_taken = stratification.split_groups(labels, groups, size, seed)
            if not is_taken.any():
                raise UserError(
                    _too_few_groups(plan, missing, name, train["group"].nunique(), groups.max() + 1)
                )
        elif "time" in index:
            is_taken = _split_newest(left, size, len(train), name, dataset["train"], plan)
        else:
            is_taken = stratification.split_rows(labels, size, seed)
        taken = left[is_taken]
        parts[taken.index] = name
        since = ""
        if "time" in index:
            since = f" from {_shown_time(taken, dataset['train'], plan)} on"
        shares.append(f"{name} {len(taken) / len(train):.1%}{since}")
        left = left[~is_taken]
    index = index.assign(part=parts)
    if not missing:
        return index, ""
    how = f"of {len(train):,} training rows split off: {', '.join(shares)}"
    if "time" in index:
        return index, f"{how}, the newest by '{plan.time_column}'"
    alike = "stratified" if strata.any() else "at random"
    together = ""
    if "group" in index:
        unit = "text" if plan.group_column is None else f"'{plan.group_column}'"
        together = f", no {unit} in two splits"
    return index, f"{how}, {alike}{together} (seed {plan.seed})"


def _split_newest(
    left: pd.DataFrame, size: int, total: int, name: str, rows: Dataset, plan: Plan
) -> np.ndarray:
    """Return which of the rows that are left are the newest, shape ``(rows,)``."""
    flag = f"--time_column {plan.time_column}"
    if size < 1:
        raise UserError(
            f"{flag}: {counted(len(left), 'row')} of {total} left, of which none is split off for "
            f"{name}: give more rows, or --{name}_size 2 or more"
        )
    is_taken = stratification.split_newest(left["time"].to_numpy(), size)
    if not is_taken.any():
        raise UserError(
            f"{flag}: all {len(left):,} rows that are left have the same time "
            f"({_shown_time(left, rows, plan)}), so that none can be split off for {name}: "
            "expected several times"
        )
    return is_taken


def _shown_time(part: pd.DataFrame, rows: Dataset, plan: Plan) -> str:
    """Return the oldest time of some rows, as the source has it."""
    row = int(part["row"].to_numpy()[part["time"].to_numpy().argmin()])
    return str(arrow.column(rows, str(plan.time_column))[row].as_py())


def _too_few_groups(plan: Plan, missing: Sequence[str], name: str, total: int, left: int) -> str:
    """Return why no group can be split off for ``name``, of ``total`` groups and those left."""
    splits = ("train", *missing)
    if total < len(splits):
        why = (
            f"the data has {counted(total, 'group')} for {len(splits)} splits ({', '.join(splits)})"
        )
    elif left > 1:
        why = f"of {counted(left, 'group')} each has all rows of some class"
    else:
        others = " and ".join(missing[: missing.index(name)])
        why = f"{counted(total - left, 'group')} went to {others}"
    if plan.group_column is None:
        return f"no rows are left for {name}: rows of one text stay together, and {why}"
    return (
        f"--group_column {plan.group_column}: no rows are left for {name}: {why}; choose another "
        "column, or give the splits as files"
    )
