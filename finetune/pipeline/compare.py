"""Runs on the same test rows, each against the first: is it better, and where do they differ?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finetune.data.prediction_columns import DIGEST, LABEL
from finetune.errors import UserError, counted
from finetune.recipe.scoring import without_counted
from finetune.reporting import curves, html, wording
from finetune.runs.run import Run
from finetune.statistics.estimates import McNemar, holm
from finetune.statistics.scored import Scored
from finetune.tasks.assessment import compared
from finetune.tasks.base import Task
from finetune.training.manifest import Manifest

_ROWS = 30
#: What names a place, not a choice.
_PLACES = ("output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "hub_model_id")


@dataclass(frozen=True)
class Comparison:
    """What there is to say of several runs.

    Attributes:
        names: Of the runs: their directories.
        rows: How many test rows they share.
        headline: The metrics of the first run's recipe: the one that decides the verdicts, by which
            its best checkpoint was chosen, then the others.
        metrics: For each run the metrics of the first one, with intervals.
        differences: For each run but the first, how much more of each metric it has than the
            first, with the interval of the paired difference.
        tests: For each run but the first, McNemar's test of the accuracy, corrected for the number
            of runs by Holm's method; none in a regression.
        settings: Options and training arguments that are not the same in all, by name.
        disagreements: Indices of rows for which the runs have not the same prediction, the ones
            of which they are most confident first.
        tables: ``predictions.parquet`` of each.
        directions: 1 where more is better, -1 where less is, by metric.
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
    directions: dict[str, int]

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each run but the first: whether it is better."""
        first, *rest = self.names
        gaps = zip(rest, self.differences, strict=True)
        sentences = [
            wording.between(name, first, differences, self.headline, self.directions)
            for name, differences in gaps
        ]
        corrected = " (Holm's correction)" if len(self.tests) > 1 else ""
        for number, test in enumerate(self.tests):
            sentences[number] += (
                f" McNemar's test of the accuracy: {test.only_second:,} rows only "
                f"{rest[number]} gets right, {test.only_first:,} only {first}, "
                f"p = {test.p_value:.3g}{corrected}."
            )
        return sentences


def compare(
    runs: Sequence[Run | str | Path], page: str | Path | None = None, *, trust_recipe: bool = False
) -> Comparison:
    """Compare two runs or more with the first.

    Args:
        runs: Runs, or their directories.
        page: Where to write the comparison as a page; one that is there is replaced.
        trust_recipe: Whether to import recipe files that the runs name; see :meth:`Run.load`.

    Raises:
        UserError: if their tasks, their test rows or the labels of these are not the same, or if
            they have no metric that is a number.
    """
    if isinstance(runs, (str, Path, Run)):
        one = runs.path if isinstance(runs, Run) else runs
        raise UserError(f"compare: expected a list of two runs or more, found '{one}'")
    loaded = [Run.load(run, trust_recipe=trust_recipe) for run in runs]
    if len(loaded) < 2:
        raise UserError("compare: expected two runs or more")
    path = None if page is None else Path(page).expanduser()
    if path is not None:
        _refuse_page(path)
    comparison = _compared(loaded)
    if path is not None:
        _write_page(path, comparison, loaded)
    return comparison


def _refuse_page(page: Path) -> None:
    if not page.absolute().parent.is_dir():
        raise UserError(f"--output {page}: no such directory: {page.parent}")
    if page.is_dir():
        raise UserError(f"--output {page} is a directory: name a file, like {page}/comparison.html")


def _compared(runs: Sequence[Run]) -> Comparison:
    if unfinished := [run.unfinished for run in runs if run.unfinished]:
        raise UserError(*unfinished)
    headline = runs[0].headline
    if not headline:
        raise UserError(f"{runs[0].path} has no numeric metric: nothing to compare")
    tables = [run.predicted_rows for run in runs]
    task = runs[0].kind
    scored_rows = [runs[0].scored(tables[0])]
    for run, table in zip(runs[1:], tables[1:], strict=True):
        _refuse_other_rows(runs[0], tables[0], run, table)
        scored_rows.append(run.scored(table, task))
        _refuse_other_labels(runs[0], scored_rows[0].labels, run, scored_rows[-1].labels)
    judge = judging(runs[0])
    judged = [judge(scored_rows[0], other) for other in scored_rows[1:]]
    return Comparison(
        [str(run.path) for run in runs],
        len(tables[0]),
        headline,
        [runs[0].statistics.metrics, *(metrics for metrics, _ in judged)],
        [differences for _, differences in judged],
        _corrected(task.tests(scored_rows)),
        settings_that_differ([run.manifest for run in runs]),
        task.rank_disagreements(scored_rows),
        tables,
        wording.directions(runs[0].manifest),
    )


def _corrected(tests: list[McNemar]) -> list[McNemar]:
    """Return tests with p values corrected for how many runs are compared with the first."""
    p_values = holm([test.p_value for test in tests])
    return [replace(test, p_value=p) for test, p in zip(tests, p_values, strict=True)]


def judging(run: Run) -> Callable[[Scored, Scored], tuple[Mapping[str, Any], dict[str, Any]]]:
    """Return what compares two models on the same rows by the metrics of a run: the metrics of the
    second, and how much more of each it has than the first; see
    :func:`finetune.tasks.assessment.compared`.
    """
    task, scoring = run.kind, run.manifest.scoring
    # its recipe may not be importable
    compute_metrics = functools.cache(lambda: without_counted(run.compute_metrics, scoring, task))
    return lambda first, second: compared(
        task, first, second, scoring, lambda some: compute_metrics()(some)
    )


def settings_that_differ(manifests: Sequence[Manifest]) -> dict[str, list[str]]:
    """Recipe, options, training arguments, data, launch and versions that not all runs share."""
    flat = [
        {
            "recipe": manifest.recipe,
            **manifest.options,
            **{name: value for name, value in manifest.arguments.items() if name not in _PLACES},
            "data (fingerprint)": manifest.data.fingerprint,
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
    prints = {run.manifest.data.fingerprint for run in (first, second)}
    are_known = len(columns) > 1 or len(prints) == 1  # older runs of images have numbers only
    if (
        len(first_table) != len(other)
        or not are_known
        or not first_table[columns].equals(other[columns])
    ):
        raise UserError(
            f"{runs} different test rows ({len(first_table):,} and {len(other):,}): compare runs "
            "with the same --dataset, --split_seed and --eval_samples"
        )


def _refuse_other_labels(
    first: Run, first_labels: np.ndarray, second: Run, other: np.ndarray
) -> None:
    if differing := int((first_labels != other).reshape(len(first_labels), -1).any(axis=1).sum()):
        raise UserError(
            f"{first.path} and {second.path} have different {LABEL}s for {differing:,} of the same "
            f"{counted(len(first_labels), 'test row')}: compare runs with the same --label_column "
            "or --label_columns, and the same --label_map"
        )


def _write_page(page: Path, comparison: Comparison, runs: Sequence[Run]) -> None:
    overlaid = curves.overlaid(
        {str(run.path): run.manifest.history for run in runs}, f"eval_{comparison.headline[0]}"
    )
    html.write(
        page,
        "compare",
        {
            "title": f"{len(runs)} runs on the same rows",
            "verdicts": comparison.verdicts,
            "found": comparison,
            "digits": {
                name: wording.column_digits(
                    estimates[name]
                    for estimates in (*comparison.metrics, *comparison.differences)
                    if name in estimates
                )
                for name in comparison.metrics[0]
            },
            "metrics": [
                name for name in comparison.metrics[0] if all(name in m for m in comparison.metrics)
            ],
            "plots": [plot.element() for plot in overlaid],
            "rows": [_row(comparison, runs[0].kind, n) for n in comparison.disagreements[:_ROWS]],
            "sections": ["Scores", *(["Curves"] if overlaid else []), "Settings", "Disagreements"],
        },
    )


def _row(comparison: Comparison, task: Task[Any], index: int) -> dict[str, Any]:
    first, predictions = comparison.tables[0].iloc[index], []
    for table in comparison.tables:
        row = table.iloc[index]
        prediction, probability, right = task.describe_row(row)
        predictions.append({"prediction": prediction, "probability": probability, "right": right})
    text = html.excerpt(first["text"]) if "text" in first else None
    label = task.label_shown(first["label"])
    return {"id": first["id"], "text": text, "label": label, "said": predictions}
