"""Rows that occur more than once: in two splits, with different labels, exactly or nearly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import DatasetDict, concatenate_datasets

from finetune.data import digests, near, targets
from finetune.data.row_findings import EXCLUDE, MOST_SUSPECTS, RELABEL, describe_rows, row_numbers
from finetune.data.row_index import Plan, build_index, sort_by_time
from finetune.errors import Finding, Report, counted

Describe = Callable[..., list[Finding]]


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan
) -> tuple[pd.DataFrame, list[Finding]]:
    """Return the index without leaks, duplicates and contradictions, and findings about them.

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
    findings: list[Finding] = []
    remaining: dict[str, pd.DataFrame] = {}
    for split in splits:
        rows = index[index["split"] == split]
        describe = partial(describe_rows, rows=dataset[split], split=split, examined=len(rows))
        for earlier, held_out in remaining.items():
            is_leaked = rows["digest"].isin(held_out["digest"])
            differing = is_leaked & ~rows["pair"].isin(held_out["pair"])
            description = f"that are also in the {earlier} data{_other_labels(differing)}"
            findings += describe("overlap", description, "left out", rows["row"][is_leaked])
            rows = rows[~is_leaked]
        has_classes = targets.are_classes(dataset[split])
        is_dropped, repeats = _find_repeats(rows, split, column, has_classes, plan, describe)
        rows = rows[~is_dropped]
        rows, similar = _drop_near(rows, split, remaining, dataset, column, plan, describe)
        findings += repeats + similar
        remaining[split] = rows
    return pd.concat(remaining.values()).sort_index().drop(columns="pair"), findings


def find_near_duplicates(dataset: DatasetDict, column: str, plan: Plan) -> list[Finding]:
    """Return the rows that near duplicates would cost a training, where the plan keeps them."""
    fixes = {}
    if plan.drop_duplicates == "exact":
        fixes["near_duplicates"] = "--drop_duplicates near keeps one of each"
    if plan.drop_overlap == "exact":
        fixes["near_overlap"] = "--drop_overlap near leaves them out"
    near_plan = Plan(drop_duplicates="near", drop_overlap="near")
    index = build_index(dataset, near_plan, Report())
    _, findings = drop_repeated(index, dataset, column, near_plan)
    return [
        dataclasses.replace(finding, fix=fixes[finding.name])
        for finding in findings
        if finding.name in fixes
    ]


def _find_repeats(
    rows: pd.DataFrame, split: str, column: str, has_classes: bool, plan: Plan, describe: Describe
) -> tuple[pd.Series, list[Finding]]:
    """Return which rows of a split are dropped, and findings about those that are repeated."""
    pairs = rows.groupby("digest")["pair"]
    is_contradiction = pairs.transform("min") != pairs.transform("max")
    keep_first = plan.keep_contradictions == "first"
    keep_all = not (has_classes or keep_first)
    is_repeated = sort_by_time(rows).duplicated("pair" if keep_all else "digest")[rows.index]
    is_dropped = is_repeated if keep_all or keep_first else is_repeated | is_contradiction
    duplicates_fix = "left out, one of each is kept"
    if split != "train":
        is_dropped = is_dropped & False
        duplicates_fix, fix = EXCLUDE, f"no model can be right on all of them; {RELABEL}"
    elif keep_first:
        count = int((is_repeated & is_contradiction).sum())
        fix = f"the first of each is kept, {count:,} left out"
    else:
        verb = "all are kept, in the same split" if keep_all else "left out"
        fix = f"{verb}; --keep_contradictions first keeps one of each"
    texts = counted(rows["digest"][is_contradiction].nunique(), column.removesuffix("s"))
    kind, severity = ("labels", None) if has_classes else ("numbers", "info")
    description = f"with the same {column} and different {kind} ({texts})"
    positions = rows["row"][is_contradiction]
    findings = describe("contradictions", description, fix, positions, severity=severity)
    positions = rows["row"][is_repeated & (keep_all | ~is_contradiction)]
    findings += describe("duplicates", "that are exact duplicates", duplicates_fix, positions)
    return is_dropped, findings


def _drop_near(
    rows: pd.DataFrame,
    split: str,
    held_out: dict[str, pd.DataFrame],
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    describe: Describe,
) -> tuple[pd.DataFrame, list[Finding]]:
    """Return rows of a split that are not nearly the same as others, if the plan says so."""
    deduplicate = plan.drop_duplicates == "near" and split == "train"
    compared = {**(held_out if plan.drop_overlap == "near" else {}), split: sort_by_time(rows)}
    if len(compared) == 1 and not deduplicate:
        return rows, []
    name = digests.stored_column(dataset["train"], column)
    texts = [
        dataset[part].select_columns([name]).select(frame["row"])
        for part, frame in compared.items()
    ]
    first = sum(map(len, texts[:-1]))
    matches = near.find_similar(concatenate_datasets(texts), name, first, deduplicate=deduplicate)
    similar = compared[split].assign(match=matches)[matches >= 0].sort_index()
    partners = pd.concat(compared.values()).iloc[similar["match"]].set_index(similar.index)
    findings = []
    for part in compared:
        pairs, counterparts = (frame[partners["split"] == part] for frame in (similar, partners))
        place = "another one" if part == split else f"a row of the {part} data"
        differing = _other_labels(pairs["label"] != counterparts["label"])
        numbers = row_numbers(dataset[part], counterparts["row"].to_numpy()[:MOST_SUSPECTS])
        findings += describe(
            "near_duplicates" if part == split else "near_overlap",
            f"that are nearly the same as {place}{differing}",
            "left out",
            pairs["row"],
            reasons=[f"near-duplicate of row {number} of {part}" for number in numbers],
        )
    return rows.drop(similar.index), findings


def _other_labels(differing: pd.Series) -> str:
    return f" ({differing.sum():,} with another label)" if differing.any() else ""
