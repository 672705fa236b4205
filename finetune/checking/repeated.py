"""Rows that are there more than once: in a split, in several, and with different labels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from datasets import DatasetDict

from finetune.checking.finding import EXCLUDE, RELABEL, of_rows
from finetune.data import digests, targets
from finetune.errors import Finding


def findings(dataset: DatasetDict, column: str) -> list[Finding]:
    """Return the repeated rows of a source, before it is split.

    Args:
        dataset: Splits with ``id``, ``label`` and ``column``.
        column: Rows with the same value here, white space aside, are the same.
    """
    found: list[Finding] = []
    nearly = also = ""
    if column == "text":
        nearly = "; --drop_duplicates near leaves out near-duplicates too"
        also = "; --drop_overlap near leaves out near-duplicates too"
    for split, rows in dataset.items():
        tell = partial(of_rows, rows=rows, split=split)
        hashes = digests.packed(digests.digests(rows, column).plain)
        labels = np.unique(targets.row_keys(targets.strata(rows)), return_inverse=True)[1]
        index = pd.DataFrame({"digest": hashes.dictionary_encode().indices, "label": labels})
        is_contradictory = index.groupby("digest")["label"].transform("nunique") > 1
        found += tell(
            "contradictions",
            f"with the same {column} and different labels",
            "--keep_contradictions first keeps one of each; else all are left out of training"
            if split == "train"
            else f"no model can be right on all of them; {RELABEL}",
            np.flatnonzero(is_contradictory),
        )
        found += tell(
            "duplicates",
            "that repeat another one exactly",
            f"training keeps one of each{nearly}" if split == "train" else EXCLUDE,
            np.flatnonzero(index.duplicated("digest") & ~is_contradictory),
        )
    for earlier, later in (("test", "validation"), ("test", "train"), ("validation", "train")):
        if earlier in dataset and later in dataset:
            where = "validation" if later == "validation" else "training"
            found += of_rows(
                "overlap",
                f"that are also in the {earlier} data",
                f"{where} leaves them out{also}",
                np.flatnonzero(digests.seen_in(dataset[later], dataset[earlier], column)),
                rows=dataset[later],
                split=later,
            )
    return found
