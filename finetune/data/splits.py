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
import pyarrow as pa
from datasets import Dataset, DatasetDict
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from finetune.data import arrow, stratification, targets
from finetune.data.plan import HELD_OUT, Plan
from finetune.data.repeated import drop_repeated
from finetune.data.row_index import build_index
from finetune.errors import Finding, Report, UserError, counted

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
            ``_row``, ``label`` and ``column``. What is missing is split off the training rows.
        plan: How.
        column: Rows with the same value here are duplicates, see
            :func:`~finetune.data.repeated.drop_repeated`. The test set is left as it is.
        report: Gets findings about rows that are dropped.

    Raises:
        UserError: If no training rows are left, or if the rows cannot be split so.
    """
    plan.check_sizes(dataset)
    index = build_index(dataset, plan, report)
    strata = {name: targets.strata(rows) for name, rows in dataset.items()}
    caps = {name: plan.train_samples if name == "train" else plan.eval_samples for name in SPLITS}
    if _samples_first(index, dataset, plan):
        index, how = _divide(index, dataset, plan, strata["train"])
        index, findings = _sample(index, dataset, plan, column, strata, caps)
        report.add(*findings)
    else:
        index, findings = drop_repeated(index, dataset, column, plan)
        report.add(*findings)
        if not (index["split"] == "train").any():
            reasons = "; ".join(
                finding.message for finding in report.findings if finding.split == "train"
            )
            raise UserError(f"no training rows are left: {reasons}")
        if not targets.are_classes(dataset["train"]):
            index = _join_texts(index)
        index, how = _divide(index, dataset, plan, strata["train"])
    splits = DatasetDict()
    for name in SPLITS:
        rows = _draw(index[index["part"] == name], caps[name], strata, plan.seed)
        splits[name] = select_rows(dataset[name if name in dataset else "train"], rows["row"])
    return splits, how


def select_rows(rows: Dataset, numbers: np.ndarray | pd.Series) -> Dataset:
    """Return ``rows.select(numbers)``, or the same rows if that is all of them."""
    numbers = np.asarray(numbers)
    is_whole = len(numbers) == len(rows) and np.array_equal(numbers, np.arange(len(rows)))
    return rows if is_whole else rows.select(numbers)


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
    for name in HELD_OUT:
        if name not in dataset:
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
    caps: Mapping[str, int | None],
) -> tuple[pd.DataFrame, Sequence[Finding]]:
    """Return somewhat more divided rows than are asked for, checked, with what was dropped."""
    pools = {name: index[index["part"] == name] for name in SPLITS}
    margin = _MARGIN
    while True:
        sizes = {
            name: None if cap is None else math.ceil((1 + margin) * cap) + _SPARE
            for name, cap in caps.items()
        }
        drawn = {name: _draw(pools[name], sizes[name], strata, plan.seed) for name in SPLITS}
        sampled = pd.concat(drawn.values()).sort_index()
        clean, findings = drop_repeated(sampled, dataset, column, plan)
        counts = clean["part"].value_counts()
        if all(
            cap is None or counts.get(name, 0) >= cap or len(drawn[name]) == len(pools[name])
            for name, cap in caps.items()
        ):
            return clean, findings
        margin *= 4


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
    groups = texts = pd.factorize(rows["digest"])[0]
    if "group" in index:  # a text that two groups have joins them
        groups = pd.factorize(rows["group"])[0]
        size = int(groups.max()) + 1 + int(texts.max()) + 1
        links = coo_array((np.ones(len(rows)), (groups, groups.max() + 1 + texts)), (size, size))
        groups = connected_components(links, directed=False)[1][groups]
    index.loc[is_train, "group"] = groups
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
    shares = []
    for name in [name for name in HELD_OUT if name not in dataset]:
        size = plan.size(name, len(train), len(train) - len(left))
        seed = plan.seed + (name == "validation")
        labels = strata[left["row"]]
        if "group" in index:
            groups = pd.factorize(left["group"], sort=True)[0]
            is_taken = stratification.split_groups(labels, groups, size, seed)
        elif "time" in index:
            is_taken = stratification.split_newest(left["time"].to_numpy(), size)
        else:
            is_taken = stratification.split_rows(labels, size, seed)
        if not is_taken.any() and {"group", "time"} & {*index.columns}:
            raise UserError(_too_few_groups(left, dataset["train"], name, size, plan))
        parts[left.index[is_taken]] = name
        shares.append(f"{name} {is_taken.sum() / len(train):.1%}")
        left = left[~is_taken]
    index = index.assign(part=parts)
    if not shares:
        return index, ""
    how = f"of {len(train):,} training rows split off: {', '.join(shares)}"
    if "time" in index:
        return index, f"{how}, the newest by '{plan.time_column}'"
    how += ", stratified" if strata.any() else ", at random"
    if "group" in index:
        unit = "text" if plan.group_column is None else f"'{plan.group_column}'"
        how += f", no {unit} in two splits"
    return index, f"{how} (seed {plan.seed})"


def _too_few_groups(left: pd.DataFrame, rows: Dataset, name: str, size: int, plan: Plan) -> str:
    """Return why none of the rows that are left can be split off for ``name``."""
    column, kind = plan.time_column or plan.group_column, "time" if plan.time_column else "group"
    if column is None:
        return (
            f"no rows can be split off for {name}: rows of one text stay together, and "
            f"{left['digest'].nunique():,} texts are left; give more rows, or the splits as files"
        )
    values = arrow.column(rows, column).take(pa.array(left["row"])).unique().to_pylist()
    return (
        f"--{kind}_column {column}: {size:,} rows cannot be split off for {name}, as the "
        f"{len(left):,} rows that are left have {counted(len(values), kind)} ({values[0]}, ...), "
        "and rows of one stay together; name another column, or give the splits as files"
    )
