"""``report.html``: one file that shows what a run is worth, and its plots beside it as PNG.

Everything comes from the run directory: ``run.json``, ``metrics.json``, ``predictions.parquet``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.reporting import facts, html, tables, wording
from finetune.reporting.html import Section
from finetune.reporting.sections import SECTIONS, Content
from finetune.runs.run import Run
from finetune.runtime.files import refuse_link

PAGE, PLOTS = "report.html", "plots"


def write(run: Run) -> Path:
    """Write the page and the plots of a finished run; what was there is replaced.

    Raises:
        UserError: If the run has no statistics.
    """
    manifest, statistics, headline = run.manifest, run.statistics, run.headline
    table = run.predicted_rows
    content = Content(run, manifest, statistics, table, run.scored(table))
    sections = [_scores(run)]
    sections += [Section(name.capitalize(), SECTIONS[name](content)) for name in run.kind.sections]
    sections.append(Section("Provenance", [manifest.command, facts.provenance(manifest)]))
    verdicts = [
        *("; ".join(wording.score(name, statistics.metrics[name]) for name in headline),),
        *wording.verdicts(statistics, headline, wording.directions(manifest)),
    ]
    title = f"{Path(manifest.recipe).name}: {manifest.data.source}"
    warnings = [*manifest.data.notes, *statistics.notes]
    html.write(run.path / PAGE, title, verdicts, sections, warnings)
    plots = {plot.name: plot for section in sections for plot in section.plots}
    directory = run.path / PLOTS
    refuse_link(directory)
    directory.mkdir(exist_ok=True)
    for path in directory.glob("*.png"):  # what this run has too few rows or steps for
        if path.stem not in plots:
            path.unlink()
    for name, plot in plots.items():
        plot.save(directory / f"{name}.png")
    return run.path / PAGE


def _scores(run: Run) -> Section:
    blocks: list[Any] = [tables.scores(run.metrics, run.headline)]
    further = tables.metrics("Other scores of the model", run.statistics, run.headline)
    if further.rows:
        blocks.append(further)
    note = "The confidence intervals cover the sampling of the test rows, not another training run."
    return Section("Scores", [*blocks, note])
