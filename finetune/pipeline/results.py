"""The results of a run: predictions, what they are worth beside the baselines, card and report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import EvalPrediction

from finetune.errors import RunError, UserError
from finetune.pipeline import provenance
from finetune.pipeline.events import Finished, Interrupted, Noted, Progress
from finetune.recipe import Recipe
from finetune.recipe.scoring import without_counted
from finetune.runs import predictions
from finetune.runs.run import Run
from finetune.runtime import files
from finetune.statistics import baselines, calibration
from finetune.statistics.baselines import Source
from finetune.tasks.assessment import Assessment
from finetune.training.manifest import Metrics, Statistics

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.tasks.base import Affine


@dataclass(frozen=True)
class Outputs:
    """The outputs of the model that was saved.

    Attributes:
        validation: For the validation rows.
        test: For the test rows.
        calibration: What was folded into the model, such as thresholds; None if nothing was.
    """

    validation: PredictionOutput
    test: PredictionOutput
    calibration: Affine | None = None


def write(
    run: Run,
    recipe: Recipe,
    outputs: Outputs,
    outcome: dict[str, Any],
    *,
    baseline: bool,
    progress: Progress,
) -> None:
    """Write the predictions, the scores, and then what these are worth.

    Args:
        run: Whose directory is written into.
        recipe: With its splits.
        outputs: Of the model.
        outcome: Fields of the manifest that are known when training has ended.
        baseline: Whether to fit a bag of words, too.
        progress: Called with what the user should know.

    Raises:
        UserError: If outputs of the model are not finite.
    """
    validated, tested = outputs.validation, outputs.test
    refuse_other_rows(recipe.targets("validation"), validated)
    refuse_other_rows(recipe.targets("test"), tested)
    rows, tokens = recipe.splits["test"], recipe.whole_lengths("test")
    stored = predictions.write(
        run.path, recipe.kind, rows, tested.predictions, tokens, recipe.input_column
    )
    metrics = Metrics(
        validation=provenance.scores_only(validated.metrics or {}, "eval_"),
        test=provenance.scores_only(tested.metrics or {}, "test_"),
    )
    metrics.write(run.path)
    run.update(**outcome)
    if not_finite := int((~np.isfinite(stored).all(axis=1)).sum()):
        raise UserError(
            f"the outputs of the model are not finite on {not_finite:,} of {len(stored):,} test "
            "rows: the training has diverged; try a smaller --learning_rate"
        )
    task, labels = recipe.kind, np.asarray(validated.label_ids)
    temperature = None
    if task.has_one_class:
        temperature = calibration.fit_temperature(np.asarray(validated.predictions), labels)
    assessment = assess(recipe, tested._replace(predictions=stored))
    fields = assessment.statistics(temperature)
    if task.has_one_class:
        fields["calibration"]["temperature"] = temperature
    after = outputs.calibration
    statistics = Statistics(
        **fields, beyond={}, thresholds=task.thresholds_of(after) if after else None
    )
    started = time.perf_counter()
    metrics = _with_baselines(metrics, statistics, run, recipe, assessment, fit=baseline)
    for note in metrics.statistics.notes if metrics.statistics else ():
        progress(Noted(note))
    metrics.write(run.path)
    seconds = round(time.perf_counter() - started, 2)
    run.update(temperature=temperature, baseline_seconds=seconds, status="finished")
    files.release(run.path)


def assess(recipe: Recipe, output: PredictionOutput) -> Assessment:
    """Return what computes the statistics of the outputs of a model for labelled rows."""
    return Assessment(
        task=recipe.kind,
        outputs=np.asarray(output.predictions),
        labels=np.asarray(output.label_ids),
        scoring=recipe.known_scoring,
        compute=without_counted(recipe.compute_metrics, recipe.known_scoring, recipe.kind),
    )


def refuse_other_rows(expected: np.ndarray, output: PredictionOutput) -> None:
    """Refuse outputs of an evaluation that are not in the order of the rows.

    Raises:
        RuntimeError: If their labels are not the targets ``expected`` of the raw rows; every score
            and every prediction would be written beside the wrong row.
    """
    actual = np.asarray(output.label_ids)
    if actual.shape != expected.shape or not np.array_equal(actual, expected.astype(actual.dtype)):
        raise RuntimeError(
            "the labels that came back from the evaluation are not those of the rows: install the "
            "tested versions of transformers and accelerate (constraints.txt)"
        )


def _with_baselines(
    metrics: Metrics,
    statistics: Statistics,
    run: Run,
    recipe: Recipe,
    assessment: Assessment,
    *,
    fit: bool,
) -> Metrics:
    """Return ``metrics`` with statistics, the scores of the baselines and the differences."""
    scores, differences, notes = {}, {}, list(statistics.notes)
    source = Source(
        splits=recipe.splits,
        column=recipe.input_column,
        seed=recipe.split_seed,
        fit=fit,
        note=notes.append,
    )
    for name, predicted in recipe.kind.baselines(source):
        try:
            prediction = EvalPrediction(predictions=predicted, label_ids=assessment.labels)
            scores_of_baseline = recipe.compute_metrics(prediction)
            differences[name] = assessment.compare_to_baseline(predicted)
            scores[name] = scores_of_baseline
        except Exception as error:  # of a recipe's own metrics; the run has its own scores
            notes.append(baselines.failed(name, error))
    return replace(
        metrics, baseline=scores, statistics=replace(statistics, beyond=differences, notes=notes)
    )


def write_report(run: Run, progress: Progress, *, profiled: bool) -> None:
    """Write card, page and suspects; the run is finished whatever becomes of them.

    Args:
        run: A finished run.
        progress: Called with the end of the run.
        profiled: Whether some steps were profiled.

    Raises:
        RunError: If they cannot be written, with the command that writes them.
    """
    from finetune.pipeline.report import report

    page, later = None, f"python -m finetune report {run.path}"
    try:
        page = report(run).page
    except KeyboardInterrupt as stop:
        stop.args = (f"the run is finished, but not its report; to write it: {later}",)
        progress(Interrupted(*stop.args))
        raise
    except Exception as error:  # such as a plot that fails: the run is finished all the same
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and files.is_full(error):
            reason = f"the disk of {run.path} is full; free some space"
        raise RunError(
            f"the run is finished and saved, but not its report: {reason}. To write it: {later}"
        ) from error
    finally:
        progress(Finished(run, profiled, page))
