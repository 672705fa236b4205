"""``suspects.csv``: the rows that a run or a check suspects, for a person to correct."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Value

from finetune.data import ROW, corrections, digests
from finetune.data.corrections import FILE
from finetune.data.prediction_columns import DIGEST, USER_COLUMNS
from finetune.data.targets import MOST_SUSPECTS, source_rows
from finetune.errors import Finding, Suspect, UserError
from finetune.reporting import page
from finetune.runs.run import Run
from finetune.statistics import mistakes
from finetune.statistics.scored import ScoredRows

if TYPE_CHECKING:
    from finetune.recipe import Recipe

#: The most confident mistakes beside the labels that may be wrong.
_MISTAKES = 50


def of_run(run: Run) -> Path | None:
    """Write the test rows of a run that may have a wrong label, then its most confident mistakes.

    Return the file in its directory, which stays as it is if a person has written into it; None
    where no row is suspected, or the task has no classes.
    """
    table, path = run.predicted_rows, run.path / FILE
    if path.exists() and corrections.has_new_labels(path):
        return path  # a person's work
    path.unlink(missing_ok=True)
    if not run.kind.has_one_class or not {"text", DIGEST} & {*table.columns}:
        return None
    rows: ScoredRows = run.scored(table)
    suspicion = page.suspicion(run, rows)
    suspected = suspicion.rows[:MOST_SUSPECTS].tolist() if suspicion else []
    reasons = dict.fromkeys(suspected, "label may be wrong")
    further = [row for row in mistakes.most_confident(rows).tolist() if row not in reasons]
    reasons |= dict.fromkeys(further[:_MISTAKES], "confident mistake")
    data, written = run.predictions, []
    for number, reason in reasons.items():
        row, user_values = table.iloc[number], data.iloc[number]
        text = row.get("text")
        written.append(
            {
                "split": run.manifest.data.tested_in,
                "text": row.get("file") if text is None else text,
                "label": rows.names[rows.labels[number]],
                "suggested": rows.names[rows.classes[number]],
                "probability": round(float(rows.summary.confidence[number]), 4),
                "why": reason,
                "digest": f"x{row[DIGEST]}" if text is None else corrections.text_digest(text),
                "user": user_values.where(user_values.notna(), None),
            }
        )
    if not written:
        return None
    return corrections.write_suspects(path, written, data.attrs.get(USER_COLUMNS, []))


def refuse_path(path: Path) -> None:
    """Refuse a path that is no .csv in a directory, and to replace a file that is no list of
    suspects, or into which a person has written.
    """
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--suspects {path}: expected the name of a .csv in an existing directory")
    is_edited = path.exists()
    with contextlib.suppress(UserError):
        is_edited = is_edited and corrections.has_new_labels(path)
    if is_edited:
        raise UserError(f"--suspects {path}: is no list of suspects, or edited: name another file")


def of_findings(path: Path, findings: Sequence[Finding], recipe: Recipe) -> int:
    """Write the rows that findings suspect, each once, with all reasons; return how many.

    A file that is there is replaced, or removed if no row is suspected.
    """
    suspects: dict[str, dict[int, list[tuple[str, Suspect]]]] = defaultdict(dict)
    for finding in findings:  # by split and row
        for suspect in finding.suspects:
            reason = f"{finding.name}: {suspect.reason}"
            suspects[finding.split].setdefault(suspect.row, []).append((reason, suspect))
    written, user_columns = [], dict[str, None]()
    for split, of_split in suspects.items():
        rows = recipe.source[split]
        positions = {row: position for position, row in enumerate(source_rows(rows).tolist())}
        numbers = [row for row in of_split if row in positions]  # not left out while reading
        suspected = rows.select([positions[row] for row in numbers])
        own_columns = [
            name
            for name, feature in rows.features.items()
            if name not in {ROW, "label", "text", digests.TEXTS}
            and isinstance(feature, Value)
            and "binary" not in feature.dtype
        ]
        user_columns |= dict.fromkeys(own_columns)
        columns = [name for name in ("text", "label", *own_columns) if name in rows.column_names]
        contents = suspected.select_columns(columns)
        keys = corrections.row_digests(suspected, recipe.input_column)
        places = [f"row {number + 1}" for number in numbers]
        if recipe.row_source is not None:
            places = recipe.row_source.list_places(split, numbers)
        for row, content, digest, place in zip(numbers, contents, keys, places, strict=True):
            best = next((suspect for _, suspect in of_split[row] if suspect.suggested), None)
            written.append(
                {
                    "split": split,
                    "place": place,
                    "text": content.get("text", content.get("file")),
                    "label": corrections.label_text(rows, content["label"]),
                    "suggested": best and best.suggested,
                    "probability": best and best.score,
                    "why": "; ".join(dict.fromkeys(reason for reason, _ in of_split[row])),
                    "digest": digest,
                    "user": content,
                }
            )
    path.unlink(missing_ok=True)
    if written:
        corrections.write_suspects(path, written, [*user_columns])
    return len(written)
