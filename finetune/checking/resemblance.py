"""Rows that are nearly the same: in a split, in several, and with different labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from datasets import Dataset, DatasetDict

from finetune.checking.finding import EXCLUDE, of_rows
from finetune.data import ROW, digests, near, targets
from finetune.data.near import Part, Resembling
from finetune.data.plan import Plan
from finetune.errors import Finding, Suspect

_SPLITS = ("test", "validation", "train")


def findings(dataset: DatasetDict, column: str, plan: Plan | None = None) -> list[Finding]:
    """Return the rows of a source that are nearly the same as others; exact duplicates are no
    part of it.

    Args:
        dataset: Splits with ``id``, ``label`` and ``column``.
        column: Of the texts.
        plan: How the rows are split: what is left out then is no longer suspicious.
    """
    plan = plan or Plan()
    found: list[Finding] = []
    held: list[tuple[str, Part]] = []
    for split in [each for each in _SPLITS if each in dataset]:
        rows = dataset[split]
        own = Part(rows, _first_of_each(rows, [part.rows for _, part in held], column))
        like = near.resembling([part for _, part in held], own, column, within=True)
        found += _of_split(like, held, split, own, plan)
        held.append((split, own))
    return found


def _first_of_each(rows: Dataset, others: list[Dataset], column: str) -> np.ndarray:
    """Return the numbers of the rows that repeat none before them, nor any of others, exactly."""
    hashes = digests.packed(digests.digests(rows, column).plain)
    codes = hashes.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    first = np.zeros(len(rows), bool)
    first[np.unique(codes, return_index=True)[1]] = True
    for each in others:
        first &= ~digests.seen_in(rows, each, column)
    return np.flatnonzero(first)


def _of_split(
    like: Resembling,
    held: list[tuple[str, Part]],
    split: str,
    own: Part,
    plan: Plan,
) -> list[Finding]:
    """Return what there is to say of a split whose rows resemble earlier ones."""
    found: list[Finding] = []
    tell = partial(of_rows, rows=own.rows, split=split)
    begin = 0
    for name, part in [*held, (split, own)]:
        which = np.flatnonzero((like.row >= begin) & (like.row < begin + len(part.numbers)))
        theirs = part.numbers[like.row[which] - begin]
        begin += len(part.numbers)
        mine = own.numbers[which]
        differ = int((_labels(own.rows, mine) != _labels(part.rows, theirs)).sum())
        labels = f" ({differ:,} of them with another label)" if differ else ""
        if name == split:
            kind, what = "near_duplicates", "another one"
            flag, does = "--drop_duplicates near", "keeps one of each"
            is_left_out = plan.drop_duplicates == "near" and split == "train"
        else:
            kind, what = "near_overlap", f"a row of the {name} data"
            flag, does = "--drop_overlap near", "leaves them out"
            is_left_out = plan.drop_overlap == "near"
        fix = f"left out by {flag}" if is_left_out else f"{flag} {does}"
        told = tell(
            kind,
            f"that are nearly the same as {what}{labels}",
            EXCLUDE if name == split != "train" else fix,
            mine,
            severity="info" if is_left_out else None,
        )
        found += [
            replace(each, suspects=_suspects(each, part, name, theirs, like.similarity[which]))
            for each in told
        ]
    return found


def _suspects(
    finding: Finding, part: Part, split: str, theirs: np.ndarray, similarity: np.ndarray
) -> list[Suspect]:
    """Return the suspects of a finding with the row that each resembles, and how much."""
    ids = part.rows.select(theirs[: len(finding.suspects)])[ROW][:]
    return [
        replace(
            each, reason=f"near-duplicate of row {other} of {split}", score=round(float(score), 3)
        )
        for each, other, score in zip(finding.suspects, ids, similarity, strict=False)
    ]


def _labels(rows: Dataset, numbers: np.ndarray) -> np.ndarray:
    return targets.row_keys(targets.strata(rows)[numbers])
