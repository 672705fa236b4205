"""``compare``: which of several runs is better on the same test rows, and where they differ."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from finetune.data.prediction_columns import DIGEST, LABEL, PREDICTION
from finetune.errors import UserError, counted
from finetune.recipe.run import Run
from finetune.reporting import tables
from finetune.reporting.tables import Cell, Table, score_row
from finetune.statistics.estimates import holm
from finetune.statistics.metrics import (
    NamedMetrics,
    estimate,
    estimate_difference,
    recipe_metrics,
    with_standard,
)
from finetune.statistics.scored import distances
from finetune.tasks.base import Task
from finetune.training.options import OF_EVALUATIONS


@dataclass(frozen=True)
class Comparison:
    """The comparison of several runs on the same test rows."""

    names: list[str]  # the directories of the runs
    rows: int  # number of test rows
    #: Names of the metrics of the first run's recipe. The first one chose its best checkpoint and
    #: decides the verdicts.
    headline: list[str]
    metrics: list[Mapping[str, Any]]  # for each run, the same metrics with 95% intervals
    differences: list[dict[str, Any]]  # for each run but the first: its metrics minus the first's
    baselines: Mapping[str, Mapping[str, Any]]  # of the first run: the metrics of each
    settings: dict[str, list[str]]  # settings that are not the same in all runs, by name
    #: Indices of rows with different predictions, the clearest disagreement first, ``(rows,)``.
    disagreements: np.ndarray
    tables: list[pd.DataFrame]  # `Run.predicted_rows` of each run
    #: For each run but the first, a sentence: is it better? With several comparisons, the chance of
    #: any wrong "better" or "worse" is at most 5% (Holm, 1979).
    verdicts: list[str]
    positive_label: str | None = None  # of the first run, if there are two classes

    def scores(self, names: Sequence[str]) -> Table:
        """Return a table of metrics: each run and its difference to the first run, then the
        baselines of the first run.
        """
        rows = [score_row(self.names[0], self.metrics[0], names)]
        columns = (self.names[1:], self.metrics[1:], self.differences)
        for name, metrics, differences in zip(*columns, strict=True):
            rows.append(score_row(name, metrics, names))
            title = f"difference to {self.names[0]}"
            rows.append(score_row(title, differences, names, signed=True))
        for baseline, values in self.baselines.items():
            rows.append(score_row(baseline, values, names))
        caption = f"{counted(self.rows, 'test row')}, the same for all; 95% confidence intervals"
        return Table(caption + tables.positive_class(self.positive_label), ["", *names], rows)


def compare(
    runs: Sequence[Run | str | Path], page: str | Path | None = None, *, trust_recipe: bool = False
) -> Comparison:
    """Compare two or more runs with the first one.

    Args:
        runs: Runs, or their directories.
        page: The HTML file to write the comparison to, if any; an existing file is replaced.
        trust_recipe: Whether to import recipe files that the runs name; see :meth:`Run.load`.

    Returns:
        The metrics, their differences to the first run, and where predictions differ.

    Raises:
        UserError: If the runs differ in task, test rows or test labels, or if the first run has no
            metric that is a number.
    """
    if isinstance(runs, (str, Path, Run)) or len(runs) < 2:
        count = "one" if runs else "none"
        raise UserError(f"compare: expected a list of two or more runs, found {count}")
    loaded = [Run.load(run, trust_recipe=trust_recipe) for run in runs]
    path = None
    if page is not None:
        path = Path(page).expanduser()
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UserError(f"--output {page}: expected a file name in an existing directory")
    if unfinished := [run.unfinished for run in loaded if run.unfinished]:
        raise UserError(*unfinished)
    first = loaded[0]
    headline = first.headline
    if not headline:
        raise UserError(f"{first.path}: expected a metric that is a number, found none to compare")
    frames, scored_rows = read_same_rows(loaded)
    metrics = metrics_of(first, scored_rows[0])
    differences = [estimate_difference(scored_rows[0], rows, metrics) for rows in scored_rows[1:]]
    distance = np.max([distances(scored_rows[0], rows) for rows in scored_rows[1:]], axis=0)
    names = [str(run.path) for run in loaded]
    comparison = Comparison(
        names=names,
        rows=len(frames[0]),
        headline=headline,
        metrics=[estimate(rows, metrics) for rows in scored_rows],
        differences=differences,
        baselines=first.metrics.baseline,
        settings=_settings_that_differ(loaded),
        disagreements=np.argsort(-distance, kind="stable")[: np.count_nonzero(distance)],
        tables=frames,
        verdicts=_judge(names, differences, headline, tables.directions(first.manifest)),
        positive_label=first.task.positive_name,
    )
    if path is not None:
        _write_page(path, comparison, first.task)
    return comparison


def _judge(
    names: Sequence[str],
    differences: Sequence[Mapping[str, Any]],
    headline: Sequence[str],
    better: Mapping[str, int],
) -> list[str]:
    """Return a sentence for each run but the first: is it better than the first?"""
    is_several = len(differences) > 1
    p_values = holm([_p_value(gaps.get(headline[0])) for gaps in differences])
    verdicts = []
    for name, gaps, p_value in zip(names[1:], differences, p_values, strict=True):
        is_chance = is_several and p_value >= 0.05
        verdict = tables.judge(name, names[0], gaps, headline, better, is_chance=is_chance)
        if is_several:
            verdict += f" Corrected for {len(differences)} comparisons (Holm, 1979)."
        verdicts.append(verdict)
    return verdicts


def read_same_rows(runs: Sequence[Run]) -> tuple[list[pd.DataFrame], list[Any]]:
    """Return :attr:`Run.predicted_rows` of each run, and its test rows with labels and outputs in
    the order of the classes of the first run, for the statistics of its task.

    Raises:
        UserError: If the runs differ in task, test rows or test labels.
    """
    first = runs[0]
    task = first.task
    frames = [run.predicted_rows for run in runs]
    scored_rows = [first.scored(frames[0])]
    for run, frame in zip(runs[1:], frames[1:], strict=True):
        pair = f"{first.path} and {run.path} have"
        if difference := task.find_difference(run.task):
            raise UserError(f"{pair} {difference}")
        columns = [name for name in ("id", "text", DIGEST) if name in frame and name in frames[0]]
        if len(columns) < 2 or not frames[0][columns].equals(frame[columns]):
            raise UserError(
                f"{pair} different test rows ({len(frames[0]):,} and {len(frame):,}): compare runs "
                "with the same --dataset, --split_seed and --eval_samples"
            )
        scored_rows.append(run.scored(frame, task))
        if not np.array_equal(scored_rows[0].labels, scored_rows[-1].labels):
            raise UserError(
                f"{pair} different labels for the same rows: compare runs with the same "
                "--label_column or --label_columns, and the same --label_map"
            )
    return frames, scored_rows


def metrics_of(run: Run, rows: Any) -> NamedMetrics:
    """Return the metrics of a run, and those that are reported for every recipe; ``rows`` are
    labels and outputs, from :meth:`Run.scored`.
    """
    scoring = run.manifest.scoring
    # looked up only if needed: the recipe may not be importable
    compute = functools.cache(lambda: run.compute_metrics)
    metrics = recipe_metrics(rows, scoring, lambda output: compute()(output))
    return with_standard(rows, metrics)


def _p_value(gap: Mapping[str, float] | None) -> float:
    """Return the two-sided p-value of a difference, from the end of its interval nearer to 0."""
    if gap is None or np.isnan(gap["low"]):  # too few rows for an interval
        return 1.0
    value = gap["value"]
    margin = value - gap["low"] if value > 0 else gap["high"] - value
    if margin > 0:
        return float(2 * ndtr(-1.96 * abs(value) / margin))
    return float(value == 0)


def _settings_that_differ(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return settings, launch and versions that are not the same in all runs: values by name."""
    columns = []
    for run in runs:
        manifest = run.manifest
        launch = {**asdict(manifest.launch), "revision": manifest.git_revision}
        evaluated = {name: manifest.arguments.get(name, "") for name in OF_EVALUATIONS}
        columns.append({**manifest.configuration, **evaluated, **launch})
    settings = {}
    for name in dict.fromkeys(itertools.chain(*columns)):
        values = [str(column.get(name, "")) for column in columns]
        if len(set(values)) > 1:
            settings[name] = values
    return settings


def _write_page(page: Path, comparison: Comparison, task: Task[Any]) -> None:
    names = comparison.names
    frames = comparison.tables
    has_text = "text" in frames[0]
    header = ["row", "text", "label"] if has_text else ["row", "label"]
    rows = []
    for index in comparison.disagreements[:30]:
        first = frames[0].iloc[index]
        cells = [Cell(str(first["id"]))]
        if has_text:
            cells.append(tables.excerpt(first["text"]))
        cells.append(Cell(task.describe(first, LABEL)))
        for frame in frames:
            row = frame.iloc[index]
            prediction = task.describe(row, PREDICTION)
            if task.has_probabilities and prediction == task.describe(row, LABEL):
                cells.append(Cell(prediction, "\N{CHECK MARK}", "good"))
            else:
                cells.append(Cell(prediction))
        rows.append(cells)
    count = f"Predictions differ on {len(comparison.disagreements):,} of {comparison.rows:,} rows."
    examples = Table("Most confident disagreements", [*header, *names], rows)
    sections: dict[str, list[Any]] = {
        "Scores": [comparison.scores(list(comparison.metrics[0]))],
        "Settings": [tables.settings(names, comparison.settings) or "All settings are the same."],
        "Disagreements": [count, examples],
    }
    tables.write_page(page, f"{len(frames)} runs on the same rows", comparison.verdicts, sections)
