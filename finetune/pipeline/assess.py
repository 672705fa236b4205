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
from finetune.pipeline.events import Noted, Progress, ignore
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.statistics import baseline as baseline_models
from finetune.statistics import calibration, counts, threshold
from finetune.statistics.assessment import Assessment, Budget
from finetune.statistics.scored import ScoredRows
from finetune.training.manifest import Metrics, Statistics


def assess(
    run: Run,
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
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
        baseline: Whether to fit a bag of words, too.
        progress: Is given what takes long, and what goes wrong with a baseline.

    Raises:
        UserError: if outputs of the model are not finite.
    """
    if broken := int((~np.isfinite(tested.predictions).all(axis=1)).sum()):
        raise UserError(
            f"the outputs of the model are not finite on {broken:,} of {len(tested.predictions):,} "
            "test rows: the training has diverged; try a smaller --learning_rate"
        )
    temperature = None
    if recipe.labels:
        temperature = calibration.temperature(
            np.asarray(validated.predictions, dtype=np.float64), np.asarray(validated.label_ids)
        )
    assessment = assessment_of(recipe, tested, progress)
    found = assessment.statistics(temperature)
    if recipe.labels:
        found["calibration"]["temperature"] = temperature
    chosen_by = run.manifest.arguments.get("metric_for_best_model")
    best = threshold_of(recipe, validated, tested, chosen_by)
    statistics = replace(_statistics(found, assessment), threshold=best)
    metrics = replace(run.metrics, statistics=statistics)
    metrics.write(run.path)
    run.update(temperature=temperature)
    started = time.perf_counter()
    metrics = _with_baselines(metrics, run, recipe, assessment, fit=baseline)
    for note in metrics.statistics.notes if metrics.statistics else ():
        progress(Noted(note))
    metrics.write(run.path)
    run.update(baseline_seconds=round(time.perf_counter() - started, 2))


def assessment_of(
    recipe: Recipe, output: PredictionOutput, progress: Progress = ignore
) -> Assessment:
    """Return what computes the statistics of the outputs of a model, not computed yet."""
    return Assessment(
        outputs=np.asarray(output.predictions),
        labels=np.asarray(output.label_ids),
        names=recipe.labels,
        scoring=recipe.known_scoring,
        compute=recipe.compute_metrics,
        ordered=recipe.orders_classes,
        budget=Budget(tell=lambda sentence: progress(Noted(sentence))),
    )


def assess_again(run: Run) -> None:
    """Compute the statistics of a run that has none from its predictions, without baselines.

    Raises:
        UserError: if its training did not end, or if there are no predictions.
    """
    manifest, table = run.manifest, run.predictions
    if manifest.steps is None:
        raise UserError(
            f"{run.path}: the training did not end (status '{run.status}'); {run.how_to_go_on()}"
        )
    names = list(manifest.labels)
    if names:
        predicted = ScoredRows.of_table(table, names)
        labels = predicted.labels
        outputs = np.log(np.maximum(predicted.probabilities, np.finfo(np.float64).tiny))
    else:
        labels = table["label"].to_numpy(dtype=np.float64)
        outputs = table["prediction"].to_numpy(dtype=np.float64)[:, None]
    assessment = Assessment(
        outputs=outputs,
        labels=labels,
        names=names,
        scoring=manifest.scoring,
        compute=run.compute_metrics,
        ordered=manifest.ordered_labels,
    )
    statistics = _statistics(assessment.statistics(manifest.temperature), assessment)
    statistics.notes.append(
        "computed from predictions.parquet after the run had ended without statistics: there are "
        "no baselines" + (" and no temperature" if names and not manifest.temperature else "")
    )
    replace(run.metrics, statistics=statistics).write(run.path)


def _statistics(found: dict[str, Any], assessment: Assessment) -> Statistics:
    statistics = Statistics(**found, beyond={})
    if own := assessment.own:
        budget = assessment.budget
        if own.cut_short:
            statistics.notes.append(
                f"the confidence intervals of {', '.join(own.names)} rest on {len(own.drawn):,} "
                f"resamples of the test rows, what {budget.seconds:g} seconds allow"
            )
    return statistics


def _with_baselines(
    metrics: Metrics, run: Run, recipe: Recipe, assessment: Assessment, *, fit: bool
) -> Metrics:
    """Return ``metrics`` with the scores of the baselines, and the differences to them."""
    statistics = metrics.statistics
    assert statistics is not None
    scores, beyond, notes = {}, {}, list(statistics.notes)
    outputs = baseline_models.outputs(
        recipe.splits,
        recipe.input_column,
        recipe.split_seed,
        run.manifest.data.fingerprint,
        fit=fit,
        note=notes.append,
    )
    for name, each in outputs.items():
        try:
            scored = EvalPrediction(predictions=each, label_ids=assessment.labels)
            of_each = recipe.compute_metrics(scored)
            beyond[name] = assessment.beyond(each)
            scores[name] = of_each
        except Exception as error:  # whatever it is, the run is worth what it is without
            notes.append(baseline_models.failed(name, error))
    return replace(
        metrics, baseline=scores, statistics=replace(statistics, beyond=beyond, notes=notes)
    )


def threshold_of(
    recipe: Recipe, validated: PredictionOutput, tested: PredictionOutput, metric: str | None
) -> dict[str, Any] | None:
    """Return the threshold that is best on the validation rows, see
    :func:`~finetune.statistics.threshold.chosen`.

    Args:
        recipe: With the names of its classes.
        validated: The outputs for the validation rows.
        tested: The outputs for the test rows.
        metric: ``metric_for_best_model``.

    Returns:
        None unless there are two classes and the metric is one that a threshold weighs: precision
        by itself is best where hardly anything is predicted, recall where everything is.
    """
    name, scoring = (metric or "").removeprefix("eval_"), recipe.known_scoring
    if len(recipe.labels) != 2 or name not in scoring or name in ("precision", "recall"):
        return None
    counted = counts.metric(name, scoring[name])
    if counted is None:
        return None
    chosen_on, judged_on = (
        ScoredRows.of_outputs(recipe.labels, np.asarray(labels), np.asarray(outputs))
        for outputs, labels, _ in (validated, tested)
    )
    positive = threshold.positive_class(scoring)
    return threshold.chosen(name, counted, chosen_on, judged_on, positive)
