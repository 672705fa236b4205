"""Rows that occur more than once: in two splits, with different labels, exactly or nearly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import DatasetDict, concatenate_datasets

from finetune.data import digests, near, targets
from finetune.data.label_columns import source_rows
from finetune.data.row_findings import EXCLUDE, MOST_SUSPECTS, RELABEL, report_rows
from finetune.data.row_index import Plan, build_index
from finetune.errors import Report, Severity, counted


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan, report: Report
) -> pd.DataFrame:
    """Return the index without leaks, duplicates and contradictions; ``report`` gets findings.

    Validation rows that the test set has are dropped, and training rows that either has. Of
    training rows with the same text and label the first stays, or the oldest. Repeated held-out
    rows stay. The result has a column ``digest``, a code of what the model reads in ``column``,
    white space aside.
    """
    splits = index["split"].cat.categories
    hashes = [digests.hash_rows(dataset[name], column, normalize=True) for name in splits]
    codes = np.asarray(pa.concat_arrays(hashes).dictionary_encode().indices, dtype=np.int64)
    index = index.assign(digest=codes[index.index])
    index["pair"] = index["digest"] * (index["label"].max() + 1) + index["label"]
    remaining: dict[str, pd.DataFrame] = {}
    for split in splits:
        rows = index[index["split"] == split]
        report_part = partial(
            report_rows, report, rows=dataset[split], split=split, examined=len(rows)
        )
        for earlier, held_out in remaining.items():
            is_leaked = rows["digest"].isin(held_out["digest"])
            differing = _count_differing(is_leaked & ~rows["pair"].isin(held_out["pair"]))
            description = f"that are also in the {earlier} data{differing}"
            report_part("overlap", description, "left out", rows["row"][is_leaked])
            rows = rows[~is_leaked]
        pairs = rows.groupby("digest")["pair"]
        is_contradiction = pairs.transform("min") != pairs.transform("max")
        has_classes = targets.are_classes(dataset[split])
        keep_first = plan.keep_contradictions == "first"
        keep_all = not (has_classes or keep_first)
        repeated = _sort_by_time(rows).duplicated("pair" if keep_all else "digest")
        is_repeated = repeated[rows.index]
        is_dropped = is_repeated if keep_all or keep_first else is_repeated | is_contradiction
        verb = "all are kept, in the same split" if keep_all else "left out"
        fix = f"{verb}; --keep_contradictions first keeps one of each"
        duplicates_fix = "left out, one of each is kept"
        if split != "train":
            is_dropped = is_dropped & False
            fix, duplicates_fix = f"no model can be right on all of them; {RELABEL}", EXCLUDE
        elif keep_first:
            count = int((is_repeated & is_contradiction).sum())
            fix = f"the first of each is kept, {count:,} left out"
        texts = counted(rows["digest"][is_contradiction].nunique(), column.removesuffix("s"))
        kind = "labels" if has_classes else "numbers"
        description = f"with the same {column} and different {kind} ({texts})"
        severity: Severity | None = None if has_classes else "info"
        positions = rows["row"][is_contradiction]
        report_part("contradictions", description, fix, positions, severity=severity)
        positions = rows["row"][is_repeated & (keep_all | ~is_contradiction)]
        description = "that are exact duplicates"
        report_part("duplicates", description, duplicates_fix, positions)
        remaining[split] = rows[~is_dropped]
        similar = _find_near(remaining, dataset, column, plan, report_part)
        remaining[split] = remaining[split].drop(similar)
    return pd.concat(remaining.values()).sort_index().drop(columns="pair")


def find_near_duplicates(dataset: DatasetDict, column: str, plan: Plan, report: Report) -> None:
    """Report the rows that near duplicates would cost a training, where the plan keeps them."""
    near_plan, costs = Plan(drop_duplicates="near", drop_overlap="near"), Report()
    drop_repeated(build_index(dataset, near_plan, costs), dataset, column, near_plan, costs)
    for finding in costs.findings:
        if finding.name == "near_duplicates" and plan.drop_duplicates == "exact":
            report.add(replace(finding, fix="--drop_duplicates near keeps one of each"))
        if finding.name == "near_overlap" and plan.drop_overlap == "exact":
            report.add(replace(finding, fix="--drop_overlap near leaves them out"))


def _find_near(
    frames: dict[str, pd.DataFrame],
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    report_part: Callable[..., None],
) -> pd.Index:
    """Return the rows of the last split that are nearly the same as others, and report them."""
    split, rows = list(frames.items())[-1]
    deduplicate = plan.drop_duplicates == "near" and split == "train"
    held_out = frames if plan.drop_overlap == "near" else {}
    compared = {**held_out, split: _sort_by_time(rows)}
    if len(compared) == 1 and not deduplicate:
        return rows.index[:0]
    name = digests.stored_column(dataset["train"], column)
    texts = [
        dataset[part].select_columns([name]).select(frame["row"])
        for part, frame in compared.items()
    ]
    first = sum(map(len, texts[:-1]))
    matches = near.find_similar(concatenate_datasets(texts), name, first, deduplicate=deduplicate)
    similar = compared[split].assign(match=matches)[matches >= 0].sort_index()
    partners = pd.concat(compared.values()).iloc[similar["match"]].set_index(similar.index)
    for part in compared:
        pairs, counterparts = (frame[partners["split"] == part] for frame in (similar, partners))
        place = "another one" if part == split else f"a row of the {part} data"
        differing = _count_differing(pairs["label"] != counterparts["label"])
        numbers = source_rows(dataset[part], counterparts["row"].to_numpy()[:MOST_SUSPECTS])
        report_part(
            "near_duplicates" if part == split else "near_overlap",
            f"that are nearly the same as {place}{differing}",
            "left out",
            pairs["row"],
            reasons=[f"near-duplicate of row {number} of {part}" for number in numbers],
        )
    return similar.index


def _sort_by_time(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the oldest first, as they are if they have no times."""
    return rows.sort_values("time", kind="stable") if "time" in rows else rows


def _count_differing(differing: pd.Series) -> str:
    return f" ({differing.sum():,} with another label)" if differing.any() else ""
