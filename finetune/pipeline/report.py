"""The report and the model card of a run, written from its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune.errors import RunError, UserError
from finetune.pipeline.events import Finished, Interrupted, Progress
from finetune.runs.run import Run
from finetune.runtime import files


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
    path, command = None, f"python -m finetune report {run.path}"
    try:
        path = report(run).page
    except KeyboardInterrupt as stop:
        stop.args = (f"the run is finished, but not its report; to write it: {command}",)
        progress(Interrupted(*stop.args))
        raise
    except Exception as error:  # such as a plot that fails
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and files.is_full(error):
            reason = f"the disk of {run.path} is full; free some space"
        raise RunError(
            f"the run is finished and saved, but not its report: {reason}. To write it: {command}"
        ) from error
    finally:
        progress(Finished(run, (run.path / "profile").exists(), path))
