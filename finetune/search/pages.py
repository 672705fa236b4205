"""The report of a set of runs: ``report.html``, and the same table for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

from finetune.pipeline.report import metrics_of, read_same_rows
from finetune.reporting import plots, tables
from finetune.reporting.tables import Cell, Table, format_score, to_cells
from finetune.search import require_optuna, seeds
from finetune.search.run_set import RunSet

PAGE = "report.html"


# or the plots of Optuna cut off long names
@matplotlib.rc_context({**plots.STYLE, "savefig.bbox": "tight"})
def write(path: str | Path | RunSet, trust_recipe: bool = False) -> tuple[Path, Table, list[str]]:
    """Write the report of a set, and return its path, the table of its runs and the verdicts; for
    ``trust_recipe`` see :meth:`Run.load`.
    """
    run_set = RunSet.load(path, trust_recipe=trust_recipe)
    if run_set.manifest.kind == "repeat":
        sections, verdicts = _describe_seeds(run_set)
    else:
        require_optuna()
        from finetune.search import study_page

        sections, verdicts = study_page.describe(run_set)
    manifest = run_set.manifest
    page = run_set.path / PAGE
    sections["Provenance"] = [manifest.command]
    tables.write_page(page, f"{Path(manifest.recipe).name}: {manifest.kind}", verdicts, sections)
    table: Table = next(iter(sections.values()))[0]
    return page, table, verdicts


def _describe_seeds(run_set: RunSet) -> tuple[dict[str, list[Any]], list[str]]:
    runs = seeds.finished_runs(run_set)
    _, rows = read_same_rows(runs)
    metrics = metrics_of(runs[0], rows[0])
    names = runs[0].headline
    scores = seeds.estimate_means(rows, {name: metrics[name] for name in names})
    lines = [[Cell(run.path.name), *to_cells(run.metrics.test, names)] for run in runs]
    lines.append([Cell("mean"), *to_cells(scores, names)])
    deviations = {name: score["deviation"] for name, score in scores.items()}
    lines.append([Cell("standard deviation"), *to_cells(deviations, names)])
    table = Table(f"Test set, {len(rows[0]):,} rows, {len(runs)} seeds", ["", *names], lines)
    verdict = f"Mean of {len(runs)} seeds: {format_score(names[0], scores[names[0]])}."
    note = "The interval of the mean is for other seeds and other test rows."
    return {"Scores": [table, note]}, [f"{verdict} {note}"]
