"""``report.html``: one file that shows what a run is worth, and its plots beside it as PNG.

Everything comes from the run directory. A section of a task is a function of the run, its table of
predictions, and the same rows as the statistics of the task take them.
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

from finetune.data.prediction_columns import LABEL, PREDICTION, THUMBNAIL, without_bytes
from finetune.errors import UserError
from finetune.reporting import plots, tables
from finetune.reporting.card import provenance
from finetune.reporting.tables import Cell, Table, estimates, excerpt
from finetune.runs.run import Run
from finetune.runtime.files import replacing
from finetune.statistics import mistakes
from finetune.statistics.metrics import MOST_CONFUSED
from finetune.statistics.scored import ScoredNumbers, ScoredRows

#: Rows of a table, and plots of targets, at most.
_MISTAKES = 20
_SLICES = 10
_TARGETS = 6


@matplotlib.rc_context(plots.STYLE)
def write(run: Run) -> Path:
    """Write the page and the plots of a finished run; what was there is replaced.

    Raises:
        UserError: If the run has no statistics.
    """
    manifest = run.manifest
    statistics = run.statistics
    table = run.predicted_rows
    rows = run.scored(table)
    blocks: list[Any] = [tables.scores(run)]
    blocks += tables.metrics("Other scores of the model", statistics, run.headline)
    blocks.append("The intervals cover the sampling of the test rows, not another training run.")
    sections = {"Scores": blocks}
    for name in run.kind.sections:
        sections[name.capitalize()] = _SECTIONS[name](run, table, rows)
    sections["Provenance"] = [manifest.command, provenance(manifest)]
    scores = "; ".join(tables.score(name, statistics.metrics[name]) for name in run.headline)
    title = f"{Path(manifest.recipe).name}: {manifest.data.source}"
    warnings = [*manifest.data.notes, *statistics.notes]
    page = run.path / "report.html"
    tables.write_page(page, title, [scores, *tables.verdicts(run)], sections, warnings)
    directory = run.path / "plots"
    if directory.is_symlink():  # nothing is written where it points
        raise UserError(f"{directory} is a link to {directory.readlink()}: remove the link")
    directory.mkdir(exist_ok=True)
    for path in directory.glob("*.png"):  # what this run has too few rows or steps for
        path.unlink()
    for block in itertools.chain(*sections.values()):
        for plot in block if isinstance(block, list) else ():
            with replacing(directory / f"{plot.name}.png") as new:  # dark on white
                plot.figure.savefig(new, format="png", dpi=200, facecolor="white")
    return page


def suspicion(run: Run, rows: ScoredRows) -> mistakes.Suspicion | None:
    """Return which labels of the test rows may be wrong; none if the run is significantly better
    than no baseline, by the first metric of the headline of which it is known what is better.
    """
    better = tables.directions(run.manifest)
    metric = next((name for name in run.headline if name in better), "")
    gaps = [gaps[metric] for gaps in run.statistics.beyond.values() if metric in gaps]
    if any(tables.sign(gap) == better[metric] for gap in gaps):
        return mistakes.suspicion(rows)
    return None


def _show_predictions(run: Run, table: pd.DataFrame, rows: ScoredNumbers) -> list[Any]:
    columns = zip(run.labels or [""], rows.targets.T, rows.outputs.T, strict=True)
    return [
        [
            plots.numbers(true, predicted, name or "value", f"_{number}" * bool(name))
            for number, (name, true, predicted) in enumerate(itertools.islice(columns, _TARGETS), 1)
        ]
    ]


def _show_classes(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    blocks: list[Any] = [*tables.classes(run.statistics)]
    if len(rows.names) <= MOST_CONFUSED:  # a plot of more would be too fine to be read
        blocks.append([plots.confusion(rows.confusion, rows.names)])
    return blocks


def _show_labels(run: Run, table: pd.DataFrame, rows: Any) -> list[Any]:
    blocks: list[Any] = [*tables.classes(run.statistics)]
    if run.statistics.thresholds:
        blocks.append(
            "The thresholds were fitted on the validation rows: their scores are a little too good."
        )
    examples = []
    for index in mistakes.farthest(rows)[:_MISTAKES]:
        names = [", ".join(table[name].iloc[index]) or "none" for name in (LABEL, PREDICTION)]
        examples.append((index, [*map(Cell, names)]))
    return [*blocks, *_examples(table, "labels predicted", examples)]


def _show_probabilities(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    statistics = run.statistics
    name = "expected_calibration_error"
    errors = statistics.calibration
    declared = (arguments.get("pos_label") for arguments in run.manifest.scoring.values())
    positive = next((int(number) for number in declared if number is not None), 1)
    curves = plots.ranking(rows, statistics.classes or {}, positive)
    if not errors:
        return [curves]
    sentence = (
        "The expected calibration error, the mean gap between confidence and accuracy, is "
        f"{errors[name]:.3f}; of a calibrated model it is below {errors['calibrated']:.3f} on 95 "
        "of 100 sets of as many rows."
    )
    if "after" in errors:
        sentence += (
            f" With the temperature fitted on the validation rows, {errors['temperature']:.2f} "
            f"(python -m finetune predict --calibrated), it is {errors['after'][name]:.3f}."
        )
    return [sentence, [*curves, *plots.reliability(errors)]]


def _show_slices(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    user = without_bytes(run.user_rows)
    kinds = {field.name: field.type for field in user.schema}
    flat = user.select([name for name in kinds if not pa.types.is_nested(kinds[name])])
    slices = mistakes.worst_slices(rows, table.get("tokens"), flat.to_pandas(), _SLICES)
    cells = [
        [
            Cell(part["name"]),
            Cell(f"{part['rows']:,}", kind="number"),
            *estimates(part, ["accuracy"]),
            Cell("lower than on all rows" * part["lower"], kind="bad"),
        ]
        for part in slices
    ]
    caption = "Slices of at least 20 rows with the lowest accuracy; some are low by chance"
    return [Table(caption, ["rows with", "rows", "accuracy", ""], cells)] if cells else []


def _show_mistakes(run: Run, table: pd.DataFrame, rows: ScoredRows) -> list[Any]:
    wrong = mistakes.most_confident(rows)
    suspects = suspicion(run, rows)
    suspected = suspects.rows if suspects else np.array([], dtype=np.int64)
    sentence = f"{len(wrong):,} of {len(rows):,} rows are wrong. "
    if suspects is None:
        sentence += "No label is suspected: the model beats no baseline, or there are too few rows "
        sentence += "or too many mistakes."
    else:
        part = suspects.wrong
        sentence += (
            f"Of the {suspects.confident:,} most confident predictions {len(suspected):,} "
            "contradict the label, which may be wrong: check these rows by hand. At most about "
            f"{part.value:.1%} of all labels are wrong (95% CI {part.low:.1%} to {part.high:.1%})."
        )
    summary = rows.summary
    names = rows.names
    examples = []
    for index in wrong[:_MISTAKES]:
        note = f"{summary.of_label[index]:.1%}" + " label may be wrong" * (index in suspected)
        label = Cell(names[rows.labels[index]], note)
        confidence = Cell(f"{summary.confidence[index]:.1%}", kind="number")
        examples.append((index, [label, Cell(names[rows.classes[index]]), confidence]))
    return [sentence, *_examples(table, "label predicted probability", examples)]


def _examples(
    table: pd.DataFrame, columns: str, examples: Sequence[tuple[int, list[Cell]]]
) -> list[Table]:
    """Return a table of the most confident mistakes, if any: the row as it was read, and cells."""
    inputs = {"text": "text", THUMBNAIL: "image"}
    header = ["row", *(inputs[name] for name in inputs if name in table), *columns.split()]
    lines = []
    for index, cells in examples:
        row = table.iloc[index]
        line = [Cell(str(row["id"]))]
        if "text" in table:
            line.append(excerpt(row["text"]))
        if THUMBNAIL in table:
            jpeg = base64.b64encode(row[THUMBNAIL] or b"").decode()
            address = f"data:image/jpeg;base64,{jpeg}" if jpeg else ""
            line.append(Cell("", str(row.get("file", "")), image=address))
        lines.append([*line, *cells])
    return [Table("The most confident mistakes", header, lines)] if lines else []


#: By the names in ``Task.sections``.
_SECTIONS: Mapping[str, Callable[[Run, pd.DataFrame, Any], list[Any]]] = {
    "training": lambda run, table, rows: [plots.learning_curves(run.manifest)],
    "predictions": _show_predictions,
    "targets": lambda run, table, rows: [*tables.targets(run.statistics)],
    "classes": _show_classes,
    "labels": _show_labels,
    "probabilities": _show_probabilities,
    "slices": _show_slices,
    "mistakes": _show_mistakes,
}
