"""``report.html``: one file that shows what a run is worth, and its plots beside it as PNG.

Everything comes from the run directory: ``run.json``, ``metrics.json``, ``predictions.parquet``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.reporting import facts, html, wording
from finetune.reporting.figure import Plot
from finetune.reporting.sections import SECTIONS, WORDS, Shown
from finetune.runs.run import Run
from finetune.runtime.files import refuse_link
from finetune.training.manifest import Statistics

PAGE, PLOTS = "report.html", "plots"


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
    manifest, metrics, table, task = run.manifest, run.metrics, run.predicted_rows, run.kind
    statistics, headline = run.statistics, run.headline
    rows, every = run.scored(table), statistics.classes or {}
    content = Shown(run, manifest, statistics, table, rows, every)
    sections = {name: SECTIONS[name](content) for name in task.sections}
    every = {name: plot for section in sections.values() for name, plot in section.figures.items()}
    figures = {name: plot for name, plot in every.items() if plot is not None}
    shown_sections = {
        name: {
            **section.content,
            "plots": [plot.element() for plot in section.figures.values() if plot is not None],
        }
        for name, section in sections.items()
        if section.content or any(section.figures.values())
    }
    return {
        "title": f"{Path(manifest.recipe).name}: {manifest.data.source}",
        "verdict": wording.verdict(statistics, headline, wording.directions(manifest)),
        "warnings": [*manifest.data.notes, *statistics.notes],
        "rows": statistics.rows,
        "metrics": headline,
        "statistics": statistics,
        "digits": {
            name: wording.column_digits(
                [estimate, *(gaps[name] for gaps in statistics.beyond.values() if name in gaps)]
            )
            for name, estimate in statistics.metrics.items()
        },
        "validation": metrics.validation,
        "baseline": metrics.baseline,
        "others": _others(statistics, headline),
        "manifest": manifest,
        "facts": facts.provenance(manifest),
        "options": facts.options(manifest),
        "left_out": list(
            dict.fromkeys(
                WORDS[name.rstrip("_0123456789")] for name, plot in every.items() if plot is None
            )
        ),
        "there": shown_sections,
        "sections": ["Scores", *(name.capitalize() for name in shown_sections), "Provenance"],
    }, figures


def _others(statistics: Statistics, headline: list[str]) -> dict[str, Any]:
    further = {
        name: estimate for name, estimate in statistics.metrics.items() if name not in headline
    }
    top_k = (statistics.top_k or {}).items()
    return {
        **{wording.name(name): estimate for name, estimate in further.items()},
        **{f"top-{k} accuracy": estimate for k, estimate in top_k},
        **{wording.name(name): estimate for name, estimate in (statistics.ordered or {}).items()},
    }
