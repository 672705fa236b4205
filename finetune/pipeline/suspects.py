"""``suspects.csv``: the rows that a run or a check suspects, for a person to correct."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data import corrections
from finetune.data.corrections import FILE
from finetune.data.prediction_columns import DIGEST, USER_COLUMNS, is_predicted
from finetune.data.row_findings import MOST_SUSPECTS
from finetune.errors import Finding, UserError
from finetune.reporting import sections
from finetune.runs.run import Run
from finetune.statistics import mistakes
from finetune.statistics.scored import ScoredRows

if TYPE_CHECKING:
    from finetune.recipe import Recipe

#: The most confident mistakes beside the labels that may be wrong.
_MISTAKES = 50


def of_run(run: Run) -> Path | None:
    """Write the test rows of a run that may have a wrong label, then its most confident mistakes.

    Returns:
        The file in its directory, which stays as it is if a person has written into it; None
        where no row is suspected, or the task has no classes.
    """
    table, path = run.predicted_rows, run.path / FILE
    if path.exists() and corrections.has_new_labels(path):
        return path  # a person's work
    path.unlink(missing_ok=True)
    if not run.kind.has_one_class or not {"text", DIGEST} & {*table.columns}:
        return None
    rows: ScoredRows = run.scored(table)
    suspicion, _ = sections.suspicion(run, rows)
    suspected = suspicion.rows[:MOST_SUSPECTS] if suspicion else np.array([], dtype=np.int64)
    wrong = mistakes.most_confident(rows)
    others = wrong[~np.isin(wrong, suspected)][:_MISTAKES]
    why = dict.fromkeys(suspected.tolist(), "label may be wrong")
    why |= dict.fromkeys(others.tolist(), "confident mistake")
    if not why:
        return None
    split = run.manifest.data.tested_in
    data = run.predictions
    unknown = [name for name in map(str, data) if not (is_predicted(name) or name == "file")]
    user_columns = data.attrs.get(USER_COLUMNS, unknown)
    written = []
    for number, reason in why.items():
        row = table.iloc[number]
        text = row["text"] if "text" in table else None
        written.append(
            {
                "split": split,
                "text": row.get("file") if text is None else text,
                "label": rows.names[rows.labels[number]],
                "suggested": rows.names[rows.classes[number]],
                "probability": round(float(rows.summary.confidence[number]), 4),
                "why": reason,
                "digest": f"x{row[DIGEST]}" if text is None else corrections.text_digest(text),
                "run": str(run.path),
                "user": data.iloc[number],
            }
        )
    return corrections.write_suspects(path, written, user_columns)


def refuse_loss(path: Path) -> None:
    """Refuse to replace a file that is no list of suspects, or into which a person has written.

    Raises:
        UserError: if it is one of these.
    """
    if not path.exists():
        return
    try:
        what = "has new labels, which would be lost" * corrections.has_new_labels(path)
    except UserError:
        what = "is no list of suspects"
    if what:
        raise UserError(f"--suspects {path}: the file that is there {what}: name another")


def of_findings(path: Path, found: Sequence[Finding], recipe: Recipe) -> int:
    """Write the rows that findings suspect, each once, with all reasons.

    Args:
        path: Of the file; one that is there is replaced, or removed if no row is suspected.
        found: From the worst.
        recipe: Which read the rows.

    Returns:
        How many.
    """
    why: dict[tuple[str, int], list[str]] = {}
    about: dict[tuple[str, int], dict[str, Any]] = {}
    for each in found:
        for suspect in each.suspects:
            key = each.split, suspect.row
            why.setdefault(key, []).append(f"{each.name}: {suspect.reason}")
            if suspect.suggested is not None:
                about[key] = {"suggested": suspect.suggested, "probability": suspect.score}
    written, user_columns = [], list[str]()
    for split in dict.fromkeys(split for split, _ in why):
        rows = recipe.source[split]
        ids = [row for name, row in why if name == split]
        numbers = np.array(ids)
        prints = corrections.row_digests(rows.select(numbers), recipe.input_column)
        own_columns = corrections.user_columns(rows)
        user_columns += [name for name in own_columns if name not in user_columns]
        shown = [name for name in ("text", "label", *own_columns) if name in rows.column_names]
        contents = rows.select_columns(shown).select(numbers)
        where = [recipe.report.locate(split, [row]) for row in ids]
        if recipe.row_source is not None:
            where = recipe.row_source.list_places(split, ids)
        for row, content, digest, place in zip(ids, contents, prints, where, strict=True):
            written.append(
                {
                    "split": split,
                    "place": place,
                    "text": content.get("text", content.get("file")),
                    "label": corrections.label_text(rows, content["label"]),
                    "why": "; ".join(dict.fromkeys(why[split, row])),
                    "digest": digest,
                    "user": content,
                    **about.get((split, row), {}),
                }
            )
    path.unlink(missing_ok=True)
    if written:
        corrections.write_suspects(path, written, user_columns)
    return len(written)
