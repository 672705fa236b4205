"""The report of a set of runs: ``report.html``, and the same table for the terminal; and the
comparison of two sets of seeds.

A score of one run depends on its seed as well as on the test rows. The mean over seeds has a
standard deviation between seeds, and an interval for other seeds and other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from finetune.errors import UserError
from finetune.pipeline.report import metrics_of, read_same_rows
from finetune.recipe.run import Run
from finetune.reporting import plots, tables
from finetune.reporting.tables import Cell, Table, directions, format_score, judge, to_cells
from finetune.search import require_optuna
from finetune.search.run_set import RunSet
from finetune.statistics.estimates import difference_over_seeds, estimate_over_seeds
from finetune.statistics.functions import Metric
from finetune.statistics.metrics import Metrics, has_interval, most_rows

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
    runs = finished_runs(run_set)
    _, rows = read_same_rows(runs)
    metrics = metrics_of(runs[0], rows[0])
    names = runs[0].headline
    scores = estimate_means(rows, {name: metrics[name] for name in names})
    lines = [[Cell(run.path.name), *to_cells(run.metrics.test, names)] for run in runs]
    lines.append([Cell("mean"), *to_cells(scores, names)])
    deviations = {name: score["deviation"] for name, score in scores.items()}
    lines.append([Cell("standard deviation"), *to_cells(deviations, names)])
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


def estimate_means(rows: Sequence[Any], metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over the seeds, its interval, and the standard deviation
    between seeds: ``{"value": ..., "low": ..., "high": ..., "deviation": ...}``.
    """
    scores = {}
    for name, metric in metrics.items():
        replicates = _replicates(rows, metric)
        limit = 0.0
        if has_interval(rows[0], metric):
            limit = most_rows(rows[0], metric)
        score = asdict(estimate_over_seeds(replicates, metric.scale, limit))
        scores[name] = score | {"deviation": float(replicates[:, 0].std(ddof=1))}
    return scores


def compare(paths: Sequence[str | Path | RunSet], trust_recipe: bool = False) -> tuple[Table, str]:
    """Compare the means of two sets of seeds on the same test rows; for ``trust_recipe`` see
    :meth:`Run.load`.

    Returns:
        A table of the means and their difference, with intervals for other seeds and other rows,
        and a sentence that says whether the second set is better.

    Raises:
        UserError: If there are not two sets, or if their test rows differ.
    """
    if len(paths) != 2:
        raise UserError(f"compare: expected two sets of runs, or runs, found {len(paths)}")
    run_sets = [RunSet.load(path, trust_recipe=trust_recipe) for path in paths]
    if {run_set.manifest.kind for run_set in run_sets} != {"repeat"}:
        raise UserError("compare: expected sets of seeds, from `repeat`; a search has no seeds")
    if run_sets[0].path.resolve() == run_sets[1].path.resolve():
        raise UserError(f"compare: expected two sets of runs, found {paths[0]} twice")
    first, second = map(finished_runs, run_sets)
    _, rows_of_both = read_same_rows([*first, *second])
    rows, rows_of_second = rows_of_both[: len(first)], rows_of_both[len(first) :]
    metrics = metrics_of(first[0], rows[0])
    headline = first[0].headline
    chosen = {name: metrics[name] for name in headline}
    gaps = {}
    for name, metric in chosen.items():
        if has_interval(rows[0], metric):
            before, after = (_replicates(part, metric) for part in (rows, rows_of_second))
            gaps[name] = asdict(difference_over_seeds(before, after))
    names = list(map(str, paths))
    lines = [
        [Cell(name), *to_cells(estimate_means(part, chosen), headline)]
        for name, part in zip(names, (rows, rows_of_second), strict=True)
    ]
    lines.append([Cell("difference"), *to_cells(gaps, headline, signed=True)])
    better = directions(first[0].manifest)
    verdict = judge(names[1], names[0], gaps, headline, better)
    return Table(f"Means over seeds, {len(rows[0]):,} test rows", ["", *headline], lines), verdict


def _replicates(rows: Sequence[Any], metric: Metric) -> np.ndarray:
    return np.array(list(map(metric.function, rows)))
