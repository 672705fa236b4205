"""Training: from settings to a run directory.

``train`` is the whole path for notebooks and scripts. The command line takes its three parts by
themselves: settings, :func:`prepare` on rank 0 first, and :func:`fit` on every rank.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from finetune.config import settings
from finetune.config.settings import Settings
from finetune.errors import Mistakes
from finetune.pipeline.events import (
    Collated,
    Finished,
    Interrupted,
    Logged,
    MovedAside,
    Noted,
    Progress,
    Started,
    ignore,
    telling,
)
from finetune.pipeline.preparation import Prepared, prepare, refuse_different_machines
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.runtime import distributed, versions

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from transformers.trainer_utils import PredictionOutput

    from finetune.training.trainer import Trainer


def train(
    recipe: str | type[Recipe] | Recipe, *, progress: Progress = ignore, **options: Any
) -> Run:
    """Fine-tune in this process: one device, or DataParallel where several GPUs are visible.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        progress: Is given each :class:`~finetune.pipeline.events.Event`; ``print`` shows them.
        **options: Options of the recipe, training arguments, ``embedded`` and ``config``.

    Returns:
        The finished run.

    Raises:
        UserError: what is wrong with the options or the data.
    """
    mistakes = Mistakes()
    return work(settled(recipe, options, mistakes), progress, mistakes)


def settled(
    recipe: str | type[Recipe] | Recipe, options: dict[str, Any], mistakes: Mistakes
) -> Settings:
    """Return the settings that keywords make; :func:`prepare` refuses the ``mistakes`` in them."""
    versions.warn_once(stacklevel=3)  # the line that calls `train` or `launch`
    chosen = settings.from_keywords(recipe, options, mistakes)
    if chosen.dry_run:
        mistakes.add(
            "dry_run is for the command line: here, look at recipe.splits and recipe.prepared"
        )
    return chosen


def work(chosen: Settings, progress: Progress = ignore, mistakes: Mistakes | None = None) -> Run:
    """Prepare and train; every process of a job calls it."""
    prepared = distributed.rank_zero_first(lambda: prepare(chosen, progress, mistakes))
    return fit(prepared, progress)


def preview(prepared: Prepared, progress: Progress = ignore) -> None:
    """Do everything up to one collated batch; nothing is trained or written."""
    chosen = prepared.settings
    _join(prepared)
    arguments, rows = chosen.arguments, chosen.recipe.prepared["train"]
    with telling(progress) as tell:
        tell(Started(chosen, arguments, prepared.steps, model=None))
        size = min(arguments.per_device_train_batch_size or 1, len(rows))
        rows = rows.select_columns([name for name in rows.column_names if name != "length"])
        collate = chosen.recipe.data_collator()
        tell(Collated(collate([rows[index] for index in range(size)])))
    distributed.leave()


def fit(prepared: Prepared, progress: Progress = ignore) -> Run:
    """Train, evaluate once on the test set, write the run and return it.

    Every rank calls it with the result of :func:`prepare` there; ``progress`` is called on rank 0.
    """
    with telling(progress) as tell:
        return _fit(prepared, tell)


def _fit(prepared: Prepared, progress: Progress) -> Run:
    from finetune.pipeline import provenance
    from finetune.training.directory import clear_way
    from finetune.training.trainer import build_trainer

    chosen = prepared.settings
    recipe, values, me = chosen.recipe, chosen.values, distributed.ranks()
    # on each machine one, where they share no directory; the others leave everything to it
    leads = (me.local_rank if values.save_on_each_node else me.rank) == 0
    _join(prepared)
    run = None
    try:
        arguments = chosen.arguments
        trainer = build_trainer(recipe.parts, arguments, recipe.adapt)
        _report_to(trainer, progress)
        distributed.gather(None)  # every rank has read its model, which may lie in the directory
        if leads:
            progress(Started(chosen, arguments, prepared.steps, trainer.model))
            manifest = provenance.manifest(chosen, arguments)
            # only now: until here a mistake could still be found, or the model be read from there
            if moved := clear_way(chosen.output_dir, prepared.checkpoint):
                progress(MovedAside(moved))
            run = Run(chosen.output_dir)
            manifest.write(run.path)
        before = provenance.steps_before(prepared.checkpoint)  # which may be rotated away
        started = time.perf_counter()
        trained = trainer.train(resume_from_checkpoint=prepared.checkpoint)
        seconds = time.perf_counter() - started
        stopped = trainer.early_stopping.reason if trainer.early_stopping is not None else ""
        if stopped:
            progress(Noted(stopped))
        trainer.save_model()
        validated = trainer.predict_evaluated()
        tested = trainer.predict(recipe.prepared["test"])
        state, speed = trainer.state, trainer.speed()
        profiled = trainer.profile is not None and trainer.profile.written
        del trainer
        gc.collect()
        distributed.leave()  # the other ranks are done
        if run is not None:
            outcome = provenance.outcome(trained, state, seconds, before, speed)
            outcome["stopped_early"] = stopped or None
            _write_results(
                run,
                recipe,
                validated,
                tested,
                outcome,
                baseline=arguments.baseline,
                progress=progress,
            )
    except KeyboardInterrupt as interruption:
        if run is not None:
            run.update(status="interrupted")
            interruption.args = (f"interrupted; {how_to_go_on(chosen)}",)
            progress(Interrupted(*interruption.args))
        raise
    except BaseException:  # the process group is left as it is: leaving it waits for the others
        if run is not None:
            run.update(status="failed")
        raise
    if run is not None:
        _tell_finished(run, progress, profiled=profiled)
        if arguments.profile and not profiled:
            untraced = "too few steps were left, none was profiled"
            progress(Noted(f"--profile {arguments.profile}: {untraced}"))
    return Run(chosen.output_dir)


def _tell_finished(run: Run, progress: Progress, *, profiled: bool) -> None:
    """Write the report, then tell of the run; it is finished whatever becomes of its report."""
    from finetune.reporting import card, page

    written = None
    try:
        card.write(run)
        written = page.write(run)
    finally:
        progress(Finished(run, profiled, written))


def how_to_go_on(chosen: Settings) -> str:
    """Return what to do after an interruption."""
    if not any(chosen.output_dir.glob("checkpoint-*")):
        return "no checkpoint was saved yet: start again"
    return f"to resume: {chosen.resuming}"


def _join(prepared: Prepared) -> None:
    """Make the process group, and refuse machines that would not do the same."""
    values = prepared.settings.values
    distributed.join(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    refuse_different_machines(prepared)


def _report_to(trainer: Trainer, progress: Progress) -> None:
    """Hand what the trainer logs to ``progress``, instead of printing it."""
    from transformers import PrinterCallback, ProgressCallback

    from finetune.training.speed import Bar, Logs

    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(Bar())
    trainer.add_callback(
        Logs(lambda state, values: progress(Logged(state.global_step, state.max_steps, values)))
    )


def _write_results(
    run: Run,
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
    outcome: dict[str, Any],
    *,
    baseline: bool,
    progress: Progress,
) -> None:
    """Write the predictions and what they are worth; what is known is written as soon as it is."""
    from finetune.pipeline import provenance
    from finetune.pipeline.assess import assess
    from finetune.runs import predictions
    from finetune.training.manifest import Metrics

    rows, tokens = recipe.splits["test"], recipe.whole_lengths("test")
    refuse_other_labels(rows, tested.label_ids)
    refuse_other_labels(recipe.splits["validation"], validated.label_ids)
    predictions.write(run.path, rows, tested.predictions, tokens)
    Metrics(
        validation=provenance.validation_metrics(outcome["history"], outcome["best_step"]),
        test=provenance.scores_only(tested.metrics or {}, "test_"),
    ).write(run.path)
    run.update(**outcome)
    assess(run, recipe, validated, tested, baseline=baseline, progress=progress)
    run.update(status="finished")


def refuse_other_labels(rows: Dataset, label_ids: Any) -> None:
    """Refuse outputs of an evaluation that are not in the order of the rows.

    Raises:
        RuntimeError: if ``label_ids``, shape ``(rows,)``, are not the labels of the raw rows; every
            score and every prediction would be written beside the wrong row.
    """
    import numpy as np

    expected: np.ndarray = np.asarray(rows["label"][:])
    found = np.asarray(label_ids)
    if found.shape != expected.shape or not np.array_equal(found, expected.astype(found.dtype)):
        raise RuntimeError(
            "the labels that came back from the evaluation are not those of the rows: the "
            "installed transformers or accelerate gathers them in another order; install the "
            "tested versions (constraints.txt)"
        )
