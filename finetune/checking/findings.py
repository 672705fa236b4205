"""Findings about rows: how one is made, and the exit status of ``check``."""

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
#: The share of the rows above which something that is normal in a few of them is suspicious.
SUSPICIOUS_SHARE = 0.01
#: Rows that a finding lists as suspects.
MOST_SUSPECTS = 1000
#: What to do about rows: ``check`` writes them to a file, which a training takes.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


def describe_rows(
    name: str,
    description: str,
    fix: str,
    positions: np.ndarray,
    rows: Dataset,
    split: str,
    *,
    examined: int | None = None,
    severity: Severity | None = None,
) -> list[Finding]:
    """Return a finding about some rows of a split, none if there are no such rows.

    Args:
        name: See :class:`~finetune.errors.Finding`.
        description: What the rows have in common, to follow "3 of 100 train rows".
        fix: See :class:`~finetune.errors.Finding`.
        positions: Of the rows in ``rows``, sorted.
        rows: The split, with the column ``_row``.
        split: Its name in the source.
        examined: How many rows were looked at, if not all.
        severity: None for a warning if they are more than :data:`SUSPICIOUS_SHARE` of the rows.
    """
    if not len(positions):
        return []
    total = len(rows) if examined is None else examined
    sampled = f" looked at, of {len(rows):,}" if total < len(rows) else ""
    is_common = len(positions) > SUSPICIOUS_SHARE * total
    numbers = row_numbers(rows, positions[:MOST_SUSPECTS])
    subject = f"{len(positions):,} of {counted(total, f'{split} row')}{sampled}"
    return [
        Finding(
            name=name,
            severity=severity or ("warning" if is_common else "info"),
            message=f"{subject} {description}",
            fix=fix,
            split=split,
            rows=numbers,
            count=len(positions),
            examined=total,
            suspects=[Suspect(row=number, reason=description) for number in numbers],
        )
    ]


def row_numbers(rows: Dataset, positions: np.ndarray) -> list[int]:
    """Return the row numbers in the source of the rows at some positions."""
    return [int(number) for number in rows.select_columns([ROW]).select(positions)[ROW][:]]


def exit_status(findings: Sequence[Finding]) -> int:
    """Return the exit status of the worst finding, 0 without any."""
    worst = min((SEVERITIES.index(finding.severity) for finding in findings), default=2)
    return STATUS[SEVERITIES[worst]]
