"""``suspects.csv``: suspicious rows for a person to correct.

``check --suspects`` writes the rows of its findings; a run its test rows whose label may be wrong,
and its most confident mistakes. An edited file is applied by :mod:`finetune.checking.corrections`.
"""

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from datasets import Dataset

from finetune.data import digests, tags, targets
from finetune.data.prediction_columns import (
    DIGEST,
    cell_text,
    free_name,
    user_table,
    usual_name,
    without_bytes,
)
from finetune.data.read import read_file
from finetune.data.read_text import ReadOptions
from finetune.errors import Finding, Suspect, UserError
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula
from finetune.statistics import mistakes
from finetune.statistics.entities import EntityMistake

FILE = "suspects.csv"
COLUMNS = (
    "split",
    "place",
    "text",
    "label",
    "suggested",
    "probability",
    "why",
    "new_label",
    "digest",
)
#: Confident mistakes of a run, besides the labels that may be wrong.
_MAX_MISTAKES = 50


def refuse_path(path: Path) -> None:
    """Refuse a path that is not a .csv file in a directory, or a file that the user has edited."""
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--suspects {path}: expected a .csv file in an existing directory")
    if path.exists() and has_new_labels(path):
        raise UserError(f"--suspects {path}: 'new_label' was edited: type another file name")


def write_findings(path: Path, findings: Sequence[Finding], recipe: Any) -> int:
    """Write each suspicious row of the findings once, with all reasons.

    Args:
        path: The file; an existing one is replaced, or removed if no row is suspicious.
        findings: The findings of a check.
        recipe: The recipe that was checked.

    Returns:
        The number of rows.
    """
    suspects: dict[str, dict[int, list[tuple[str, Suspect]]]] = defaultdict(dict)
    for finding in findings:
        for suspect in finding.suspects:
            reason = f"{finding.name}: {suspect.reason}"
            suspects[finding.split].setdefault(suspect.row, []).append((reason, suspect))
    lines = []
    for split, suspects_of_row in suspects.items():
        lines += _describe_rows(split, suspects_of_row, recipe)
    path.unlink(missing_ok=True)
    if lines:
        _write(path, lines)
    return len(lines)


def _describe_rows(
    split: str, suspects: Mapping[int, Sequence[tuple[str, Suspect]]], recipe: Any
) -> list[dict[str, Any]]:
    """Return the lines of the suspicious rows of a split: reasons and suspects by row number."""
    rows = recipe.source[split]
    positions = {row: index for index, row in enumerate(targets.source_rows(rows).tolist())}
    numbers = [row for row in suspects if row in positions]  # without rows not loaded
    rows = rows.select([positions[number] for number in numbers])
    table = without_bytes(user_table(rows, recipe.input_column))
    user_rows = table.to_pylist() or [{}] * len(rows)
    texts = [row.get("file") for row in user_rows]
    if "text" in rows.column_names:
        texts = rows["text"]
    keys = row_digests(rows, recipe.input_column)
    places = recipe.report.find_places(split, numbers)
    lines = []
    values = zip(numbers, texts, rows["label"], user_rows, keys, places, strict=True)
    for number, text, label, user_row, digest, (noun, place) in values:
        suggested = probability = None
        reasons = []
        for reason, suspect in suspects[number]:
            reasons.append(reason)
            if suspect.suggested and suggested is None:
                suggested, probability = suspect.suggested, suspect.score
        lines.append(
            {
                "split": split,
                "place": f"{noun} {place}",
                "text": text,
                "label": label_text(rows, label),
                "suggested": suggested,
                "probability": probability,
                "why": "; ".join(dict.fromkeys(reasons)),
                "digest": digest,
                "user": user_row,
            }
        )
    return lines


class Mistake(NamedTuple):
    """A wrong prediction of a test row, or a part of one; fields as in :data:`COLUMNS`."""

    number: int  # the position of the row
    label: str
    suggested: str
    probability: float
    why: str


def describe_mistakes(
    rows: Any, suspected: Sequence[int], predictions: pd.DataFrame
) -> Iterator[Mistake]:
    """Yield the labels of test rows that may be wrong, then the most confident mistakes.

    Args:
        rows: The test rows with classes or entities, and their probabilities.
        suspected: The positions of the rows, or of the mistakes, whose label may be wrong.
        predictions: The columns that the toolkit adds to the test rows.
    """
    if rows.kind == "entities":
        wrong: Sequence[int] = range(len(rows.mistakes))
    else:
        wrong = mistakes.most_confident(rows).tolist()
    reasons = dict.fromkeys(suspected, "label may be wrong")
    rest = [number for number in wrong if number not in reasons]
    reasons |= dict.fromkeys(rest[:_MAX_MISTAKES], "confident mistake")
    for number, reason in reasons.items():
        if rows.kind == "entities":
            yield _entity_mistake(rows.mistakes[number], reason, rows.names, predictions["text"])
            continue
        label, suggested = rows.names[rows.labels[number]], rows.names[rows.classes[number]]
        probability = round(float(rows.summary.confidence[number]), 4)
        yield Mistake(number, label, suggested, probability, reason)


def _entity_mistake(
    mistake: EntityMistake, reason: str, names: Sequence[str], texts: pd.Series
) -> Mistake:
    """Return a mistake in entities, whose places are characters of the texts."""
    text = texts.iloc[mistake.row]
    cells = []
    quoted: dict[str, None] = {}
    for entities in (mistake.labels, mistake.predicted):
        spans = [(start, end, names[kind]) for start, end, kind in entities]
        cells.append(tags.spans_text(spans))
        quoted |= dict.fromkeys(f"'{text[start:end]}'" for start, end, _ in spans)
    why = f"{reason}: {mistake.kind}, {', '.join(quoted)}"
    label, suggested = cells
    return Mistake(mistake.row, label, suggested, round(mistake.confidence, 4), why)


def write_mistakes(
    path: Path,
    split: str,
    predictions: pd.DataFrame,
    mistakes: Iterable[Mistake],
    user_rows: pa.Table,
) -> bool:
    """Write wrong predictions of test rows.

    Args:
        path: The file to write, or to replace.
        split: The split that the test rows are from.
        predictions: The columns that the toolkit adds to the test rows.
        mistakes: What is predicted wrong, in the order of the lines.
        user_rows: The columns of the data.

    Returns:
        Whether a row is suspicious; if not, no file is written.
    """
    user_rows = without_bytes(user_rows)
    lines = []
    for mistake in mistakes:
        row = predictions.iloc[mistake.number]
        text = row.get("text")
        if text is None:  # an image
            text, digest = row.get("file"), f"x{row[DIGEST]}"
        else:
            digest = text_digest(text)
        lines.append(
            {
                "split": split,
                "text": text,
                "label": mistake.label,
                "suggested": mistake.suggested,
                "probability": mistake.probability,
                "why": mistake.why,
                "digest": digest,
                "user": {
                    name: user_rows[name][mistake.number].as_py() for name in user_rows.column_names
                },
            }
        )
    if lines:
        _write(path, lines)
    return bool(lines)


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows for a person to correct, for Excel: UTF-8 with a byte order mark, no formulas.

    A line has the keys :data:`COLUMNS`, and ``user``, the values of the user's own columns.
    """
    user_columns: dict[str, None] = {}
    for line in lines:
        user_columns |= dict.fromkeys(line["user"])
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        header = [free_name(name, user_columns) for name in COLUMNS]
        writer.writerow([*header, *user_columns])
        for line in lines:
            cells = [*map(line.get, COLUMNS), *map(line["user"].get, user_columns)]
            writer.writerow(map(escape_formula, map(cell_text, cells)))


def read_suspects(path: Path) -> pd.DataFrame:
    """Return the columns ``split``, ``digest``, ``label``, ``new_label`` and ``text`` of a file, as
    texts; without a column ``text``, its cells are empty.

    Raises:
        UserError: If a column is missing.
    """
    rows = read_file(path, ReadOptions()).rows
    lines = pd.DataFrame()
    for name in ("split", "digest", "label", "new_label", "text"):
        names = [column for column in rows.column_names if usual_name(column) == name]
        column = max(names, key=len, default=name)  # with prefixes if the user has one of that name
        if not names:
            if name == "text":
                lines[name] = ""
                continue
            raise UserError(
                f"{path}: no column '{column}' (columns: {', '.join(rows.column_names)}); expected "
                f"a {FILE} from report or check in which only 'new_label' was edited"
            )
        texts = pd.Series(["" if value is None else str(value) for value in rows[column][:]])
        lines[name] = texts.where(texts.str.strip() != "", "")  # keep blanks of a label
    return lines


def has_new_labels(path: Path) -> bool:
    """Return whether the ``new_label`` of any line of a ``suspects.csv`` is filled in."""
    return any(read_suspects(path)["new_label"])


def text_digest(text: str) -> str:
    """Return the digest of a text; the ``x`` keeps a spreadsheet from reading it as a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def row_digests(rows: Dataset, column: str) -> list[str]:
    """Return the digest of each row's content; ``column`` is the column that the model reads."""
    if column != "text":
        return [f"x{digest.hex()}" for digest in digests.hash_rows(rows, column)]
    return list(map(text_digest, rows[column]))  # a column is read in batches


def label_text(rows: Dataset, label: Any) -> str:
    """Return a label as it is written in ``suspects.csv``."""
    names = targets.class_names(rows)
    if targets.is_tagged(rows):
        return tags.spans_text(tags.spans_of(label, names))
    if targets.is_set(rows):
        return json.dumps([names[number] for number in label], ensure_ascii=False)
    return str(names[label] if names else label)
