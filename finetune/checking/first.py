"""What every training looks for in its rows, in seconds; ``check`` tells it before."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import DatasetDict

from finetune.checking import classes, numbers, texts
from finetune.checking.finding import Finding
from finetune.data.labels import Places


def findings(
    source: DatasetDict,
    splits: DatasetDict,
    columns: Sequence[str],
    places: Places,
    names: Sequence[str] = ("label",),
) -> list[Finding]:
    """Return what is suspicious, besides what splitting the rows tells by itself.

    Args:
        source: The splits as they were read, with ``id``, ``label`` and what the model reads.
        splits: Training, validation and test rows made of it.
        columns: The columns of the data that the model reads.
        places: Returns the positions of rows of a split of the source, by their ``id``.
        names: Of the targets that are numbers.
    """
    found = [
        finding
        for split, rows in source.items()
        for finding in (
            *texts.findings(rows, split, columns, places),
            *numbers.findings(rows, split, names, places),
        )
    ]
    return [*found, *classes.findings(splits), *classes.shifts(source)]


def told(found: Sequence[Finding]) -> list[str]:
    """Return what of the findings every training tells."""
    return [each.sentence for each in found if each.severity == "warning"]
