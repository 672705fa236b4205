"""Write ``report.html`` of a run, and its plots as PNG files in ``plots/``.

Everything is read from the run directory. A function returns the blocks of each section.
"""

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from finetune.data.prediction_columns import LABEL, PREDICTION, THUMBNAIL, without_bytes
from finetune.errors import UserError
from finetune.recipe.run import Run
from finetune.reporting import plots, tables
from finetune.reporting.card import provenance
from finetune.reporting.tables import Cell, Table, excerpt, to_cells
from finetune.runtime.files import replacing
from finetune.statistics import mistakes
from finetune.statistics.entities import ScoredEntities
from finetune.statistics.scored import ScoredNumbers, ScoredRows
from finetune.tasks.tokens import SEEN

#: The most rows of a table, and plots of targets.
_MAX_MISTAKES = 20
_MAX_SLICES = 10
_MAX_TARGETS = 6
_CONTEXT = 400  # characters of a text around a mistake in it
_MARK = Markup('<mark class="{}">{} <small>{}</small></mark>')


@matplotlib.rc_context(plots.STYLE)
def write(run: Run) -> Path:
    """Write the page and the plots of a finished run, or replace them, and return the page's path.

    Raises:
        UserError: If the run has no statistics, or if its folder ``plots`` is a link.
    """
    manifest = run.manifest
    sections: dict[str, list[Any]] = {"Training": [plots.learning_curves(manifest)]}
    verdicts = tables.verdicts(run)
    warnings = list(manifest.data.notes)
    if manifest.not_scored is None:
        sections, scores = _describe_scores(run)
        verdicts.insert(0, scores)
        warnings += run.statistics.notes
    facts = [[Cell(name), Cell(fact)] for name, fact in provenance(manifest).items()]
    sections["Provenance"] = [manifest.command, Table("How the run was made", ["", ""], facts)]
    title = f"{Path(manifest.recipe).name}: {manifest.data.source}"
    page = run.path / "report.html"
    tables.write_page(page, title, verdicts, sections, warnings)
    directory = run.path / "plots"
    if directory.is_symlink():  # files are never written through links
        raise UserError(f"{directory} is a link to {directory.readlink()}: remove the link")
    directory.mkdir(exist_ok=True)
    for path in directory.glob("*.png"):  # plots that are not drawn again
        path.unlink()
    for block in itertools.chain(*sections.values()):
        if isinstance(block, list):
            for plot in block:
                with replacing(directory / f"{plot.name}.png") as new:
                    plot.figure.savefig(new, format="png", dpi=200, facecolor="white")
    return page


def _describe_scores(run: Run) -> tuple[dict[str, list[Any]], str]:
    """Return the sections about the scores of a run, and the sentence above them."""
    statistics = run.statistics
    table = run.predicted_rows
    rows = run.scored(table)
    sections = {
        "Scores": [
            tables.scores(run),
            tables.metrics("Other scores of the model", statistics, run.headline),
            "Intervals cover the sampling of test rows, not variation between trainings.",
        ]
    }
    for name in run.task.sections:
        sections[name.capitalize()] = _SECTIONS[name](run, table, rows)
    scores = "; ".join(tables.format_score(name, statistics.metrics[name]) for name in run.headline)
    return sections, scores


def _prediction_blocks(run: Run, table: pd.DataFrame, rows: ScoredNumbers) -> list[Any]:
    columns = zip(run.labels or [""], rows.targets.T, rows.outputs.T, strict=True)
    figures: list[Any] = []
    for name, true, predicted in itertools.islice(columns, _MAX_TARGETS):
        suffix = f"_{len(figures) + 1}" if name else ""
        figures.append(plots.predicted_and_true(true, predicted, name or "value", suffix))
    return [figures]


def _class_blocks(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    blocks: list[Any] = [tables.classes(run.statistics)]
    if run.statistics.confusion:  # a plot of more classes would be unreadable
        blocks.append([plots.confusion(rows.confusion, rows.names)])
    return blocks


def _label_blocks(run: Run, table: pd.DataFrame, rows: Any) -> list[Any]:
    note = ""
    if run.statistics.thresholds:
        note = (
            "The thresholds were fitted on the validation rows, so validation scores are too good."
        )
    examples = []
    for index in mistakes.farthest(rows)[:_MAX_MISTAKES]:
        row = table.iloc[index]
        texts = [run.task.describe(row, name) for name in (LABEL, PREDICTION)]
        examples.append((index, list(map(Cell, texts))))
    return [tables.classes(run.statistics), note, _examples(table, "labels predicted", examples)]


def _probability_blocks(run: Run, table: pd.DataFrame, rows: Any) -> list[Any]:
    statistics = run.statistics
    calibration = statistics.calibration
    curves = []
    sentence = "Of predicted entities, whose probability is the mean of their words. "
    if rows.kind == "classes":
        curves = plots.ranking(rows, statistics.classes or {})
        sentence = ""
    if not calibration:
        return [curves]
    sentence += (
        "The expected calibration error (the mean gap between confidence and accuracy) is "
        f"{calibration['expected_calibration_error']:.3f}. A calibrated model stays below "
        f"{calibration['calibrated']:.3f} on 95 of 100 test sets of this size."
    )
    scaling = calibration.get("temperature")  # None if no temperature calibrates
    if scaling and scaling["temperature"] != 1:
        before, after = scaling["before"], scaling["after"]
        sentence += (
            f" The temperature {scaling['temperature']:.2f} (predict --calibrated) changes it to "
            f"{after['expected_calibration_error']:.3f}, and the log loss from "
            f"{before['log_loss']:.4f} to {after['log_loss']:.4f}."
        )
    return [sentence, [*curves, *plots.reliability(calibration)]]


def _flat_columns(run: Run) -> pd.DataFrame:
    """Return the user's columns by which rows may be sliced."""
    user = without_bytes(run.user_rows)
    flat = user.select([field.name for field in user.schema if not pa.types.is_nested(field.type)])
    frame: pd.DataFrame = flat.to_pandas()
    return frame


def _entity_slice_blocks(run: Run, table: pd.DataFrame, rows: ScoredEntities) -> list[Any]:
    if SEEN not in table:  # of an older version
        return []
    slices = mistakes.entity_slices(
        rows, table[SEEN].tolist(), table.get("tokens"), _flat_columns(run), _MAX_SLICES
    )
    caption = (
        "Labelled entities by whether the training rows have them, then slices of rows with at "
        "least 20 labelled entities and the lowest F1; some are low by chance"
    )
    return [_slice_table(caption, "entities", ["precision", "recall", "f1"], slices)]


def _slice_blocks(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    slices = mistakes.worst_slices(rows, table.get("tokens"), _flat_columns(run), _MAX_SLICES)
    caption = "Slices of at least 20 rows with the lowest accuracy; some are low by chance"
    return [_slice_table(caption, "rows", ["accuracy"], slices)]


def _slice_table(
    caption: str, counted: str, scores: Sequence[str], slices: Sequence[Mapping[str, Any]]
) -> Table:
    cells = []
    for part in slices:
        count = Cell(f"{part[counted]:,}", kind="number")
        verdict = Cell("lower than on all rows" if part["lower"] else "", kind="bad")
        cells.append([Cell(part["name"]), count, *to_cells(part, scores), verdict])
    return Table(caption, ["slice", counted, *scores, ""], cells)


def suspected_labels(run: Run, rows: Any) -> tuple[list[int], str]:
    """Return which test rows, or which mistakes in entities, may have a wrong label, the most
    confident prediction first, and a sentence about them. There are none unless the model is
    significantly better than a baseline in the first metric of the headline that has a known
    direction.
    """
    better = tables.directions(run.manifest)
    metric = next((name for name in run.headline if name in better), "")
    suspects = None
    for gaps in run.statistics.differences.values():
        if metric in gaps and tables.sign(gaps[metric]) == better[metric]:
            suspects = mistakes.suspicion(rows)
            break
    if suspects is None:
        return [], (
            "No label is suspected: the model beats no baseline, or there are too few rows "
            "or too many mistakes."
        )
    rate = suspects.wrong
    return suspects.rows.tolist(), (
        f"Of the {suspects.confident:,} most confident predictions, {len(suspects.rows):,} "
        "contradict the label, which may be wrong: check these rows by hand. At most about "
        f"{rate.value:.1%} of all labels are wrong (95% CI {rate.low:.1%} to {rate.high:.1%})."
    )


def _mistake_blocks(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    wrong = mistakes.most_confident(rows)
    suspected, sentence = suspected_labels(run, rows)
    sentence = f"{len(wrong):,} of {len(rows):,} predictions are wrong. {sentence}"
    summary = rows.summary
    names = rows.names
    examples = []
    for index in wrong[:_MAX_MISTAKES]:
        note = f"{summary.of_label[index]:.1%}"
        if index in suspected:
            note += " label may be wrong"
        label = Cell(names[rows.labels[index]], note)
        confidence = Cell(f"{summary.confidence[index]:.1%}", kind="number")
        examples.append((index, [label, Cell(names[rows.classes[index]]), confidence]))
    return [sentence, _examples(table, "label predicted probability", examples)]


def _entity_blocks(run: Run, table: pd.DataFrame, rows: ScoredEntities) -> list[Any]:
    confusion = run.statistics.confusion or []
    lines = []
    for name, counts in zip([*rows.names, "spurious"], confusion, strict=True):
        lines.append([Cell(name), *(Cell(f"{count:,}", kind="number") for count in counts)])
    caption = "Labelled types by predicted type, of entities with the same words"
    header = ["labelled", *rows.names, "missed"]
    return [tables.classes(run.statistics), Table(caption, header, lines)]


def _error_blocks(run: Run, table: pd.DataFrame, rows: ScoredEntities) -> list[Any]:
    wrong = np.count_nonzero(~rows.is_correct)
    suspected, sentence = suspected_labels(run, rows)
    lines: dict[int, list[Cell]] = {}
    for number, mistake in enumerate(rows.mistakes):
        if mistake.row in lines or len(lines) == _MAX_MISTAKES:
            continue
        row = table.iloc[mistake.row]
        note = mistake.kind
        if number in suspected:
            note += ", a label may be wrong"
        probability = Cell(f"{mistake.confidence:.1%}", note, kind="number")
        lines[mistake.row] = [Cell(str(row["id"])), Cell(_marked(row), kind="text"), probability]
    sentence = (
        f"{wrong:,} of {len(rows):,} rows have an entity that is missed, spurious, of another "
        "type or of other words. Below, the labels of a row come first, then its predictions. "
        f"{sentence}"
    )
    header = ["row", "labels and predictions", "probability"]
    return [sentence, Table("The most confident mistakes", header, list(lines.values()))]


def _marked(row: Any) -> Markup:
    """Return a text with its labelled entities marked, then with the predicted ones, from before
    the first wrong one.
    """
    places = []
    for column in (LABEL, PREDICTION):
        spans = [(span["start"], span["end"], span["label"]) for span in row[column]]
        places.append(sorted(spans))
    wrong = set(places[0]) ^ set(places[1])
    first = max(0, min(wrong)[0] - _CONTEXT)
    last = min(wrong)[1] + _CONTEXT
    text = row["text"]
    lines = []
    for spans in places:
        line = Markup()  # which escapes what is added to it
        end = first
        for span in spans:
            start, stop, name = span
            if first <= start and stop <= last:
                kind = "bad" if span in wrong else "good"
                line += text[end:start]
                line += _MARK.format(kind, text[start:stop], name)
                end = stop
        lines.append(line + text[end:last])
    return Markup("\n").join(lines)


def _examples(
    table: pd.DataFrame, columns: str, examples: Sequence[tuple[int, list[Cell]]]
) -> Table:
    """Return a table of the most confident mistakes: the inputs of each row, then cells."""
    header = ["row"]
    if "text" in table:
        header.append("text")
    if THUMBNAIL in table:
        header.append("image")
    header += columns.split()
    lines = []
    for index, cells in examples:
        row = table.iloc[index]
        line = [Cell(str(row["id"]))]
        if "text" in table:
            line.append(excerpt(row["text"]))
        if THUMBNAIL in table:
            url = ""
            if jpeg := row[THUMBNAIL]:
                url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
            line.append(Cell("", str(row.get("file", "")), image=url))
        lines.append(line + cells)
    return Table("The most confident mistakes", header, lines)


#: The functions that return the blocks of a section, by the names in ``Task.sections``.
_SECTIONS: Mapping[str, Callable[[Run, pd.DataFrame, Any], list[Any]]] = {
    "training": lambda run, table, rows: [plots.learning_curves(run.manifest)],
    "predictions": _prediction_blocks,
    "targets": lambda run, table, rows: [tables.targets(run.statistics)],
    "classes": _class_blocks,
    "labels": _label_blocks,
    "probabilities": _probability_blocks,
    "slices": _slice_blocks,
    "entity slices": _entity_slice_blocks,
    "mistakes": _mistake_blocks,
    "entities": _entity_blocks,
    "errors": _error_blocks,
}
