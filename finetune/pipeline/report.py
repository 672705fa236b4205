"""The report and the model card of a run, regenerated from its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune.runs.run import Run


@dataclass(frozen=True)
class Report:
    """What was written: ``report.html`` with its plots beside it, and the model card."""

    page: Path
    card: Path


def report(run: Run | str | Path) -> Report:
    """Write the report, the plots and the model card of a run; those that are there are replaced.

    Raises:
        UserError: if the run has no statistics.
    """
    from finetune.reporting import card, page

    run = Run.load(run)
    return Report(page=page.write(run), card=card.write(run))
