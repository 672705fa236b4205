"""The results of a run: predictions, what they are worth, card and report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finetune.errors import RunError, UserError
from finetune.pipeline.events import Finished, Interrupted, Progress
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.runtime import files

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.tasks.base import Affine


def write(
    run: Run,
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
    after: Affine | None,
    outcome: dict[str, Any],
    *,
    baseline: bool,
    progress: Progress,
) -> None:
    """Write the predictions and what they are worth; what is known is written as soon as it is.

    Args:
        run: Whose directory is written into.
        recipe: With its splits.
        validated: Outputs for the validation rows.
        tested: Outputs for the test rows.
        after: What was folded into the model, see :func:`finetune.pipeline.thresholds.folded`.
        outcome: Fields of the manifest that are known when training has ended.
        baseline: Whether to fit the baselines.
        progress: Is told what is done.
    """
    from finetune.pipeline import provenance
    from finetune.pipeline.assess import assess, refuse_other_labels
    from finetune.runs import predictions
    from finetune.training.manifest import Metrics

    rows, tokens = recipe.splits["test"], recipe.whole_lengths("test")
    for split, output in (("test", tested), ("validation", validated)):
        refuse_other_labels(recipe.targets(split), output.label_ids)
    stored = predictions.write(
        run.path, recipe.kind, rows, tested.predictions, tokens, recipe.input_column
    )
    tested = tested._replace(predictions=stored)
    scores = provenance.validation_metrics(outcome["history"], outcome["best_step"])
    if after:
        scores = provenance.scores_only(validated.metrics or {}, "eval_")
    Metrics(
        validation=scores,
        test=provenance.scores_only(tested.metrics or {}, "test_"),
    ).write(run.path)
    run.update(**outcome)
    assess(run, recipe, validated, tested, after, baseline=baseline, progress=progress)
    run.update(status="finished")
    files.release(run.path)


def tell(run: Run, progress: Progress, *, profiled: bool) -> None:
    """Write the report, then tell of the run; it is finished whatever becomes of its report.

    Args:
        run: Whose directory is written into.
        progress: Is told of it.
        profiled: Whether some steps were profiled.
    """
    from finetune.pipeline import suspects
    from finetune.reporting import card, page

    written, later = None, f"python -m finetune report {run.path}"
    try:
        card.write(run)
        written = page.write(run)
        suspects.of_run(run)
    except KeyboardInterrupt as wish:
        wish.args = (f"the run is finished, but not its report; to write it: {later}",)
        progress(Interrupted(*wish.args))
        raise
    except Exception as error:  # whatever it is, the run is finished
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and files.is_full(error):
            reason = f"the disk of {run.path} is full; free some space"
        raise RunError(
            f"the run is finished and saved, but not its report: {reason}. To write it: {later}"
        ) from error
    finally:
        progress(Finished(run, profiled, written))
