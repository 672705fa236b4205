"""Findings about rows, and the exit status of ``check``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from finetune.data import ROW
from finetune.errors import SEVERITIES, Finding, Severity, Suspect, counted

if TYPE_CHECKING:
    from datasets import Dataset

#: The exit status of ``check`` for the worst finding.
STATUS: dict[Severity, int] = {"error": 2, "warning": 3, "info": 0}
#: The share of the rows from which on something that is usual in a few of them is suspicious.
MUCH = 0.01
#: Rows that a finding hands on as suspects.
MOST_SUSPECTS = 1000
#: What mends findings about rows: ``check`` writes the rows, a training takes the file back.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


def of_rows(
    name: str,
    what: str,
    fix: str,
    numbers: np.ndarray,
    *,
    rows: Dataset,
    split: str,
    examined: int | None = None,
    severity: Severity | None = None,
) -> list[Finding]:
    """Return a finding of some rows of a split, none if there are no such rows.

    Args:
        name: See :class:`Finding`.
        what: What the rows are, to follow "3 of 100 train rows".
        fix: See :class:`Finding`.
        numbers: Of the rows, sorted.
        rows: The split, with the column ``_row``.
        split: Its name in the source.
        examined: How many rows, if not all.
        severity: None for a warning where they are more than :data:`MUCH` of the rows.
    """
    if not len(numbers):
        return []
    total = len(rows) if examined is None else examined
    row_numbers = rows.select(numbers[:MOST_SUSPECTS])[ROW][:]
    sampled = f" looked at, of {len(rows):,}" if total < len(rows) else ""
    return [
        Finding(
            name=name,
            severity=severity or ("warning" if len(numbers) > MUCH * total else "info"),
            message=f"{len(numbers):,} of {counted(total, f'{split} row')}{sampled} {what}",
            fix=fix,
            split=split,
            rows=row_numbers,
            count=len(numbers),
            examined=total,
            suspects=[Suspect(row=row, reason=what) for row in row_numbers],
        )
    ]


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: that of the worst finding, 0 without any."""
    worst = min((SEVERITIES.index(finding.severity) for finding in findings), default=2)
    return STATUS[SEVERITIES[worst]]
