"""Runs on the same test rows, each against the first: is it better, and where do they differ?"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from finetune.data.prediction_columns import DIGEST
from finetune.errors import UserError, counted
from finetune.recipe.scoring import without_counted
from finetune.reporting import html, tables, wording
from finetune.reporting.html import Cell, Section, Table, estimates
from finetune.runs.run import Run
from finetune.statistics.estimates import McNemar, holm, mcnemar
from finetune.statistics.scored import distances
from finetune.tasks.assessment import compared
from finetune.tasks.base import Task
from finetune.training.manifest import Manifest

_ROWS = 30


@dataclass(frozen=True)
class Comparison:
    """The comparison of several runs.

    Attributes:
        names: Of the runs: their directories.
        rows: How many test rows they share.
        headline: The metrics of the first run's recipe: the one that decides the verdicts, by which
            its best checkpoint was chosen, then the others.
        metrics: For each run the metrics of the first one, with intervals.
        differences: For each run but the first, how much more of each metric it has than the
            first, with a 95% interval.
        tests: For each run but the first, McNemar's test of the accuracy; none in a regression.
        settings: Options and training arguments that are not the same in all, by name.
        disagreements: Indices of rows for which the runs have not the same prediction, the ones
            of which they are most confident first.
        tables: ``predictions.parquet`` of each.
        verdicts: A sentence for each run but the first: whether it is better. Of several
            comparisons, the chance of a single wrong "better" or "worse" is 5% (Holm, 1979).
    """

    names: list[str]
    rows: int
    headline: list[str]
    metrics: list[Mapping[str, Any]]
    differences: list[dict[str, Any]]
    tests: list[McNemar]
    settings: dict[str, list[str]]
    disagreements: np.ndarray
    tables: list[pd.DataFrame]
    verdicts: list[str]

    def scores(self, names: Sequence[str]) -> Table:
        """Return a table of metrics: each run, and its difference to the first."""
        rows = [[Cell(self.names[0]), *estimates(self.metrics[0], names)]]
        columns = (self.names[1:], self.metrics[1:], self.differences)
        for name, metrics, differences in zip(*columns, strict=True):
            rows.append([Cell(name), *estimates(metrics, names)])
            gaps = estimates(differences, names, signed=True)
            rows.append([Cell(f"difference to {self.names[0]}"), *gaps])
        caption = f"{counted(self.rows, 'test row')}, the same for all; 95% confidence intervals"
        return Table(caption, ["", *names], rows)


def compare(
    runs: Sequence[Run | str | Path], page: str | Path | None = None, *, trust_recipe: bool = False
) -> Comparison:
    """Compare two runs or more with the first.

    Args:
        runs: Runs, or their directories.
        page: Where to write the comparison as a page; one that is there is replaced.
        trust_recipe: Whether to import recipe files that the runs name; see :meth:`Run.load`.

    Raises:
        UserError: If their tasks, their test rows or the labels of these are not the same, or if
            they have no metric that is a number.
    """
    if isinstance(runs, (str, Path, Run)) or len(runs) < 2:
        raise UserError(f"compare: expected a list of two runs or more, found {runs!r}")
    loaded = [Run.load(run, trust_recipe=trust_recipe) for run in runs]
    path = None if page is None else Path(page).expanduser()
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"--output {page}: no such directory: {path.parent}")
    if path is not None and path.is_dir():
        raise UserError(f"--output {page} is a directory: name a file, like {page}/comparison.html")
    comparison = _compared(loaded)
    if path is not None:
        _write_page(path, comparison, loaded)
    return comparison


def _judge(
    names: Sequence[str],
    headline: Sequence[str],
    differences: Sequence[Mapping[str, Any]],
    tests: Sequence[McNemar],
    better: Mapping[str, int],
) -> list[str]:
    """Return the verdicts; see :class:`Comparison`."""
    # from the distance of the nearer end of a 95% interval
    gaps = [differences_of_run.get(headline[0]) for differences_of_run in differences]
    chances = holm([1.0 if gap is None else _p_value(gap) for gap in gaps])
    corrected = holm([test.p_value for test in tests])
    note = f" after Holm's correction for {len(gaps)} comparisons" * (len(gaps) > 1)
    sentences = []
    for number, name in enumerate(names[1:]):
        is_chance = len(gaps) > 1 and chances[number] >= 0.05
        sentence = wording.judge(
            name, names[0], differences[number], headline, better, is_chance=is_chance
        )
        if tests:
            test = tests[number]
            sentence += (
                f" McNemar's test of the accuracy: {test.only_second:,} rows only {name} gets "
                f"right, {test.only_first:,} only {names[0]}, p = {corrected[number]:.3g}{note}."
            )
        sentences.append(sentence)
    return sentences


def _p_value(gap: Mapping[str, float]) -> float:
    """Return how probable a difference as large is by chance, by the end of its 95% interval that
    is nearer to 0.
    """
    value = gap["value"]
    if np.isnan(gap["low"]):  # too few rows for an interval
        return 1.0
    reach = value - gap["low"] if value > 0 else gap["high"] - value
    return float(2 * norm.sf(1.96 * abs(value) / reach)) if reach > 0 else float(value == 0)


def _compared(runs: Sequence[Run]) -> Comparison:
    if unfinished := [run.unfinished for run in runs if run.unfinished]:
        raise UserError(*unfinished)
    headline = runs[0].headline
    if not headline:
        raise UserError(f"{runs[0].path} has no numeric metric: nothing to compare")
    frames = [run.predicted_rows for run in runs]
    task = runs[0].kind
    scored_rows = [runs[0].scored(frames[0])]
    for run, table in zip(runs[1:], frames[1:], strict=True):
        _refuse_other_rows(runs[0], frames[0], run, table)
        scored_rows.append(run.scored(table, task))
        is_other = scored_rows[0].labels != scored_rows[-1].labels
        if count := int(is_other.reshape(len(table), -1).any(axis=1).sum()):
            raise UserError(
                f"{runs[0].path} and {run.path} have different labels for {count:,} of the same "
                f"{counted(len(table), 'test row')}: compare runs with the same --label_column or "
                "--label_columns, and the same --label_map"
            )
    scoring, better = runs[0].manifest.scoring, wording.directions(runs[0].manifest)
    # its recipe may not be importable
    compute_metrics = functools.cache(
        lambda: without_counted(runs[0].compute_metrics, scoring, task)
    )
    judged = [
        compared(task, scored_rows[0], other, scoring, lambda some: compute_metrics()(some))
        for other in scored_rows[1:]
    ]
    names, (first, *others) = [str(run.path) for run in runs], scored_rows
    tests = [mcnemar(first.right, rows.right) for rows in others if task.has_probabilities]
    gaps = np.max([distances(first, rows) for rows in others], axis=0)
    disagreements = np.argsort(-gaps, kind="stable")[: np.count_nonzero(gaps)]
    differences = [gaps for _, gaps in judged]
    return Comparison(
        names,
        len(frames[0]),
        headline,
        [runs[0].statistics.metrics, *(metrics for metrics, _ in judged)],
        differences,
        tests,
        settings_that_differ([run.manifest for run in runs]),
        disagreements,
        frames,
        _judge(names, headline, differences, tests, better),
    )


def settings_that_differ(manifests: Sequence[Manifest]) -> dict[str, list[str]]:
    """Return what decides a result, the launch and the versions that not all runs share."""
    flat = [
        {
            **manifest.configuration,
            **{name.replace("_", " "): value for name, value in asdict(manifest.launch).items()},
            **{f"version of {name}": value for name, value in manifest.versions.items()},
            "revision": manifest.git_revision,
        }
        for manifest in manifests
    ]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: [str(settings.get(name, "")) for settings in flat] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def _refuse_other_rows(
    first: Run, first_table: pd.DataFrame, second: Run, other: pd.DataFrame
) -> None:
    runs, task = f"{first.path} and {second.path} have", first.kind
    if difference := task.find_difference(second.kind):
        raise UserError(f"{runs} {difference}")
    columns = [name for name in ("id", "text", DIGEST) if name in first_table and name in other]
    if len(columns) < 2 or not first_table[columns].equals(other[columns]):
        raise UserError(
            f"{runs} different test rows ({len(first_table):,} and {len(other):,}): compare runs "
            "with the same --dataset, --split_seed and --eval_samples"
        )


def _write_page(page: Path, comparison: Comparison, runs: Sequence[Run]) -> None:
    shared = [name for name in comparison.metrics[0] if all(name in m for m in comparison.metrics)]
    differing: list[Any] = [tables.settings(comparison.names, comparison.settings)]
    count = len(comparison.disagreements)
    rows = [_row(comparison, runs[0].kind, index) for index in comparison.disagreements[:_ROWS]]
    header = ["row", *(["text"] if "text" in comparison.tables[0] else []), "label"]
    examples = Table("Most confident disagreements", [*header, *comparison.names], rows)
    html.write(
        page,
        f"{len(runs)} runs on the same rows",
        comparison.verdicts,
        [
            Section("Scores", [comparison.scores(shared)]),
            Section("Settings", differing if comparison.settings else ["All are the same."]),
            Section(
                "Disagreements",
                [
                    f"The predictions differ on {count:,} of {comparison.rows:,} rows.",
                    *([examples] if rows else []),
                ],
            ),
        ],
    )


def _row(comparison: Comparison, task: Task[Any], index: int) -> list[Cell]:
    first = comparison.tables[0].iloc[index]
    cells = [Cell(str(first["id"]))]
    if "text" in first:
        cells.append(html.excerpt(first["text"]))
    cells.append(Cell(task.describe_row(first)[0]))
    for table in comparison.tables:
        _, prediction, is_right = task.describe_row(table.iloc[index])
        cells.append(Cell(prediction, "\N{CHECK MARK}" * is_right, "good" * is_right))
    return cells
