"""Split off ``train``, ``validation`` and ``test``, so that selection never sees the test set.

Exact duplicates (white space aside) are dropped, the splits are split off, then rows are sampled.
The result depends only on a seed of its own, not on the training seed, so that runs with other
seeds stay comparable.

All of it works on the row index; each split is selected once, at the end.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from datasets import DatasetDict
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from finetune.data import stratification, targets
from finetune.data.repeated import drop_repeated
from finetune.data.row_index import HELD_OUT, Plan, build_index
from finetune.errors import Report, UserError, counted


def make_splits(
    dataset: DatasetDict, plan: Plan, *, column: str, report: Report
) -> tuple[DatasetDict, str]:
    """Return the three splits, each in the order of its source, and how they were split.

    Splits that the dataset lacks are split off its training rows. Rows with the same value in
    ``column`` are duplicates; ``report`` gets findings about rows that are dropped.

    Raises:
        UserError: If no training rows are left, or if the rows cannot be split so.
    """
    plan.check_sizes(dataset)
    index = build_index(dataset, plan, report)
    index, findings = drop_repeated(index, dataset, column, plan)
    report.add(*findings)
    if not (index["split"] == "train").any():
        reasons = (finding.message for finding in report.findings if finding.split == "train")
        raise UserError(f"no training rows are left: {'; '.join(reasons)}")
    if not targets.are_classes(dataset["train"]):
        index = _join_texts(index)
    strata = {name: targets.strata(rows) for name, rows in dataset.items()}
    index, how = _divide(index, dataset, plan, strata["train"])
    splits = DatasetDict()
    for name in ("train", *reversed(HELD_OUT)):
        source = name if name in dataset else "train"
        rows = index.loc[index["part"] == name, "row"].to_numpy()
        most = plan.train_samples if name == "train" else plan.eval_samples
        if most is not None and most < len(rows):
            rows = rows[stratification.draw_rows(strata[source][rows], most, plan.seed + 2)]
        splits[name] = dataset[source].select(rows)
    return splits, how


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
        texts = texts + groups.max() + 1
        links = coo_array((np.ones(len(rows)), (groups, texts)), (texts.max() + 1,) * 2)
        groups = connected_components(links, directed=False)[1][groups]
    index.loc[is_train, "group"] = groups
    return index


def _divide(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, strata: np.ndarray
) -> tuple[pd.DataFrame, str]:
    """Return the index with the split that each row goes to, as ``part``, and how, for people."""
    index = index.assign(part=index["split"].astype(object))
    left = train = index[index["split"] == "train"]
    kind = next((name for name in ("group", "time") if name in index), None)
    column = plan.group_column or plan.time_column
    shares = []
    for name in [name for name in HELD_OUT if name not in dataset]:
        size = plan.size(name, len(train), len(train) - len(left))
        seed = plan.seed + (name == "validation")
        labels = strata[left["row"]]
        if kind == "group":
            groups = pd.factorize(left["group"], sort=True)[0]
            is_chosen = stratification.split_groups(labels, groups, size, seed)
        elif kind == "time":
            is_chosen = stratification.split_newest(left["time"].to_numpy(), size)
        else:
            is_chosen = stratification.split_rows(labels, size, seed)
        if kind and not is_chosen.any():
            noun, flag = (kind, f"--{kind}_column {column}: ") if column else ("text", "")
            raise UserError(
                f"{flag}{size:,} rows cannot be split off for {name}: the {len(left):,} rows that "
                f"are left have {counted(left[kind].nunique(), noun)}, and rows of one {noun} stay "
                "together; give more rows, another column, or the splits as files"
            )
        index.loc[left.index[is_chosen], "part"] = name
        shares.append(f"{name} {is_chosen.sum() / len(train):.1%}")
        left = left[~is_chosen]
    if not shares:
        return index, ""
    how = f"of {len(train):,} training rows split off: {', '.join(shares)}"
    if kind == "time":
        return index, f"{how}, the newest by '{column}'"
    how += ", stratified" if strata.any() else ", at random"
    if kind == "group":
        unit = f"'{column}'" if column else "text"
        how += f", no {unit} in two splits"
    return index, f"{how} (seed {plan.seed})"
