"""``report.html``: one file that shows what a run is worth, and its plots beside it as PNG.

Everything comes from the run directory: ``run.json``, ``metrics.json``, ``predictions.parquet``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finetune.reporting import curves, facts, html, plots, ranking, wording
from finetune.reporting.figure import Plot
from finetune.runs.run import Run
from finetune.runtime.files import refuse_link
from finetune.statistics import calibration, classification, mistakes, threshold
from finetune.statistics.scored import ScoredRows
from finetune.training.manifest import Manifest, Statistics

PAGE, PLOTS = "report.html", "plots"
_MISTAKES, _SLICES = 20, 10
_NONE = np.array([], dtype=np.int64)
#: The plots by section, and what a reader calls those that a small run does not have.
_SECTIONS = {
    "scores": {"predictions": "predicted values"},
    "training": {"learning_curves": "learning curves", "speed": "throughput by step"},
    "classes": {"confusion": "confusion matrix", "classes": "F1 by class"},
    "probabilities": {
        "roc": "ROC curve",
        "precision_recall": "precision-recall curve",
        "reliability": "calibration",
        "coverage": "accuracy by coverage",
    },
    "length": {"length": "accuracy by length"},
}


def write(run: Run) -> Path:
    """Write the page and the plots of a finished run; what was there is replaced.

    Raises:
        UserError: if the run has no statistics.
    """
    content, figures = _content(run)
    directory = run.path / PLOTS
    refuse_link(directory)
    directory.mkdir(exist_ok=True)
    for left in directory.glob("*.png"):  # what this run has too few rows or steps for
        if left.stem not in figures:
            left.unlink()
    for name, plot in figures.items():
        plot.save(directory / f"{name}.png")
    page = run.path / PAGE
    html.write(page, "report", content)
    return page


def _content(run: Run) -> tuple[dict[str, Any], dict[str, Plot]]:
    manifest, metrics, table = run.manifest, run.metrics, run.predictions
    statistics, headline, names = run.statistics, run.headline, run.labels
    predicted = ScoredRows.of_table(table, names) if names else None
    drawn = _figures(manifest, statistics, table, predicted)
    figures = {name: plot for name, plot in drawn.items() if plot is not None}
    words = {name: each for section in _SECTIONS.values() for name, each in section.items()}
    content: dict[str, Any] = {
        "title": f"{Path(manifest.recipe).name}: {manifest.data.source}",
        "verdict": wording.verdict(statistics, headline, wording.directions(manifest)),
        "warnings": [*manifest.data.notes, *statistics.notes],
        "rows": statistics.rows,
        "metrics": headline,
        "statistics": statistics,
        "digits": {
            name: wording.column_digits(
                [own, *(gaps[name] for gaps in statistics.beyond.values() if name in gaps)]
            )
            for name, own in statistics.metrics.items()
        },
        "validation": metrics.validation,
        "baseline": metrics.baseline,
        "others": _others(statistics, headline),
        "manifest": manifest,
        "facts": facts.provenance(manifest),
        "options": facts.options(manifest),
        "calibration": _of_calibration(statistics),
        **dict.fromkeys(("slices", "mistakes", "suspects", "mistaken"), ()),
        "threshold": ranking.sentence(statistics.threshold) if statistics.threshold else "",
        "plots": _by_section(figures),
        "left_out": [each for name, each in words.items() if name in drawn and name not in figures],
    }
    if predicted is not None:
        wrong = mistakes.most_confident(predicted)
        judged = wording.beats_a_baseline(statistics, headline, wording.directions(manifest))
        suspicion = mistakes.suspicion(predicted) if judged else None
        suspected = suspicion.rows if suspicion else _NONE
        shown = wrong[:_MISTAKES]
        further = suspected[~np.isin(suspected, shown)][:_MISTAKES]
        content |= {
            "slices": [asdict(each) for each in mistakes.worst_slices(predicted, table, _SLICES)],
            "mistakes": _rows(predicted, table, shown, suspected),
            "suspects": _rows(predicted, table, further),
            "mistaken": f"{len(wrong):,} of {len(predicted):,} rows {_is(len(wrong))} wrong. "
            + _suspicion(suspicion, judged),
        }
    content["sections"] = _sections(content)
    return content, figures


def _figures(
    manifest: Manifest,
    statistics: Statistics,
    table: pd.DataFrame,
    predicted: ScoredRows | None,
) -> dict[str, Plot | None]:
    """Return every plot that such a run has, None where it has too few steps or rows for it."""
    history = manifest.history
    found: dict[str, Plot | None] = {
        "learning_curves": curves.learning_curves(history, manifest.best_step),
        "speed": curves.speed(history),
    }
    if predicted is None:
        found["predictions"] = plots.numbers(
            table["label"].to_numpy(dtype=float), table["prediction"].to_numpy(dtype=float)
        )
    else:
        found |= {
            "confusion": plots.confusion(classification.confusion(predicted), predicted.names),
            "classes": plots.classes(statistics.classes or {}),
            "reliability": plots.reliability(statistics.calibration or {}),
            "coverage": plots.coverage(statistics.coverage or [], statistics.rows),
            **ranking.plots(
                predicted,
                statistics.classes or {},
                threshold.positive_class(manifest.scoring),
                statistics.threshold,
            ),
        }
        if "tokens" in table:
            right: np.ndarray = predicted.classes == predicted.labels
            found["length"] = plots.lengths(
                table["tokens"].to_numpy(), right, manifest.options.get("max_length")
            )
    return found


def _by_section(figures: Mapping[str, Plot]) -> dict[str, list[dict[str, Any]]]:
    return {
        section: [figures[name].element() for name in names if name in figures]
        for section, names in _SECTIONS.items()
    }


def _sections(content: Mapping[str, Any]) -> list[str]:
    classified = content["statistics"].classes
    there = {
        "Training": content["plots"]["training"],
        "Classes": classified,
        "Probabilities": classified,
        "Length": content["plots"]["length"],
        "Slices": content["slices"],
        "Mistakes": classified,
    }
    return ["Scores", *(name for name in there if there[name]), "Provenance"]


def _others(statistics: Statistics, headline: list[str]) -> dict[str, Any]:
    further = {name: each for name, each in statistics.metrics.items() if name not in headline}
    among = (statistics.top_k or {}).items()
    return {
        **{wording.name(name): each for name, each in further.items()},
        **{f"top-{k} accuracy": each for k, each in among},
        **{wording.name(name): each for name, each in (statistics.ordered or {}).items()},
    }


def _of_calibration(statistics: Statistics) -> str:
    found = statistics.calibration
    if found is None:
        return ""
    error = wording.interval(found["interval"])
    said = (
        f"The expected calibration error, the mean gap between confidence and accuracy, is {error}."
    )
    if "temperature" not in found:
        return said
    if (hot := found["temperature"]) is None:
        return (
            f"{said} No temperature mends these probabilities: the one fitted on the validation "
            f"rows ran to an end of its range ({calibration.COLDEST:g} to "
            f"{calibration.HOTTEST:g})."
        )
    if "after" not in found:
        return (
            f"{said} On the validation rows no temperature lowers the log loss by more than chance:"
            " the probabilities need none."
        )
    before, after = (each["expected_calibration_error"] for each in (found, found["after"]))
    sure = "overconfident" if hot > 1 else "underconfident"
    fitted = f"{said} On the validation rows the model was {sure}; the temperature fitted there, "
    if after < before:
        return (
            f"{fitted}{hot:.2f}, brings the error on the test rows to {after:.3f} "
            "(python -m finetune predict --calibrated)."
        )
    return (
        f"{fitted}{hot:.2f}, does not help on the test rows: there the error is {after:.3f} with "
        f"it, {before:.3f} without."
    )


def _suspicion(found: mistakes.Suspicion | None, judged: bool) -> str:
    if not judged:
        return "No label is suspected: the model is not known to beat a baseline."
    if found is None:
        return "No label is suspected: there are too few rows, or too many mistakes, to tell."
    contradicted = len(found.rows)
    looked = f"Of the {found.confident:,} most confident predictions"
    if not contradicted:
        return f"{looked} none contradicts its label: no label is suspected."
    wrong = found.wrong
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
    labels, classes = predicted.labels, predicted.classes
    return [
        {
            "id": table["id"].iloc[index],
            "text": html.excerpt(table["text"].iloc[index]) if "text" in table else None,
            "label": predicted.names[labels[index]],
            "of_label": predicted.probabilities[index, labels[index]],
            "prediction": predicted.names[classes[index]],
            "probability": predicted.probabilities[index, classes[index]],
            "suspected": index in suspected,
        }
        for index in chosen
    ]
