"""The report of a set of runs: ``report.html``, and the same table for the terminal.

A score of one run depends on its seed as well as on the test rows. The mean over seeds has a
standard deviation between seeds, and an interval for other seeds and other rows.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from finetune.errors import UserError
from finetune.pipeline.compare import metrics_of, read_same_rows
from finetune.recipe.run import Run
from finetune.reporting import plots, tables
from finetune.reporting.tables import Table, format_score, score_row
from finetune.sets import require_optuna
from finetune.sets.run_set import RunSet
from finetune.statistics.estimates import estimate
from finetune.statistics.functions import Metric
from finetune.statistics.metrics import NamedMetrics, max_effective_rows

PAGE = "report.html"


# or the plots of Optuna cut off long names
@matplotlib.rc_context({**plots.STYLE, "savefig.bbox": "tight"})
def write_report(
    path: str | Path | RunSet, trust_recipe: bool = False
) -> tuple[Path, Table, list[str]]:
    """Write the report of a set, and return its path, the table of its runs and the verdicts; for
    ``trust_recipe`` see :meth:`Run.load`.
    """
    run_set = RunSet.load(path, trust_recipe=trust_recipe)
    if run_set.manifest.kind == "repeat":
        sections, verdicts = _describe_seeds(run_set)
    else:
        require_optuna()
        from finetune.sets import study_page

        sections, verdicts = study_page.describe(run_set)
    manifest = run_set.manifest
    page = run_set.path / PAGE
    sections["Provenance"] = [manifest.command]
    tables.write_page(page, f"{Path(manifest.recipe).name}: {manifest.kind}", verdicts, sections)
    table: Table = next(iter(sections.values()))[0]
    return page, table, verdicts


def _describe_seeds(run_set: RunSet) -> tuple[dict[str, list[Any]], list[str]]:
    runs = finished_runs(run_set)
    _, rows = read_same_rows(runs)
    scores = estimate_means(rows, headline_metrics(runs[0], rows[0]))
    names = list(scores)
    lines = [score_row(run.path.name, run.metrics.test, names) for run in runs]
    lines.append(score_row("mean", scores, names))
    deviations = {name: score["deviation"] for name, score in scores.items()}
    lines.append(score_row("standard deviation", deviations, names))
    table = Table(f"Test set, {len(rows[0]):,} rows, {len(runs)} seeds", ["", *names], lines)
    verdict = f"Mean of {len(runs)} seeds: {format_score(names[0], scores[names[0]])}."
    note = "The interval of the mean is for other seeds and other test rows."
    return {"Scores": [table, note]}, [f"{verdict} {note}"]


def finished_runs(run_set: RunSet) -> list[Run]:
    """Return the finished runs of a set.

    Raises:
        UserError: If there are fewer than two.
    """
    runs = [run for run in run_set.runs if run.status == "finished"]
    if len(runs) < 2:
        command = run_set.manifest.command
        raise UserError(
            f"{run_set.path}: expected two finished runs or more; to continue: {command}"
        )
    return runs


def headline_metrics(run: Run, rows: Any) -> NamedMetrics:
    """Return the metrics of the headline of a run; ``rows`` are its test rows."""
    metrics = metrics_of(run, rows)
    return {name: metrics[name] for name in run.headline}


def estimate_means(rows: Sequence[Any], metrics: NamedMetrics) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over the seeds, its interval, and the standard deviation
    between seeds: ``{"value": ..., "low": ..., "high": ..., "deviation": ...}``.
    """
    scores = {}
    for name, metric in metrics.items():
        replicates = replicate_runs(rows, metric)
        limit = max_effective_rows(rows[0], metric)
        score = asdict(estimate(replicates, metric.scale, limit))
        scores[name] = score | {"deviation": float(replicates[:, 0].std(ddof=1))}
    return scores


def replicate_runs(rows: Sequence[Any], metric: Metric) -> np.ndarray:
    """Return the replicates of a metric for the test rows of each run: ``(runs, 1 + groups)``."""
    return np.array(list(map(metric.function, rows)))
