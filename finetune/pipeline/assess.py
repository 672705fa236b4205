"""What a training was worth: the statistics of its test rows, beside what it has to beat.

First the model by itself, then each baseline: what goes wrong with a baseline is noted, and costs
nothing else.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import EvalPrediction
from transformers.trainer_utils import PredictionOutput

from finetune.errors import UserError
from finetune.pipeline.events import Noted, Progress
from finetune.recipe import Recipe
from finetune.recipe.scoring import without_counted
from finetune.runs.run import Run
from finetune.statistics import baselines
from finetune.statistics.baselines import Source
from finetune.tasks.assessment import Assessment
from finetune.tasks.base import Affine
from finetune.training.manifest import Metrics, Statistics


def assess(
    run: Run,
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
    after: Affine | None = None,
    *,
    baseline: bool,
    progress: Progress,
) -> None:
    """Write what the outputs of a model are worth into the run, as soon as it is known.

    Args:
        run: Has a manifest and the metrics of the recipe.
        recipe: With its data.
        validated: Of the validation rows, which the temperature is fitted on.
        tested: Of the test rows.
        after: What was fitted on validation rows and folded into the model; these outputs have it.
        baseline: Whether to fit a bag of words, too.
        progress: Is given what takes long, and what goes wrong with a baseline.

    Raises:
        UserError: if outputs of the model are not finite.
    """
    if not_finite := int((~np.isfinite(tested.predictions).all(axis=1)).sum()):
        raise UserError(
            f"the outputs of the model are not finite on {not_finite:,} of "
            f"{len(tested.predictions):,} test rows: the training has diverged; try a smaller "
            "--learning_rate"
        )
    task, chosen_on = recipe.kind, assessment_of(recipe, validated)
    temperature = task.temperature(chosen_on.outputs, chosen_on.labels)
    assessment = assessment_of(recipe, tested)
    fields = assessment.statistics(temperature)
    if task.calibrates:
        fields["calibration"]["temperature"] = temperature
    thresholds = task.thresholds_of(after) if after else None
    statistics = Statistics(**fields, beyond={})
    statistics = replace(statistics, thresholds=thresholds)
    metrics = replace(run.metrics, statistics=statistics)
    metrics.write(run.path)
    run.update(temperature=temperature)
    started = time.perf_counter()
    metrics = _with_baselines(metrics, run, recipe, assessment, fit=baseline)
    for note in metrics.statistics.notes if metrics.statistics else ():
        progress(Noted(note))
    metrics.write(run.path)
    run.update(baseline_seconds=round(time.perf_counter() - started, 2))


def assessment_of(recipe: Recipe, output: PredictionOutput) -> Assessment:
    """Return what computes the statistics of the outputs of a model, not computed yet.

    Args:
        recipe: Which scores them.
        output: Outputs and labels of some rows.
    """
    scoring = recipe.known_scoring
    return Assessment(
        task=recipe.kind,
        outputs=np.asarray(output.predictions),
        labels=np.asarray(output.label_ids),
        scoring=scoring,
        compute=without_counted(recipe.compute_metrics, scoring, recipe.kind),
    )


def refuse_other_labels(expected: np.ndarray, label_ids: Any) -> None:
    """Refuse outputs of an evaluation that are not in the order of the rows.

    Raises:
        RuntimeError: if ``label_ids`` are not the targets ``expected`` of the raw rows; every score
            and every prediction would be written beside the wrong row.
    """
    actual = np.asarray(label_ids)
    if actual.shape != expected.shape or not np.array_equal(actual, expected.astype(actual.dtype)):
        raise RuntimeError(
            "the labels that came back from the evaluation are not those of the rows: the "
            "installed transformers or accelerate gathers them in another order; install the "
            "tested versions (constraints.txt)"
        )


def assess_again(run: Run) -> None:
    """Compute the statistics of a run that has none from its predictions, without baselines.

    Raises:
        UserError: if there are no predictions.
    """
    manifest, table = run.manifest, run.predicted_rows
    task = run.kind
    rows = run.scored(table)
    assessment = Assessment(
        task=task,
        outputs=rows.outputs,
        labels=rows.labels,
        scoring=manifest.scoring,
        compute=without_counted(run.compute_metrics, manifest.scoring, task),
    )
    statistics = Statistics(**assessment.statistics(manifest.temperature), beyond={})
    lacking = " and no temperature" if task.calibrates and not manifest.temperature else ""
    statistics.notes.append(
        "computed from predictions.parquet after the run had ended without statistics: there are "
        f"no baselines{lacking}"
    )
    replace(run.metrics, statistics=statistics).write(run.path)


def _with_baselines(
    metrics: Metrics, run: Run, recipe: Recipe, assessment: Assessment, *, fit: bool
) -> Metrics:
    """Return ``metrics`` with the scores of the baselines, and the differences to them."""
    statistics = metrics.statistics
    assert statistics is not None
    scores, differences, notes = {}, {}, list(statistics.notes)
    source = Source(
        splits=recipe.splits,
        column=recipe.input_column,
        seed=recipe.split_seed,
        fingerprint=run.manifest.data.fingerprint,
        fit=fit,
        note=notes.append,
    )
    for name, predictions in recipe.kind.baselines(source):
        try:
            scored = EvalPrediction(predictions=predictions, label_ids=assessment.labels)
            of_each = recipe.compute_metrics(scored)
            differences[name] = assessment.compare_to_baseline(predictions)
            scores[name] = of_each
        except Exception as error:  # whatever it is, the run is worth what it is without
            notes.append(baselines.failed(name, error))
    return replace(
        metrics, baseline=scores, statistics=replace(statistics, beyond=differences, notes=notes)
    )
