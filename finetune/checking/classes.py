"""Classes that a model hardly sees, or that cannot be measured."""

from __future__ import annotations

import numpy as np
from datasets import Dataset, DatasetDict
from scipy.stats import chi2_contingency

from finetune.data import targets
from finetune.data.label_columns import list_names
from finetune.errors import Finding, counted

#: The share of the rows from which on a class drowns all others.
_DOMINANT = 0.9
#: Training rows below which a class is hardly learned, and test rows below which not measured.
_FEWEST = 10
#: Total variation between the shares of classes of two splits from which on they are not the same,
#: if chance makes it so at most this often.
_SHIFTED, _BY_CHANCE = 0.1, 0.001
_SHOWN = 5


def counts(rows: Dataset) -> np.ndarray:
    """Return how many rows have each class, shape ``(classes,)``; empty of numbers."""
    names = targets.class_names(rows)
    found = targets.counts(rows) if names else {}
    return np.array([found.get(number, 0) for number in range(len(names))], dtype=np.int64)


def findings(dataset: DatasetDict) -> list[Finding]:
    """Return what is suspicious in the classes of the splits.

    Args:
        dataset: Splits with ``label``, after rows were split off; numbers have no classes.
    """
    rows, names = dataset["train"], targets.class_names(dataset["train"])
    if not names:
        return []
    found, many, are_sets = [], counts(rows), targets.is_set(rows)
    most = int(many.argmax())
    if many[most] > _DOMINANT * len(rows):
        whose = "have the label" if are_sets else "are of the class"
        worth = "gives it is hardly ever wrong" if are_sets else "says so has that accuracy"
        found.append(
            Finding(
                name="imbalance",
                severity="warning",
                message=f"{many[most] / len(rows):.1%} of the training rows {whose} "
                f"'{names[most]}': a model that always {worth}",
                fix="leave the label out, or add rows without it"
                if are_sets
                else "--class_weights balanced, and --metrics f1_macro,average_precision",
                count=int(many[most]),
                examined=len(rows),
            )
        )
    noun = "label" if are_sets else "class"
    few = np.flatnonzero((many > 0) & (many < _FEWEST)).tolist()
    if few:
        fewest = sorted(few, key=lambda number: many[number])[:_SHOWN]
        shown = ", ".join(f"'{names[number]}' ({many[number]})" for number in fewest)
        found.append(
            Finding(
                name="few_rows_of_a_class",
                severity="warning",
                message=f"{counted(len(few), noun)} with fewer than {_FEWEST} training rows: "
                f"{shown}{', ...' * (len(few) > _SHOWN)}",
                fix="add rows, or merge them: --label_map OLD=NEW",
                count=int(many[few].sum()),
                examined=len(rows),
            )
        )
    tested = counts(dataset["test"])
    absent = np.flatnonzero((many > 1) & (tested == 0)).tolist()
    if absent:
        found.append(
            Finding(
                name="not_in_test",
                severity="warning",
                message=f"{counted(len(absent), noun)} of the training rows without a test row: "
                f"{list_names([names[number] for number in absent])}; nothing is known of how well "
                f"{'it is' if len(absent) == 1 else 'they are'} recognised",
                fix=f"add test rows of {'it' if len(absent) == 1 else 'them'}, or merge "
                f"{'the class' if len(absent) == 1 else 'the classes'}: --label_map OLD=NEW",
                count=int(many[absent].sum()),
                examined=len(rows),
            )
        )
    return found


def shifts(source: DatasetDict) -> list[Finding]:
    """Return the given validation and test splits whose classes have other shares than those of
    training.

    Args:
        source: The splits as they were read, with ``label``.
    """
    found, trained = [], counts(source["train"])
    for split in ("validation", "test"):
        if split not in source or trained.sum() == 0 or targets.is_set(source[split]):
            continue
        there = counts(source[split])
        shares, usual = there / max(1, there.sum()), trained / trained.sum()
        seen = (trained + there) > 0
        if (
            seen.sum() < 2
            or np.abs(shares - usual).sum() / 2 < _SHIFTED
            or chi2_contingency(np.stack([trained, there])[:, seen]).pvalue > _BY_CHANCE
        ):
            continue
        names, most = targets.class_names(source["train"]), int(np.abs(shares - usual).argmax())
        found.append(
            Finding(
                name="shift",
                severity="warning",
                message=f"the classes of the {split} data have other shares than in training: "
                f"'{names[most]}' has {shares[most]:.1%} and {usual[most]:.1%} there",
                fix=f"is the file what it should be? --dataset_splits {split}=none leaves it "
                "out and splits off rows with the same shares",
                count=int(there.sum()),
                examined=int(there.sum()),
            )
        )
    return found
