"""What a training was worth: the statistics of its test rows, beside what it has to beat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import EvalPrediction
from transformers.trainer_utils import PredictionOutput

from finetune.errors import UserError
from finetune.recipe import Recipe
from finetune.statistics import assessment, calibration, counts, threshold
from finetune.statistics import baseline as baseline_models
from finetune.statistics.scored import ScoredRows


@dataclass(frozen=True)
class Judged:
    """What is known of a training once it is over.

    Attributes:
        baseline: The metrics of the recipe for each baseline.
        statistics: The fields of :class:`~finetune.training.manifest.Statistics`.
        temperature: Of the probabilities, fitted on the validation rows; None in a regression.
        baseline_seconds: What the baselines took.
    """

    baseline: dict[str, dict[str, float]]
    statistics: dict[str, Any]
    temperature: float | None
    baseline_seconds: float


def assess(
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
    *,
    fingerprint: str,
    baseline: bool,
) -> Judged:
    """Judge what a model put out for the validation and the test rows, data of that fingerprint;
    with ``baseline`` a bag of words is fitted, too.

    Raises:
        UserError: if outputs of the model are not finite.
    """
    if broken := int((~np.isfinite(tested.predictions).all(axis=1)).sum()):
        raise UserError(
            f"the outputs of the model are not finite on {broken:,} of {len(tested.predictions):,} "
            "test rows: the training has diverged; try a smaller --learning_rate"
        )
    started = time.perf_counter()
    splits, column, seed = recipe.splits, recipe.input_column, recipe.split_seed
    said = baseline_models.outputs(splits, column, seed, fingerprint, fit=baseline)
    seconds = round(time.perf_counter() - started, 2)
    labels = np.asarray(tested.label_ids)
    temperature = None
    if recipe.labels:
        temperature = calibration.temperature(
            np.asarray(validated.predictions, dtype=np.float64), np.asarray(validated.label_ids)
        )
    statistics = statistics_of(recipe, tested, said, temperature)
    scores = {
        name: recipe.compute_metrics(EvalPrediction(predictions=each, label_ids=labels))
        for name, each in said.items()
    }
    return Judged(scores, statistics, temperature, seconds)


def statistics_of(
    recipe: Recipe,
    output: PredictionOutput,
    baselines: Mapping[str, np.ndarray],
    temperature: float | None = None,
) -> dict[str, Any]:
    """Return the fields of :class:`~finetune.training.manifest.Statistics` for the outputs of a
    model, beside those of the baselines on the same rows.
    """
    labels, outputs = np.asarray(output.label_ids), np.asarray(output.predictions)
    if not recipe.labels:
        return assessment.of_numbers(outputs, labels, recipe.compute_metrics, baselines)
    return assessment.of_classes(
        ScoredRows.of_outputs(recipe.labels, labels, outputs),
        outputs,
        recipe.known_scoring,
        recipe.compute_metrics,
        baselines,
        ordered=recipe.ordered_labels,
        temperature=temperature,
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
