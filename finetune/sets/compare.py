"""Compare two sets of seeds: is a change more than the luck of seeds and test rows?"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.pipeline.compare import read_same_rows
from finetune.reporting.tables import Table, directions, judge, score_row
from finetune.sets.report import (
    estimate_means,
    finished_runs,
    headline_metrics,
    replicate_runs,
)
from finetune.sets.run_set import RunSet
from finetune.statistics.estimates import difference_over_seeds
from finetune.statistics.metrics import has_interval


def compare_sets(
    paths: Sequence[str | Path | RunSet], trust_recipe: bool
) -> tuple[Table, str, dict[str, Any]]:
    """Compare the means of two sets of seeds on the same test rows; for ``trust_recipe`` see
    :meth:`Run.load`.

    Returns:
        A table of the means and their difference, with intervals for other seeds and other rows, a
        sentence that says whether the second set is better, and the numbers: ``rows``, ``metrics``
        of each set, and their ``differences``.

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
    _, rows = read_same_rows([*first, *second])
    parts = rows[: len(first)], rows[len(first) :]
    metrics = headline_metrics(first[0], rows[0])
    headline = list(metrics)
    gaps = {}
    for name, metric in metrics.items():
        if has_interval(rows[0], metric):
            replicates = [replicate_runs(part, metric) for part in parts]
            gaps[name] = asdict(difference_over_seeds(*replicates))
    lines = []
    names = list(map(str, paths))
    facts: dict[str, Any] = {"rows": len(rows[0]), "metrics": [], "differences": [gaps]}
    for name, part in zip(names, parts, strict=True):
        means = estimate_means(part, metrics)
        facts["metrics"].append(means)
        lines.append(score_row(name, means, headline))
    lines.append(score_row("difference", gaps, headline, signed=True))
    verdict = judge(names[1], names[0], gaps, headline, directions(first[0].manifest))
    table = Table(f"Means over seeds, {len(rows[0]):,} test rows", ["", *headline], lines)
    return table, verdict, facts
