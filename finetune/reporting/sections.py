"""The sections of a report between its scores and where it comes from, by the names that a task
gives them; each draws its plots and says what its template shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import THUMBNAIL
from finetune.reporting import curves, html, plots, ranking, residuals, wording
from finetune.reporting.figure import Plot
from finetune.runs.run import Run
from finetune.statistics import calibration, mistakes
from finetune.statistics.metrics import MOST_CONFUSED
from finetune.statistics.scored import ScoredNumbers, ScoredRows
from finetune.training.manifest import METRICS, Manifest, Statistics

_MISTAKES, _SLICES, _TARGETS, _CLASSES = 20, 10, 6, 50
#: Of more classes those with the lowest F1 are shown.
_MOST_SHOWN = 200
_NONE = np.array([], dtype=np.int64)
#: What a reader calls the plots that a run of few steps or rows does not have.
WORDS = {
    "errors": "distribution of the errors",
    "learning_curves": "learning curves",
    "speed": "throughput by step",
    "confusion": "confusion matrix",
    "classes": "F1 by class",
    "labels": "F1 by label",
    "together": "labels of the same rows",
    "roc": "ROC curve",
    "precision_recall": "precision-recall curve",
    "reliability": "calibration",
    "length": "accuracy by length",
}


@dataclass(frozen=True)
class Shown:
    """What a report is about.

    Attributes:
        run: With its headline.
        manifest: Its ``run.json``.
        statistics: Of its test rows.
        table: Its ``predictions.parquet``.
        rows: The same as the statistics of its task take them.
        classes: The scores of each class or label, by name.
    """

    run: Run
    manifest: Manifest
    statistics: Statistics
    table: pd.DataFrame
    rows: Any
    classes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A section: shown if it has a plot or content.

    Attributes:
        figures: Its plots by name; None where there are too few steps or rows for one.
        content: What its template shows.
    """

    figures: Mapping[str, Plot | None] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)


def training(report: Shown) -> Section:
    """Show how the training went."""
    history = report.manifest.history
    learned = curves.learning_curves(history, report.manifest.best_step)
    return Section({"learning_curves": learned, "speed": curves.speed(history)})


def predictions(report: Shown) -> Section:
    """Show predicted against true numbers and their errors, of the first targets."""
    rows: ScoredNumbers = report.rows
    names, figures = report.run.labels[:_TARGETS] or [""], dict[str, Plot | None]()
    for place, name in enumerate(names):
        plots_of_target = residuals.of_target(rows.targets[:, place], rows.outputs[:, place], name)
        after = f"_{place + 1}" if name else ""
        figures |= {f"{kind}{after}": plot for kind, plot in plots_of_target.items()}
    return Section(figures)


def targets(report: Shown) -> Section:
    """Show how well each of several numbers is predicted."""
    scores = report.statistics.targets or {}
    return Section(content={"targets": scores} if scores else {})


def classes(report: Shown) -> Section:
    """Show how well each class is found, and with which it is confused."""
    rows: ScoredRows = report.rows
    matrix, scores = rows.confusion, report.classes
    figures: dict[str, Plot | None] = {"classes": plots.classes(scores)}
    some, confused = scores, list[dict[str, Any]]()
    if len(matrix) <= MOST_CONFUSED:
        figures = {"confusion": plots.confusion(matrix, rows.names), **figures}
    else:
        confused = _confused(matrix, rows.names)
    if len(scores) > _MOST_SHOWN:
        lowest = sorted(scores, key=lambda name: scores[name]["f1"]["value"])[:_CLASSES]
        some = {name: scores[name] for name in lowest}
    facts = {"all": len(scores), "table": METRICS, "confused": confused}
    return Section(figures, {"classes": some, **facts})


def _confused(matrix: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """Return the most frequent confusions, where a plot of all would be too fine to be read."""
    confusions = matrix.copy()
    np.fill_diagonal(confusions, 0)
    pairs = np.argsort(-confusions, axis=None, kind="stable")[:_MISTAKES]
    cells = [divmod(int(cell), len(names)) for cell in pairs]
    return [
        {
            "label": names[true],
            "prediction": names[predicted],
            "rows": int(confusions[true, predicted]),
            "share": confusions[true, predicted] / matrix[true].sum(),
        }
        for true, predicted in cells
        if confusions[true, predicted]
    ]


def labels(report: Shown) -> Section:
    """Show how well each label is found, of those that a row has any number of, and the mistakes
    that the model is most confident about.
    """
    scores, rows = report.classes, report.rows
    order = mistakes.farthest(rows)[:_MISTAKES]
    return Section(
        {"labels": plots.classes(scores, "label")},
        {
            "classes": scores,
            "thresholds": report.statistics.thresholds or {},
            "right": f"{rows.right.sum():,} of {len(rows):,}",
            "mistakes": [
                {
                    "id": report.table["id"].iloc[index],
                    "text": html.excerpt(report.table["text"].iloc[index])
                    if "text" in report.table
                    else None,
                    "label": _joined(rows.names, rows.labels[index]),
                    "prediction": _joined(rows.names, rows.decided[index]),
                }
                for index in order
            ],
        },
    )


def _joined(names: list[str], has: np.ndarray) -> str:
    return ", ".join(name for name, is_set in zip(names, has, strict=True) if is_set) or "none"


def together(report: Shown) -> Section:
    """Show which labels the same rows have."""
    counts = report.statistics.together
    return Section(
        {"together": plots.together(np.asarray(counts), report.rows.names) if counts else None}
    )


def probabilities(report: Shown) -> Section:
    """Show what the probabilities are worth."""
    statistics, scoring = report.statistics, report.manifest.scoring.values()
    positive = next(
        (int(arguments["pos_label"]) for arguments in scoring if "pos_label" in arguments), 1
    )
    figures = {
        **ranking.plots(report.rows, report.classes, positive),
        "reliability": plots.reliability(statistics.calibration or {}),
    }
    return Section(figures, {"calibration": _of_calibration(statistics)})


def length(report: Shown) -> Section:
    """Show the accuracy against the tokens of a text."""
    if "tokens" not in report.table:
        return Section()
    options = report.manifest.options
    most = None if options.get("long_texts") == "windows" else options.get("max_length")
    tokens, right = report.table["tokens"].to_numpy(), report.rows.right
    return Section({"length": plots.lengths(tokens, right, most)})


def slices(report: Shown) -> Section:
    """Show where the accuracy is lowest."""
    worst = mistakes.worst_slices(report.rows, report.table, _SLICES)
    return Section(content={"slices": worst} if worst else {})


def mistaken(report: Shown) -> Section:
    """Show the most confident mistakes, and labels that may be wrong."""
    rows: ScoredRows = report.rows
    wrong, run = mistakes.most_confident(rows), report.run
    suspects, judged = suspicion(run, rows)
    suspected = suspects.rows if suspects else _NONE
    first = wrong[:_MISTAKES]
    further = suspected[~np.isin(suspected, first)][:_MISTAKES]
    count = f"{len(wrong):,} of {len(rows):,} rows {_is(len(wrong))} wrong. "
    return Section(
        content={
            "mistakes": _rows(rows, report.table, first, suspected),
            "suspects": _rows(rows, report.table, further),
            "mistaken": count + _suspicion(suspects, judged),
        }
    )


def suspicion(run: Run, rows: ScoredRows) -> tuple[mistakes.Suspicion | None, bool]:
    """Return which labels of the test rows may be wrong, and whether the run beats a baseline, as
    it has to before any is suspected.
    """
    judged = wording.beats_a_baseline(
        run.statistics, run.headline, wording.directions(run.manifest)
    )
    return (mistakes.suspicion(rows) if judged else None), judged


#: By the names in ``Task.sections``; each has a template in ``templates/sections/``.
SECTIONS: Mapping[str, Callable[[Shown], Section]] = {
    "training": training,
    "predictions": predictions,
    "targets": targets,
    "classes": classes,
    "labels": labels,
    "together": together,
    "probabilities": probabilities,
    "length": length,
    "slices": slices,
    "mistakes": mistaken,
}


def _of_calibration(statistics: Statistics) -> str:
    errors = statistics.calibration
    if errors is None:
        return ""
    sentence = (
        "The expected calibration error, the mean gap between confidence and accuracy, is "
        f"{errors['expected_calibration_error']:.3f}; of a calibrated model it is below "
        f"{errors['calibrated']:.3f} on 95 of 100 sets of as many rows."
    )
    if "temperature" not in errors:
        return sentence
    if (hot := errors["temperature"]) is None:
        return (
            f"{sentence} No temperature mends these probabilities: the one fitted on the "
            f"validation rows ran to an end of its range ({calibration.LOWEST:g} to "
            f"{calibration.HIGHEST:g})."
        )
    if "after" not in errors:
        return (
            f"{sentence} On the validation rows no temperature lowers the log loss by more than "
            "chance: the probabilities need none."
        )
    before, after = (error["expected_calibration_error"] for error in (errors, errors["after"]))
    tendency = "overconfident" if hot > 1 else "underconfident"
    fitted = f"{sentence} On the validation rows the model was {tendency}; the temperature fitted "
    fitted += "there, "
    if after < before:
        return (
            f"{fitted}{hot:.2f}, brings the error on the test rows to {after:.3f} "
            "(python -m finetune predict --calibrated)."
        )
    return (
        f"{fitted}{hot:.2f}, does not help on the test rows: there the error is {after:.3f} with "
        f"it, {before:.3f} without."
    )


def _suspicion(suspects: mistakes.Suspicion | None, judged: bool) -> str:
    if not judged:
        return "No label is suspected: the model is not known to beat a baseline."
    if suspects is None:
        return "No label is suspected: there are too few rows, or too many mistakes, to tell."
    contradicted = len(suspects.rows)
    looked = f"Of the {suspects.confident:,} most confident predictions"
    if not contradicted:
        return f"{looked} none contradicts its label: no label is suspected."
    wrong = suspects.wrong
    return (
        f"{looked} {contradicted:,} contradict{'s' * (contradicted == 1)} the label, which may be "
        f"wrong. By that at most about {wording.percent(wrong.value)} of all labels are (95% CI "
        f"{wording.percent(wrong.low)} to {wording.percent(wrong.high)}). This is a suspicion, to "
        "be checked by hand."
    )


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _rows(
    predicted: ScoredRows, table: pd.DataFrame, chosen: np.ndarray, suspected: np.ndarray = _NONE
) -> list[dict[str, Any]]:
    """Return what a table of rows shows; those whose label is ``suspected`` are marked."""
    labels, classes, summary = predicted.labels, predicted.classes, predicted.summary
    return [
        {
            "id": table["id"].iloc[index],
            "text": html.excerpt(table["text"].iloc[index]) if "text" in table else None,
            "image": html.inlined(table[THUMBNAIL].iloc[index]) if THUMBNAIL in table else None,
            "file": table["file"].iloc[index] if THUMBNAIL in table and "file" in table else "",
            "label": predicted.names[labels[index]],
            "of_label": summary.of_label[index],
            "prediction": predicted.names[classes[index]],
            "probability": summary.confidence[index],
            "suspected": index in suspected,
        }
        for index in chosen
    ]
