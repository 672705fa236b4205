"""A finding: one thing that is wrong or suspicious in the data, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from finetune.errors import counted

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.data.labels import Places

#: From the worst: training refuses, something is suspicious, something is worth knowing.
Severity = Literal["error", "warning", "info"]
SEVERITIES: Sequence[Severity] = ("error", "warning", "info")
#: The exit status of ``check`` for the worst finding.
STATUS: dict[Severity, int] = {"error": 2, "warning": 3, "info": 0}
#: The share of the rows from which on something that is usual in a few of them is suspicious.
MUCH = 0.01
#: Rows that a finding hands on as suspects.
MOST_SUSPECTS = 1000
#: What mends findings about rows: ``check`` writes the rows, a training takes the file back.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A row that a finding is about.

    Attributes:
        split: The split of the source that the row is in.
        id: Its number there, from 0.
        why: The reason in a few words: ``near-duplicate of id 17 of test``.
        suggested: The label that it probably has; None where nothing is suggested.
        score: How suspicious it is, from 0 to 1, where there is such a number.
    """

    split: str
    id: int
    why: str
    suggested: str | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: What kind of thing, for machines: ``near_duplicates``.
        severity: Whether training refuses it, or it is suspicious, or only worth knowing.
        message: One sentence with numbers, split and column, and where the first few rows are.
        mend: The flag or the edit that mends it; empty where nothing does.
        count: How many rows it concerns, of ``rows``.
        rows: How many rows were looked at.
        suspects: The rows for ``suspects.csv``, the worst first; may be fewer than ``count``.
    """

    name: str
    severity: Severity
    message: str
    mend: str = ""
    count: int = 0
    rows: int = 0
    suspects: Sequence[Suspect] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """All but the suspects, for a file."""
        return {name: value for name, value in vars(self).items() if name != "suspects"}

    @property
    def sentence(self) -> str:
        """The message, and what mends it."""
        return f"{self.message}; {self.mend}" if self.mend else self.message


def of_rows(
    name: str,
    what: str,
    mend: str,
    numbers: np.ndarray,
    *,
    rows: Dataset,
    split: str,
    places: Places,
    looked_at: int | None = None,
    severity: Severity | None = None,
) -> list[Finding]:
    """Return a finding of some rows of a split, none if there are no such rows.

    Args:
        name: See :class:`Finding`.
        what: What the rows are, to follow "3 of 100 train rows".
        mend: See :class:`Finding`.
        numbers: Of the rows, sorted.
        rows: The split, with ``id``.
        split: Its name in the source.
        places: Returns the positions of rows of a split, by their ``id``.
        looked_at: How many rows, if not all.
        severity: None for a warning where they are more than :data:`MUCH` of the rows.
    """
    if not len(numbers):
        return []
    of = len(rows) if looked_at is None else looked_at
    ids = rows.select(numbers[:MOST_SUSPECTS])["id"][:]
    drawn = f" looked at, of {len(rows):,}" if of < len(rows) else ""
    where = places(split, ids)
    return [
        Finding(
            name=name,
            severity=severity or ("warning" if len(numbers) > MUCH * of else "info"),
            message=f"{len(numbers):,} of {counted(of, f'{split} row')}{drawn} {what}"
            f"{where and f': {where}'}",
            mend=mend,
            count=len(numbers),
            rows=of,
            suspects=[Suspect(split=split, id=int(each), why=what) for each in ids],
        )
    ]


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: that of the worst finding, 0 without any."""
    worst = min((SEVERITIES.index(each.severity) for each in findings), default=2)
    return STATUS[SEVERITIES[worst]]
