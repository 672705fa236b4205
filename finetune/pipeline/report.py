"""``report``: write the report, the model card and the suspicious rows of a run again."""

from dataclasses import dataclass
from pathlib import Path

from finetune.checking import suspects
from finetune.data.targets import MAX_SUSPECTS
from finetune.errors import RunError, UserError
from finetune.pipeline import events
from finetune.recipe.run import Run
from finetune.reporting import card
from finetune.reporting import page as report_page


@dataclass(frozen=True)
class Report:
    """The files that :func:`report` has written."""

    page: Path  # ``report.html``, with its plots in the folder ``plots``
    card: Path  # the model card, ``README.md``
    suspects: Path | None = None  # ``suspects.csv``; None if no row is suspicious


def report(run: Run | str | Path, *, trust_recipe: bool = False) -> Report:
    """Write the report, the plots and the model card of a run; existing files are replaced.

    Args:
        run: A run, or its directory.
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.

    Returns:
        The paths of the files.

    Raises:
        UserError: If the training is not finished.
    """
    run = Run.load(run, trust_recipe=trust_recipe)
    if run.unfinished:
        raise UserError(run.unfinished)
    card_path = card.write(run)  # first, because a plot may fail
    return Report(page=report_page.write(run), card=card_path, suspects=_write_suspects(run))


def _write_suspects(run: Run) -> Path | None:
    """Write what is suspicious in test rows, and return the path; None if there is nothing, or if
    the task has neither one class a row nor entities. A file that the user has edited is kept.
    """
    path = run.path / suspects.FILE
    if path.exists() and suspects.has_new_labels(path):
        return path
    path.unlink(missing_ok=True)
    if run.task.label_kind not in ("classes", "entities") or run.manifest.not_scored:
        return None
    predictions = run.predicted_rows
    rows = run.scored(predictions)
    suspected, _ = report_page.suspected_labels(run, rows)
    mistakes = suspects.describe_mistakes(rows, suspected[:MAX_SUSPECTS], predictions)
    is_written = suspects.write_mistakes(
        path, run.manifest.data.tested_in, predictions, mistakes, run.user_rows
    )
    if is_written:
        return path
    return None


def write_final_report(run: Run) -> None:
    """Write the report at the end of a training; the run is finished even if this fails.

    Raises:
        RunError: If the report cannot be written; the message has the command that writes it.
    """
    page = None
    hint = f"to write it: python -m finetune report {run.path}"
    try:
        page = report(run).page
    except KeyboardInterrupt as stop:
        stop.args = (f"the run is finished, but has no report; {hint}",)
        raise
    except Exception as error:  # e.g. a plot that fails
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"the run is finished, but has no report ({reason}); {hint}") from error
    finally:
        events.emit(events.Finished(run, page))
