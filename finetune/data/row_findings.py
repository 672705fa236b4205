"""Findings about rows of a split of the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from datasets import Dataset

from finetune.data.targets import source_rows
from finetune.errors import Finding, Report, Severity, Suspect, counted

#: The share of the rows above which something that is normal in a few of them is suspicious.
_SUSPICIOUS_SHARE = 0.01
#: Rows that a finding lists as suspects.
MOST_SUSPECTS = 1000
#: What to do about rows: ``check`` writes them to a file, which a training takes.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


def report_rows(
    report: Report,
    name: str,
    description: str,
    fix: str,
    positions: np.ndarray | pd.Series,
    rows: Dataset,
    split: str,
    *,
    examined: int | None = None,
    severity: Severity | None = None,
    reasons: Sequence[str] = (),
    suggestions: tuple[Sequence[str], Sequence[float]] | tuple[()] = (),
) -> None:
    """Report the rows of a split at some positions; nothing if there are no such rows.

    ``description`` follows "3 of 100 train rows". The severity is "warning" by default if the rows
    are more than 1% of those ``examined``, by default all; else "info". ``reasons`` say why each
    row is a suspect, ``suggestions`` which labels they should have and how surely. The others are
    attributes of the finding.
    """
    count, total = len(positions), len(rows) if examined is None else examined
    if not count:
        return
    sampled = f" looked at (of {len(rows):,})" if total < len(rows) else ""
    numbers = source_rows(rows)[np.asarray(positions)[:MOST_SUSPECTS]].tolist()
    reasons = reasons or [description] * len(numbers)
    report.add(
        Finding(
            name=name,
            severity=severity or ("warning" if count > _SUSPICIOUS_SHARE * total else "info"),
            message=f"{count:,} of {counted(total, f'{split} row')}{sampled} {description}",
            fix=fix,
            split=split,
            rows=numbers,
            count=count,
            examined=total,
            suspects=[*map(Suspect, numbers, reasons, *suggestions)],
        )
    )


def refuse_or_drop(
    report: Report, message: str, split: str, rows: Sequence[int], fix: str, *, drop: bool
) -> None:
    """Report rows of a split that cannot be used: an error, or a warning if they are dropped."""
    if drop:
        report.warning(f"dropped {message}", "dropped_rows", split=split, rows=rows)
    else:
        report.error(message, split=split, rows=rows, fix=fix)
