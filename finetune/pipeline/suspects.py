"""``suspects.csv``: the rows that a run or a check suspects, for a person to correct."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.checking.finding import MOST_SUSPECTS, Finding
from finetune.data import corrections
from finetune.data.corrections import FILE
from finetune.reporting import wording
from finetune.runs.predictions import DIGEST
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
    table, path = run.predictions, run.path / FILE
    rows = run.scored(table)
    if path.exists() and corrections.edited(path):
        return path  # a person's work
    path.unlink(missing_ok=True)
    if not isinstance(rows, ScoredRows) or not {"text", DIGEST} & {*table.columns}:
        return None
    judged = wording.beats_a_baseline(
        run.statistics, run.headline, wording.directions(run.manifest)
    )
    suspicion = mistakes.suspicion(rows) if judged else None
    suspected = suspicion.rows[:MOST_SUSPECTS].tolist() if suspicion else []
    others = [each for each in mistakes.most_confident(rows).tolist() if each not in suspected]
    why = dict.fromkeys(suspected, "label may be wrong")
    why |= dict.fromkeys(others[:_MISTAKES], "confident mistake")
    if not why:
        return None
    split = run.manifest.data.tested_in
    written = []
    for number, reason in why.items():
        row = table.iloc[number]
        text = row["text"] if "text" in table else None
        written.append(
            {
                "split": split,
                "id": row["id"],
                "text": row.get("file") if text is None else text,
                "label": rows.names[rows.labels[number]],
                "suggested": rows.names[rows.classes[number]],
                "probability": round(float(rows.summary.confidence[number]), 4),
                "why": reason,
                "digest": f"x{row[DIGEST]}" if text is None else corrections.digest_of(text),
                "run": _named(run),
            }
        )
    return corrections.write(path, written)


def of_findings(path: Path, found: Sequence[Finding], recipe: Recipe) -> int:
    """Write the rows that findings suspect, each once, with all reasons.

    Args:
        path: Of the file; one that is there is replaced.
        found: From the worst.
        recipe: Which read the rows.

    Returns:
        How many.
    """
    why: dict[tuple[str, int], list[str]] = {}
    about: dict[tuple[str, int], dict[str, Any]] = {}
    for each in found:
        for suspect in each.suspects:
            key = suspect.split, suspect.id
            why.setdefault(key, []).append(f"{each.name}: {suspect.why}")
            if suspect.suggested is not None:
                about[key] = {"suggested": suspect.suggested, "probability": suspect.score}
    written = []
    for split in dict.fromkeys(split for split, _ in why):
        rows = recipe.source[split]
        at = {row: number for number, row in enumerate(rows["id"][:])}
        ids = [row for name, row in why if name == split]
        some = rows.select([at[row] for row in ids])
        prints = corrections.digests_of(some, recipe.input_column)
        for row, content, digest in zip(ids, some, prints, strict=True):
            written.append(
                {
                    "split": split,
                    "id": row,
                    "place": recipe.places(split, [row]),
                    "text": content.get("text", content.get("file")),
                    "label": corrections.shown(rows, content["label"]),
                    "why": "; ".join(dict.fromkeys(why[split, row])),
                    "digest": digest,
                    **about.get((split, row), {}),
                }
            )
    corrections.write(path, written)
    return len(written)


def _named(run: Run) -> str:
    """Return by what a run is found again, also if it was moved aside."""
    process = run.manifest.process
    return f"{run.path} {process.started}"
