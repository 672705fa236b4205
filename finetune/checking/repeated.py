"""Rows that are there more than once: in a split, in several, and with different labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from datasets import Dataset, DatasetDict

from finetune.checking.finding import Finding, Severity, Suspect
from finetune.data import digests, targets
from finetune.data.labels import Places
from finetune.errors import counted

#: The share of a split from which on rows like these are suspicious.
_MUCH = 0.01
_MOST_SUSPECTS = 1000


def findings(dataset: DatasetDict, column: str, places: Places) -> list[Finding]:
    """Return the repeated rows of a source, before it is split.

    Args:
        dataset: Splits with ``id``, ``label`` and ``column``.
        column: Rows with the same value here, white space aside, are the same.
        places: Returns the positions of rows of a split, by their ``id``.
    """
    codes, labels = _codes(dataset, column), _labels(dataset)
    found: list[Finding] = []
    for split, rows in dataset.items():
        own, which = codes[split], labels[split]
        first = np.unique(own, return_index=True)[1]
        repeated = np.ones(len(own), bool)
        repeated[first] = False
        differs = np.zeros(int(own.max(initial=-1)) + 1, bool)
        earliest = np.zeros(len(differs), np.int64)
        earliest[own[first]] = first
        differs[own[which != which[earliest[own]]]] = True
        contradictory = differs[own]
        found += _told(
            "contradictions",
            rows,
            split,
            contradictory,
            f"with the same {column} and different labels",
            "--keep_contradictions first keeps one of each; else all are left out of training"
            if split == "train"
            else "no model can be right on all of them: correct the labels",
            places,
        )
        found += _told(
            "duplicates",
            rows,
            split,
            repeated & ~contradictory,
            "that repeat another one exactly",
            "training leaves them out" if split == "train" else "remove them from the file",
            places,
        )
    for earlier, later in (("test", "validation"), ("test", "train"), ("validation", "train")):
        if earlier in dataset and later in dataset:
            rows = dataset[later]
            shared = np.isin(codes[later], codes[earlier])
            where = "validation" if later == "validation" else "training"
            found += _told(
                "overlap",
                rows,
                later,
                shared,
                f"that are also in the {earlier} data",
                f"{where} leaves them out; a score on {earlier} rows that a model was trained on "
                "elsewhere would be too good",
                places,
            )
    return found


def _codes(dataset: Mapping[str, Dataset], column: str) -> dict[str, np.ndarray]:
    """Return a number for each row, the same for the same value, over all splits."""
    plain = {split: digests.digests(rows, column).plain for split, rows in dataset.items()}
    every = np.concatenate(list(plain.values()))
    codes = np.unique(every.view(f"V{every.shape[1]}").ravel(), return_inverse=True)[1]
    ends = np.cumsum([len(each) for each in plain.values()])[:-1]
    return dict(zip(plain, np.split(codes, ends), strict=True))


def _labels(dataset: Mapping[str, Dataset]) -> dict[str, np.ndarray]:
    """Return a key of the labels of each row; numbers contradict no other."""
    return {split: targets.row_keys(targets.strata(rows)) for split, rows in dataset.items()}


def _told(
    name: str,
    rows: Dataset,
    split: str,
    which: np.ndarray,
    what: str,
    mend: str,
    places: Places,
) -> list[Finding]:
    """Return a finding, none if there are no such rows."""
    numbers = np.flatnonzero(which)
    if not len(numbers):
        return []
    ids = rows.select(numbers[:_MOST_SUSPECTS])["id"][:]
    severity: Severity = "warning" if len(numbers) > _MUCH * len(rows) else "info"
    where = places(split, ids)
    return [
        Finding(
            name=name,
            severity=severity,
            message=f"{len(numbers):,} of {counted(len(rows), f'{split} row')} {what}"
            f"{where and f': {where}'}",
            mend=mend,
            count=len(numbers),
            rows=len(rows),
            suspects=[Suspect(split=split, id=int(each), why=what) for each in ids],
        )
    ]
