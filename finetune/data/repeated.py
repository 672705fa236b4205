"""Rows that occur more than once: in two splits, with different labels, exactly or nearly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from datasets import DatasetDict, concatenate_datasets

from finetune.data import digests, near, targets
from finetune.data.plan import Plan
from finetune.data.row_findings import EXCLUDE, MOST_SUSPECTS, RELABEL, describe_rows, row_numbers
from finetune.data.row_index import build_index
from finetune.errors import Finding, Report, counted


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan
) -> tuple[pd.DataFrame, list[Finding]]:
    """Return the index without leaks, duplicates and contradictions, and what was dropped.

    Validation rows that the test set has are dropped, and training rows that either has. Of
    training rows with the same text and label the first stays, or the oldest. Those with the same
    text and different labels are contradictions: see ``keep_contradictions``. Numbers are no
    classes, and rows of one text that have different numbers stay by default.

    Args:
        index: Of the rows that are looked at; the result has a column ``digest`` more, a code of
            the text or image, white space aside.
        dataset: The source.
        column: What the model reads.
        plan: What to keep, and whether near duplicates are dropped too.

    Returns:
        The index, and findings ``overlap``, ``contradictions``, ``duplicates``, ``near_overlap``
        and ``near_duplicates``, also about held-out rows, which stay.
    """
    index = index.assign(digest=_digest_codes(index, dataset, column))
    index["pair"] = index["digest"] * (index["label"].max() + 1) + index["label"]
    findings: list[Finding] = []
    remaining: dict[str, pd.DataFrame] = {}
    for split in index["split"].cat.categories:
        rows = index[index["split"] == split]
        details: dict[str, Any] = dict(rows=dataset[split], split=str(split), examined=len(rows))
        for earlier, held_out in remaining.items():
            is_leaked = rows["digest"].isin(held_out["digest"])
            differing = is_leaked & ~rows["pair"].isin(held_out["pair"])
            description = f"that are also in the {earlier} data{_other_labels(differing)}"
            positions = rows.loc[is_leaked, "row"].to_numpy()
            findings += describe_rows("overlap", description, "left out", positions, **details)
            rows = rows[~is_leaked]
        rows, more = _drop_duplicates(rows, column, plan, details)
        findings += more
        rows, more = _drop_near(rows, remaining, dataset, column, plan, details)
        findings += more
        remaining[split] = rows
    return pd.concat(remaining.values()).sort_index().drop(columns="pair"), findings


def find_near_duplicates(dataset: DatasetDict, column: str, plan: Plan) -> list[Finding]:
    """Return the rows that near duplicates would cost a training, where the plan keeps them."""
    rules = {"near_duplicates": plan.drop_duplicates, "near_overlap": plan.drop_overlap}
    fixes = {
        "near_duplicates": "--drop_duplicates near keeps one of each",
        "near_overlap": "--drop_overlap near leaves them out",
    }
    near_plan = Plan(drop_duplicates="near", drop_overlap="near")
    index = build_index(dataset, near_plan, Report())
    _, findings = drop_repeated(index, dataset, column, near_plan)
    return [
        dataclasses.replace(finding, fix=fixes[finding.name])
        for finding in findings
        if rules.get(finding.name) == "exact"
    ]


def _digest_codes(index: pd.DataFrame, dataset: DatasetDict, column: str) -> np.ndarray:
    hashes = []
    for split in index["split"].cat.categories:
        numbers = index.loc[index["split"] == split, "row"].to_numpy()
        hashes.append(digests.hash_rows(dataset[split], column, numbers, normalize=True))
    codes = digests.to_arrow(np.concatenate(hashes)).dictionary_encode().indices
    return np.asarray(codes, dtype=np.int64)


def _drop_duplicates(
    rows: pd.DataFrame, column: str, plan: Plan, details: Mapping[str, Any]
) -> tuple[pd.DataFrame, list[Finding]]:
    """Return rows of a split without duplicates and contradictions; those held out all stay."""
    has_classes = targets.are_classes(details["rows"])
    pairs = rows.drop_duplicates("pair")
    is_contradiction = rows["digest"].isin(pairs.loc[pairs["digest"].duplicated(), "digest"])
    keep_first = plan.keep_contradictions == "first"
    keep_numbers = not (has_classes or keep_first)
    ordered = rows.sort_values("time", kind="stable") if "time" in rows else rows
    is_repeated = ordered.duplicated("pair" if keep_numbers else "digest").loc[rows.index]
    is_duplicate = is_repeated & (keep_numbers | ~is_contradiction)
    is_dropped, fix = is_repeated, "left out, one of each is kept"
    if details["split"] != "train":
        is_dropped, fix = pd.Series(False, rows.index), EXCLUDE
        contradictions_fix = f"no model can be right on all of them; {RELABEL}"
    elif keep_numbers:
        contradictions_fix = (
            "all are kept, in the same split; --keep_contradictions first keeps one of each"
        )
    elif keep_first:
        count = int((is_repeated & is_contradiction).sum())
        contradictions_fix = f"the first of each is kept, {count:,} left out"
    else:
        is_dropped = is_repeated | is_contradiction
        contradictions_fix = "left out; --keep_contradictions first keeps one of each"
    texts = counted(rows.loc[is_contradiction, "digest"].nunique(), column.removesuffix("s"))
    kind = "labels" if has_classes else "numbers"
    return rows[~is_dropped], [
        *describe_rows(
            "contradictions",
            f"with the same {column} and different {kind} ({texts})",
            contradictions_fix,
            rows.loc[is_contradiction, "row"].to_numpy(),
            **details,
            severity=None if has_classes else "info",
        ),
        *describe_rows(
            "duplicates",
            "that are exact duplicates",
            fix,
            rows.loc[is_duplicate, "row"].to_numpy(),
            **details,
        ),
    ]


def _drop_near(
    rows: pd.DataFrame,
    held: Mapping[str, pd.DataFrame],
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    details: Mapping[str, Any],
) -> tuple[pd.DataFrame, list[Finding]]:
    """Return rows of a split that are not nearly the same as others, if the plan says so."""
    split = details["split"]
    within = plan.drop_duplicates == "near" and split == "train"
    ordered = rows.sort_values("time", kind="stable") if "time" in rows else rows
    compared = {**(held if plan.drop_overlap == "near" else {}), split: ordered}
    if len(compared) == 1 and not within:
        return rows, []
    name = digests.stored_column(dataset["train"], column)
    texts = [
        dataset[part].select_columns([name]).select(frame["row"].to_numpy())
        for part, frame in compared.items()
    ]
    matches, scores = near.find_similar(
        concatenate_datasets(texts), name, sum(map(len, texts[:-1])), within=within
    )
    similar = ordered.assign(match=matches, score=scores)[matches >= 0].sort_index()
    partners = pd.concat(compared.values()).iloc[similar["match"]].set_index(similar.index)
    findings = []
    for part in compared:
        pairs, counterparts = (frame[partners["split"] == part] for frame in (similar, partners))
        where = "another one" if part == split else f"a row of the {part} data"
        differing = pairs["label"] != counterparts["label"]
        for finding in describe_rows(
            "near_duplicates" if part == split else "near_overlap",
            f"that are nearly the same as {where}{_other_labels(differing)}",
            "left out",
            pairs["row"].to_numpy(),
            **details,
        ):
            numbers = row_numbers(dataset[part], counterparts["row"].to_numpy()[:MOST_SUSPECTS])
            suspects = [
                dataclasses.replace(
                    suspect, reason=f"near-duplicate of row {number} of {part}", score=score
                )
                for suspect, number, score in zip(
                    finding.suspects, numbers, pairs["score"].round(3).tolist(), strict=False
                )
            ]
            findings.append(dataclasses.replace(finding, suspects=suspects))
    return rows.drop(similar.index), findings


def _other_labels(differing: np.ndarray | pd.Series) -> str:
    count = int(differing.sum())
    return f" ({count:,} with another label)" if count else ""
