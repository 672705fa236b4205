"""``report``: write the report, the model card and the suspicious rows of a run again."""

from dataclasses import dataclass
from pathlib import Path

from finetune.data import corrections
from finetune.data.prediction_columns import DIGEST, without_bytes
from finetune.data.targets import MAX_SUSPECTS
from finetune.errors import RunError, UserError
from finetune.pipeline import events
from finetune.reporting import card
from finetune.reporting import page as report_page
from finetune.runs.run import Run
from finetune.statistics import mistakes
from finetune.statistics.scored import ScoredRows

#: Confident mistakes in ``suspects.csv``, besides the labels that may be wrong.
_MAX_MISTAKES = 50


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
    """Write the test rows whose label may be wrong, then the most confident mistakes.

    Returns:
        The path, or None if no row is suspicious or the task is not to choose one class. A file
        that the user has edited is kept.
    """
    table = run.predicted_rows
    path = run.path / corrections.FILE
    if path.exists() and corrections.has_new_labels(path):
        return path
    path.unlink(missing_ok=True)
    if not run.kind.has_one_class:
        return None
    rows: ScoredRows = run.scored(table)
    suspicion = report_page.suspicion(run, rows)
    suspected = suspicion.rows[:MAX_SUSPECTS].tolist() if suspicion else []
    reasons = dict.fromkeys(suspected, "label may be wrong")
    wrong = [row for row in mistakes.most_confident(rows).tolist() if row not in reasons]
    reasons |= dict.fromkeys(wrong[:_MAX_MISTAKES], "confident mistake")
    user = without_bytes(run.user_rows)
    suspects = []
    for number, reason in reasons.items():
        row = table.iloc[number]
        if (text := row.get("text")) is None:
            content, digest = row.get("file"), f"x{row[DIGEST]}"
        else:
            content, digest = text, corrections.text_digest(text)
        suspects.append(
            {
                "split": run.manifest.data.tested_in,
                "text": content,
                "label": rows.names[rows.labels[number]],
                "suggested": rows.names[rows.classes[number]],
                "probability": round(float(rows.summary.confidence[number]), 4),
                "why": reason,
                "digest": digest,
                "user": {name: user[name][number].as_py() for name in user.column_names},
            }
        )
    if suspects:
        return corrections.write_suspects(path, suspects, user.column_names)
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
