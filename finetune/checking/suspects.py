"""Write suspicious rows into a CSV file, for a spreadsheet."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.data import corrections, targets
from finetune.data.prediction_columns import user_table, without_bytes
from finetune.errors import Finding, Suspect, UserError


def refuse_path(path: Path) -> None:
    """Refuse a path that is not a .csv file in a directory, or a file that the user has edited."""
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--suspects {path}: expected a .csv file in an existing directory")
    if path.exists() and corrections.has_new_labels(path):
        raise UserError(f"--suspects {path}: 'new_label' was edited: type another file name")


def write(path: Path, findings: Sequence[Finding], recipe: Any) -> int:
    """Write each suspicious row of the findings of a recipe once, with all reasons.

    An existing file is replaced, or removed if no row is suspicious.

    Returns:
        The number of rows.
    """
    suspects: dict[str, dict[int, list[tuple[str, Suspect]]]] = defaultdict(dict)
    for finding in findings:  # grouped by split and row
        for suspect in finding.suspects:
            reason = f"{finding.name}: {suspect.reason}"
            suspects[finding.split].setdefault(suspect.row, []).append((reason, suspect))
    written = []
    user_columns: dict[str, None] = {}
    for split, split_suspects in suspects.items():
        rows = recipe.source[split]
        positions = {row: index for index, row in enumerate(targets.source_rows(rows).tolist())}
        numbers = [row for row in split_suspects if row in positions]  # without rows not loaded
        rows = rows.select(list(map(positions.__getitem__, numbers)))
        table = without_bytes(user_table(rows, recipe.input_column))
        user_columns |= dict.fromkeys(table.column_names)
        user_rows = table.to_pylist() or [{}] * len(rows)
        if "text" in rows.column_names:
            texts = rows["text"]
        else:
            texts = [row.get("file") for row in user_rows]
        keys = corrections.row_digests(rows, recipe.input_column)
        places = recipe.report.find_places(split, numbers)
        values = zip(numbers, texts, rows["label"], user_rows, keys, places, strict=True)
        for row, text, label, user_row, digest, place in values:
            row_suspects = split_suspects[row]
            best = next((suspect for _, suspect in row_suspects if suspect.suggested), None)
            written.append(
                {
                    "split": split,
                    "place": f"{place[0]} {place[1]}",
                    "text": text,
                    "label": corrections.label_text(rows, label),
                    "suggested": best and best.suggested,
                    "probability": best and best.score,
                    "why": "; ".join(dict.fromkeys(reason for reason, _ in row_suspects)),
                    "digest": digest,
                    "user": user_row,
                }
            )
    path.unlink(missing_ok=True)
    if written:
        corrections.write_suspects(path, written, list(user_columns))
    return len(written)
