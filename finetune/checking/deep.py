"""What ``check --deep`` looks for: rows that resemble rows, and labels against words."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import ClassLabel, DatasetDict, Value

from finetune.checking import languages, leaks, noise, resemblance, score
from finetune.checking.bag import Bag
from finetune.data.plan import Plan
from finetune.errors import Finding
from finetune.runtime import activity

#: Training rows below which nothing is known of words.
_FEWEST = 100


def findings(
    source: DatasetDict,
    splits: DatasetDict,
    *,
    column: str,
    read: Sequence[str],
    plan: Plan,
) -> list[Finding]:
    """Return what is suspicious in texts and their labels.

    Args:
        source: The splits as they were read, with ``id``, ``label`` and ``column``.
        splits: Training, validation and test rows made of it.
        column: Of the texts.
        read: The columns of the data that the model reads.
        plan: How the rows were split.
    """
    rows = splits["train"]
    feature = rows.features[column]
    if not (isinstance(feature, Value) and feature.dtype in ("string", "large_string")):
        return [_nothing("--deep looks at texts, and this recipe reads none")]
    found = [
        *resemblance.findings(source, column, plan),
        *languages.findings(splits, column),
    ]
    if not isinstance(rows.features["label"], ClassLabel):
        return [
            *found,
            _nothing(
                "--deep looks at labels of which a row has one class; here it "
                "looked for near duplicates and languages only"
            ),
        ]
    if len(rows) < _FEWEST:
        return [
            *found,
            _nothing(
                f"--deep looks at labels of {_FEWEST} training rows or more; here "
                "it looked for near duplicates and languages only"
            ),
        ]
    bag = Bag(splits, column)
    activity.say("looking at words and labels")
    return [
        *found,
        *leaks.findings(bag, read),
        *score.findings(bag, is_split_off="test" not in source),
        *noise.findings(bag),
    ]


def _nothing(message: str) -> Finding:
    return Finding(name="deep", severity="info", message=message)
