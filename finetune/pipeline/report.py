"""The report and the model card of a run, written from its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune.errors import RunError, UserError
from finetune.pipeline.events import Finished, Interrupted, Progress
from finetune.runs.run import Run


@dataclass(frozen=True)
class Report:
    """What was written: ``report.html`` with its plots beside it, the model card, and
    ``suspects.csv``, None if no row is suspected.
    """

    page: Path
    card: Path
    suspects: Path | None = None


def report(run: Run | str | Path, *, trust_recipe: bool = False) -> Report:
    """Write the report, the plots and the model card of a run; those that are there are replaced.

    Args:
        run: A run, or its directory.
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.

    Raises:
        UserError: If the training did not end.
    """
    from finetune.pipeline import suspects
    from finetune.reporting import card, page

    run = Run.load(run, trust_recipe=trust_recipe)
    if run.unfinished:
        raise UserError(run.unfinished)
    written = card.write(run)
    return Report(page=page.write(run), card=written, suspects=suspects.of_run(run))


def write_last(run: Run, progress: Progress) -> None:
    """Write the report at the end of a training, which is finished whatever becomes of it.

    Raises:
        RunError: If it cannot be written, with the command that writes it.
    """
    page, hint = None, f"to write it: python -m finetune report {run.path}"
    try:
        page = report(run).page
    except KeyboardInterrupt as stop:
        stop.args = (f"the run is finished, but not its report; {hint}",)
        progress(Interrupted(*stop.args))
        raise
    except Exception as error:  # such as a plot that fails
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"the run is finished, but not its report ({reason}); {hint}") from error
    finally:
        progress(Finished(run, (run.path / "profile").exists(), page))
