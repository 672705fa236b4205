"""Rows that occur more than once, exactly or nearly: within a split, across splits, contradicting
each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import DatasetDict

from finetune.checking.findings import EXCLUDE, RELABEL, describe_rows, row_numbers
from finetune.data import arrow, digests, near, targets
from finetune.errors import Finding, Severity

#: A row of a later split that an earlier one has too is left out of the later one.
_SPLITS = ("test", "validation", "train")


def find_repeated_rows(source: DatasetDict, column: str) -> list[Finding]:
    """Return the rows of a source that repeat others exactly, before any is left out.

    Args:
        source: Splits with ``_row``, ``label`` and ``column``.
        column: Rows with the same value here, whitespace aside, are the same.
    """
    index = _index_rows(source, column)
    has_classes = targets.are_classes(source["train"])
    findings = []
    for split in source:
        rows = index[split]
        is_contradiction = rows.groupby("value")["label"].transform("nunique").to_numpy() > 1
        severity: Severity | None = None
        if not has_classes:  # ratings of one text may differ
            fix, severity = "all are kept, in the same split", "info"
        elif split == "train":
            fix = "--keep_contradictions first keeps one of each; else training leaves all out"
        else:
            fix = f"no model can be right on all of them; {RELABEL}"
        findings += describe_rows(
            "contradictions",
            f"with the same {column} and different labels",
            fix,
            np.flatnonzero(is_contradiction),
            source[split],
            split,
            severity=severity,
        )
        is_repeated = rows.duplicated(["value", "label"]).to_numpy()
        findings += describe_rows(
            "duplicates",
            "that repeat another one exactly",
            "training keeps one of each" if split == "train" else EXCLUDE,
            np.flatnonzero(is_repeated & ~(is_contradiction & has_classes)),
            source[split],
            split,
        )
    for earlier, later in itertools.combinations([s for s in _SPLITS if s in source], 2):
        is_held_out = index[later]["value"].isin(index[earlier]["value"]).to_numpy()
        findings += describe_rows(
            "overlap",
            f"that are also in the {earlier} data",
            f"{'training' if later == 'train' else later} leaves them out",
            np.flatnonzero(is_held_out),
            source[later],
            later,
        )
    return findings


def find_near_duplicates(
    source: DatasetDict, column: str, left_out: Collection[str] = ()
) -> list[Finding]:
    """Return the rows of a source that are nearly the same as others, without exact duplicates.

    Args:
        source: Splits with ``_row``, ``label`` and ``column``.
        column: Of the texts.
        left_out: The names of findings whose training rows are left out, and so are no problem.
    """
    index = _index_rows(source, column)
    earlier: set[int] = set()
    parts: dict[str, near.Part] = {}
    findings = []
    for split in [name for name in _SPLITS if name in source]:
        values = index[split]["value"]
        is_first = ~(values.duplicated() | values.isin(earlier)).to_numpy()
        earlier |= {*values}
        part = near.Part(source[split], np.flatnonzero(is_first))
        similar = near.resembling([*parts.values()], part, column, within=True)
        parts[split] = part
        begin = 0
        for other, other_part in parts.items():
            end = begin + len(other_part.numbers)
            matches = np.flatnonzero((similar.row >= begin) & (similar.row < end))
            positions = part.numbers[matches]
            others = other_part.numbers[similar.row[matches] - begin]
            begin = end
            labels = index[split]["label"].to_numpy()[positions]
            differ = int((labels != index[other]["label"].to_numpy()[others]).sum())
            findings += [
                replace(
                    finding,
                    suspects=[
                        replace(
                            suspect,
                            reason=f"near-duplicate of row {number} of {other}",
                            score=round(float(score), 3),
                        )
                        for suspect, number, score in zip(
                            finding.suspects,
                            row_numbers(source[other], others[: len(finding.suspects)]),
                            similar.similarity[matches],
                            strict=False,
                        )
                    ],
                )
                for finding in _describe_similar(source, split, other, positions, differ, left_out)
            ]
    return findings


def _describe_similar(
    source: DatasetDict,
    split: str,
    other: str,
    positions: np.ndarray,
    differ: int,
    left_out: Collection[str],
) -> list[Finding]:
    """Return the finding about rows of a split that are nearly the same as rows of another."""
    if split == other:
        name, what = "near_duplicates", "another one"
        fix = "--drop_duplicates near keeps one of each" if split == "train" else EXCLUDE
    else:
        name, what = "near_overlap", f"a row of the {other} data"
        fix = "--drop_overlap near leaves them out"
    is_left_out = name in left_out and (split == "train" or name == "near_overlap")
    labels = f" ({differ:,} of them with another label)" if differ else ""
    return describe_rows(
        name,
        f"that are nearly the same as {what}{labels}",
        "left out of training" if is_left_out else fix,
        positions,
        source[split],
        split,
        severity="info" if is_left_out else None,
    )


def _index_rows(source: DatasetDict, column: str) -> dict[str, pd.DataFrame]:
    """Return by split numbers that are equal where ``value`` or ``label`` are equal."""
    frames = {}
    for split in [name for name in _SPLITS if name in source]:
        labels = arrow.column(source[split], "label").to_pylist()
        hashes = np.ascontiguousarray(digests.digests(source[split], column).plain)
        size = hashes.shape[1]
        values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(size), len(hashes), [None, pa.py_buffer(hashes)]
        )
        frames[split] = pd.DataFrame(
            {
                "value": values.to_pandas(),
                "label": [tuple(label) if isinstance(label, list) else label for label in labels],
            }
        )
    index = pd.concat(frames.values(), keys=range(len(frames)))
    for name in index:
        index[name] = pd.factorize(index[name])[0]
    return {split: index.loc[[number]] for number, split in enumerate(frames)}
