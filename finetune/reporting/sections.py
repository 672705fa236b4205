"""The sections of a report between its scores and where it comes from, by the names that a task
gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import THUMBNAIL
from finetune.reporting import plots, tables, wording
from finetune.reporting.figure import Plot
from finetune.reporting.html import Cell, Table, count, estimated, excerpt, inlined
from finetune.runs.run import Run
from finetune.statistics import calibration, mistakes
from finetune.statistics.metrics import MOST_CONFUSED
from finetune.statistics.scored import ScoredNumbers, ScoredRows
from finetune.training.manifest import METRICS, Manifest, Statistics

_MISTAKES, _SLICES, _TARGETS, _CLASSES = 20, 10, 6, 50
#: Of more classes those with the lowest F1 are shown.
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Content:
    """What a report is about.

    Attributes:
        run: With its headline.
        manifest: Its ``run.json``.
        statistics: Of its test rows.
        table: Its ``predictions.parquet``.
        rows: The same as the statistics of its task take them.
    """

    run: Run
    manifest: Manifest
    statistics: Statistics
    table: pd.DataFrame
    rows: Any


def _figures(*figures: Plot | None) -> list[list[Plot]]:
    """Return a block of the plots that there are."""
    block = [plot for plot in figures if plot is not None]
    return [block] if block else []


def training(report: Content) -> list[Any]:
    """Show how the training went."""
    return _figures(plots.learning_curves(report.manifest.history, report.manifest.best_step))


def predictions(report: Content) -> list[Any]:
    """Show predicted against true numbers and their errors, of the first targets."""
    rows: ScoredNumbers = report.rows
    names, figures = report.run.labels[:_TARGETS] or [""], list[Plot]()
    for place, name in enumerate(names):
        suffix = f"_{place + 1}" if name else ""
        true, predicted = rows.targets[:, place], rows.outputs[:, place]
        figures += plots.numbers(true, predicted, name or "value", suffix)
    return _figures(*figures)


def targets(report: Content) -> list[Any]:
    """Show how well each of several numbers is predicted."""
    return [tables.targets(report.statistics)] if report.statistics.targets else []


def classes(report: Content) -> list[Any]:
    """Show how well each class is found, and with which it is confused."""
    rows: ScoredRows = report.rows
    matrix, scores = rows.confusion, report.statistics.classes or {}
    blocks: list[Any] = [tables.classes(report.statistics)]
    if len(scores) > _MOST_SHOWN:
        lowest = sorted(scores, key=lambda name: scores[name]["f1"]["value"])[:_CLASSES]
        blocks = [tables.classes(report.statistics, lowest), f"All classes are in {METRICS}."]
    if len(matrix) <= MOST_CONFUSED:
        return blocks + _figures(plots.confusion(matrix, rows.names))
    confusions = matrix.copy()  # of which a plot would be too fine to be read
    np.fill_diagonal(confusions, 0)
    pairs = np.argsort(-confusions, axis=None, kind="stable")[:_MISTAKES]
    cells = [
        [
            Cell(rows.names[true]),
            Cell(rows.names[predicted]),
            count(int(confusions[true, predicted])),
            Cell(f"{confusions[true, predicted] / matrix[true].sum():.1%}", kind="number"),
        ]
        for true, predicted in (divmod(int(pair), len(matrix)) for pair in pairs)
        if confusions[true, predicted]
    ]
    header = ["label", "predicted", "rows", "share of the class"]
    return [*blocks, Table("The most frequent confusions", header, cells)] if cells else blocks


def labels(report: Content) -> list[Any]:
    """Show how well each label is found, of those that a row has any number of, and the mistakes
    that the model is most confident about.
    """
    rows = report.rows
    blocks: list[Any] = [
        f"{rows.right.sum():,} of {len(rows):,} rows are given exactly the labels they have."
    ]
    if report.statistics.thresholds:
        blocks.append(
            "A label is given above a probability of one half; for that the outputs were shifted "
            "by thresholds fitted on the validation rows, so the scores of these are a little too "
            "good."
        )
    wrong = mistakes.farthest(rows)[:_MISTAKES]
    examples = [
        [
            *_row(report.table, index),
            Cell(_joined(rows.names, rows.labels[index])),
            Cell(_joined(rows.names, rows.decided[index])),
        ]
        for index in wrong
    ]
    header = _header(report.table, "labels", "predicted")
    mistaken_rows = [Table("The most confident mistakes", header, examples)] if examples else []
    return [*blocks, tables.classes(report.statistics), *mistaken_rows]


def _joined(names: list[str], has: np.ndarray) -> str:
    return ", ".join(name for name, is_set in zip(names, has, strict=True) if is_set) or "none"


def probabilities(report: Content) -> list[Any]:
    """Show what the probabilities are worth."""
    statistics = report.statistics
    declared = (arguments.get("pos_label") for arguments in report.manifest.scoring.values())
    positive = next((int(number) for number in declared if number is not None), 1)
    figures: list[Plot | None] = [
        *plots.ranking(report.rows, statistics.classes or {}, positive),
        plots.reliability(statistics.calibration) if statistics.calibration else None,
    ]
    return [*_describe_calibration(statistics), *_figures(*figures)]


def _describe_calibration(statistics: Statistics) -> list[str]:
    errors = statistics.calibration
    if errors is None:
        return []
    name = "expected_calibration_error"
    sentences = [
        "The expected calibration error, the mean gap between confidence and accuracy, is "
        f"{errors[name]:.3f}; of a calibrated model it is below {errors['calibrated']:.3f} on 95 "
        "of 100 sets of as many rows."
    ]
    if "temperature" in errors and errors["temperature"] is None:
        sentences.append(
            "No temperature improves the calibration: the one fitted on the validation rows ran "
            f"to an end of its range ({calibration.LOWEST:g} to {calibration.HIGHEST:g})."
        )
    elif "after" in errors:
        tendency = "overconfident" if errors["temperature"] > 1 else "underconfident"
        sentences.append(
            f"On the validation rows the model was {tendency}: with the temperature fitted there, "
            f"{errors['temperature']:.2f} (python -m finetune predict --calibrated), the error on "
            f"the test rows is {errors['after'][name]:.3f}."
        )
    return sentences


def length(report: Content) -> list[Any]:
    """Show the accuracy against the tokens of a text."""
    if "tokens" not in report.table:
        return []
    options = report.manifest.options
    most = None if options.get("long_texts") == "windows" else options.get("max_length")
    return _figures(plots.lengths(report.table["tokens"].to_numpy(), report.rows.right, most))


def slices(report: Content) -> list[Any]:
    """Show where the accuracy is lowest."""
    rows = [
        [
            Cell(part["name"]),
            count(part["rows"]),
            estimated(part["accuracy"]),
            Cell("lower than on all rows" * part["lower"], kind="bad"),
        ]
        for part in mistakes.worst_slices(report.rows, report.table, _SLICES)
    ]
    caption = "Slices of at least 20 rows with the lowest accuracy; some are low by chance"
    return [Table(caption, ["rows with", "rows", "accuracy", ""], rows)] if rows else []


def mistaken(report: Content) -> list[Any]:
    """Show the most confident mistakes, and labels that may be wrong."""
    rows: ScoredRows = report.rows
    wrong, suspects = mistakes.most_confident(rows), suspicion(report.run, rows)
    suspected = suspects.rows if suspects else np.array([], dtype=np.int64)
    header = _header(report.table, "label", "predicted", "probability")
    examples = {
        "The most confident mistakes": wrong[:_MISTAKES],
        "Other rows whose label may be wrong": suspected[~np.isin(suspected, wrong[:_MISTAKES])][
            :_MISTAKES
        ],
    }
    return [
        f"{len(wrong):,} of {len(rows):,} rows are wrong. {_describe_suspicion(suspects)}",
        *(
            Table(caption, header, _examples(rows, report.table, chosen, suspected))
            for caption, chosen in examples.items()
            if len(chosen)
        ),
    ]


def suspicion(run: Run, rows: ScoredRows) -> mistakes.Suspicion | None:
    """Return which labels of the test rows may be wrong; none if the run beats no baseline."""
    better = wording.directions(run.manifest)
    beats = wording.beats_a_baseline(run.statistics, run.headline, better)
    return mistakes.suspicion(rows) if beats else None


def _describe_suspicion(suspects: mistakes.Suspicion | None) -> str:
    if suspects is None:
        return (
            "No label is suspected: the model beats no baseline, or there are too few rows or too "
            "many mistakes."
        )
    looked = f"Of the {suspects.confident:,} most confident predictions"
    if not len(suspects.rows):
        return f"{looked} none contradicts its label: no label is suspected."
    wrong = suspects.wrong
    return (
        f"{looked} {len(suspects.rows):,} contradict the label, which may be wrong. This suggests "
        f"that at most about {wrong.value:.1%} of all labels are wrong (95% CI {wrong.low:.1%} to "
        f"{wrong.high:.1%}); check the rows by hand."
    )


def _header(table: pd.DataFrame, *names: str) -> list[str]:
    return ["row", *(name for name in ("text", "image") if _has(table, name)), *names]


def _has(table: pd.DataFrame, name: str) -> bool:
    return {"text": "text", "image": THUMBNAIL}[name] in table


def _row(table: pd.DataFrame, index: int) -> list[Cell]:
    """Return the cells that say which row it is."""
    row = table.iloc[index]
    cells = [Cell(str(row["id"]))]
    if _has(table, "text"):
        cells.append(excerpt(row["text"]))
    if _has(table, "image"):
        cells.append(Cell("", str(row.get("file", "")), image=inlined(row[THUMBNAIL])))
    return cells


def _examples(
    predicted: ScoredRows, table: pd.DataFrame, chosen: Iterable[int], suspected: np.ndarray
) -> list[list[Cell]]:
    """Return the rows of a table of mistakes; a label that is ``suspected`` is marked."""
    summary, names = predicted.summary, predicted.names
    return [
        [
            *_row(table, index),
            Cell(
                names[predicted.labels[index]],
                f"{summary.of_label[index]:.1%}" + " label may be wrong" * (index in suspected),
            ),
            Cell(names[predicted.classes[index]]),
            Cell(f"{summary.confidence[index]:.1%}", kind="number"),
        ]
        for index in chosen
    ]


#: By the names in ``Task.sections``.
SECTIONS: Mapping[str, Callable[[Content], list[Any]]] = {
    "training": training,
    "predictions": predictions,
    "targets": targets,
    "classes": classes,
    "labels": labels,
    "probabilities": probabilities,
    "length": length,
    "slices": slices,
    "mistakes": mistaken,
}
