"""Training: from settings to a run directory.

``train`` is the whole path for notebooks and scripts. The command line takes its three parts by
themselves: settings, :func:`prepare_job` and :func:`fit`, both on every rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.settings import Settings
from finetune.errors import Diverged, RunError, UserError
from finetune.pipeline import changes, results, resumption
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
from finetune.pipeline.preparation import (
    Prepared,
    leads,
    prepare_job,
    refuse_different_machines,
)
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.runtime import distributed, files, lock, signals
from finetune.runtime.signals import Stopped

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput, TrainOutput

    from finetune.tasks.base import Affine
    from finetune.training.manifest import Manifest
    from finetune.training.trainer import Trainer


def train(
    recipe: str | type[Recipe] | Recipe, *, progress: Progress = ignore, **options: Any
) -> Run:
    """Fine-tune in this process: one device, or DataParallel where several GPUs are visible.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        progress: Is given each :class:`~finetune.pipeline.events.Event`; ``print`` shows them.
        **options: Options of the recipe, training arguments, ``embedded`` and ``config``. The
            ``dataset`` may also be rows in memory: see :func:`finetune.data.memory.store`.

    Returns:
        The finished run.

    Raises:
        UserError: what is wrong with the options or the data.
    """
    return work(settled(recipe, options), progress)


def settled(recipe: str | type[Recipe] | Recipe, options: dict[str, Any]) -> Settings:
    """Return the settings that keywords make; :func:`prepare` raises the mistakes in them.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        options: As of :func:`train`.
    """
    chosen = Settings.from_keywords(recipe, options)
    if chosen.dry_run:
        chosen.report.error(
            "dry_run is for the command line: here, look at recipe.splits and recipe.prepared"
        )
    return chosen


def work(chosen: Settings, progress: Progress = ignore) -> Run:
    """Prepare and train; every process of a job calls it.

    Args:
        chosen: The settings.
        progress: Is told how far it is.
    """
    return fit(prepare_job(chosen, progress), progress)


def preview(prepared: Prepared, progress: Progress = ignore) -> None:
    """Do everything up to one collated batch; nothing is trained or written."""
    from finetune.data import windows

    chosen = prepared.settings
    _agree(prepared)
    arguments, rows = chosen.arguments, chosen.recipe.prepared["train"]
    with telling(progress) as tell:
        tell(Started(chosen, arguments, prepared.steps, model=None))
        if prepared.checkpoint is not None:
            tell(Noted(f"would resume from {prepared.checkpoint}"))
        size = min(arguments.per_device_train_batch_size or 1, len(rows))
        for_us = {arguments.length_column_name, windows.COLUMN}
        rows = rows.select_columns([name for name in rows.column_names if name not in for_us])
        collate = chosen.recipe.data_collator()
        tell(Collated(collate([rows[index] for index in range(size)])))
    distributed.leave()


def fit(prepared: Prepared, progress: Progress = ignore) -> Run:
    """Train, evaluate once on the test set, write the run and return it.

    Every rank calls it with the result of :func:`prepare` there; ``progress`` is called on rank 0.
    """
    try:
        with telling(progress) as tell:
            return _fit(prepared, tell)
    finally:
        lock.release(prepared.settings.output_dir)


def _fit(prepared: Prepared, progress: Progress) -> Run:
    from finetune.pipeline import provenance, room, thresholds
    from finetune.training import disk
    from finetune.training.trainer import build_trainer

    chosen = prepared.settings
    recipe = chosen.recipe
    prepared = _agree(prepared)
    if prepared.is_done:
        distributed.leave()
        assert prepared.resumption is not None
        done = Run(prepared.resumption.directory)  # which may not be `output_dir`
        page = done.path / "report.html"
        progress(Noted("the run is finished, nothing is left to train; its results:"))
        progress(Finished(done, False, page if page.exists() else None))
        if not page.exists():
            lacking = f"python -m finetune report {done.path}"
            progress(Noted(f"its report was not written; to write it: {lacking}"))
        return done
    found, run = prepared.resumption, None
    try:
        if chosen.values.auto_find_batch_size:
            prepared = room.with_accumulation(prepared, progress)
            chosen = prepared.settings
        arguments = chosen.arguments
        trainer = build_trainer(recipe.trainer_kwargs, arguments, recipe.adapt)
        assert trainer.model is not None
        if left_out := thresholds.without_place(recipe, trainer.model):
            recipe.note(left_out)
        trainer.configuration = prepared.configuration
        trainer.raw_rows = recipe.splits["train"]
        changed = found is not None and changes.between(found, prepared.configuration)
        trainer.reschedules = bool(changed)
        _report_to(trainer, progress)
        # every rank has read its model, which may lie in the directory
        room.refuse_too_little(prepared, trainer)
        if leads(chosen.values):
            progress(Started(chosen, arguments, prepared.steps, trainer.model))
            with disk.explained(chosen.output_dir, "writing run.json"):
                run = _begin(prepared, provenance.manifest(chosen, arguments), progress)
        if prepared.checkpoint and trainer.collator_draws():
            progress(
                Noted(
                    "the data collator draws random numbers: those after the checkpoint are drawn "
                    "anew, so the result is not exactly that of a run that was not stopped"
                )
            )
        give_up = functools.partial(_give_up, run)
        with signals.deferred(arguments.grace_seconds, give_up):
            trained, seconds, validated, tested, after = _trained(trainer, prepared, progress)
        if left_out:
            progress(Noted(left_out))
        stopped = trainer.early_stopping.reason if trainer.early_stopping is not None else ""
        if stopped:
            progress(Noted(stopped))
        state, speed = trainer.state, trainer.speed()
        skipped = trainer.verdicts.skipped
        profiled = trainer.profile is not None and trainer.profile.written
        del trainer
        gc.collect()
        distributed.leave()  # the other ranks are done
        if run is not None:
            signals.heed()
            before = found.step if found is not None else 0
            outcome = provenance.outcome(trained, state, seconds, before, speed)
            outcome["stopped_early"] = stopped or None
            outcome["skipped_steps"] = skipped
            with disk.explained(chosen.output_dir, "writing the results"):
                results.write(
                    run,
                    recipe,
                    validated,
                    tested,
                    after,
                    outcome,
                    baseline=arguments.baseline,
                    progress=progress,
                )
    except KeyboardInterrupt as wish:
        if run is not None:
            by = f" by {wish}" if isinstance(wish, Stopped) else ""
            run.update(status="interrupted", stopped_by=str(wish) or None)
            wish.args = (f"interrupted{by}; {how_to_go_on(chosen)}",)
            progress(Interrupted(*wish.args))
        elif leads(chosen.values):
            progress(Interrupted("interrupted before the training began: start it again"))
        raise
    except BaseException as error:  # the process group is left: leaving it waits for the others
        if run is not None:
            status = error.status if isinstance(error, RunError) else "failed"
            told = isinstance(error, (RunError, UserError))  # others might hold anything
            failure = str(error) if told else type(error).__name__
            with contextlib.suppress(OSError, RunError):  # the failure itself is what counts
                run.update(status=status, failure=failure)
            files.release(run.path)
        if isinstance(error, Diverged):  # on every rank: the first to exit ends the others
            distributed.gather(None)
        raise
    if run is not None:
        results.tell(run, progress, profiled=profiled)
        if arguments.profile and not profiled:
            untraced = "too few steps were left, none was profiled"
            progress(Noted(f"--profile {arguments.profile}: {untraced}"))
    return Run(chosen.output_dir)


def _trained(
    trainer: Trainer, prepared: Prepared, progress: Progress
) -> tuple[TrainOutput, float, PredictionOutput, PredictionOutput, Affine | None]:
    """Train, predict the validation rows, fold what the task fits on them into the model, save it,
    and predict the test rows; say how long the training took, and what was folded.

    Raises:
        Stopped: on every rank, if a signal asked for it; what is trained is in a checkpoint.
    """
    from finetune.pipeline import noise, thresholds
    from finetune.training import disk

    started, recipe = time.perf_counter(), prepared.settings.recipe
    with thresholds.in_evaluations(trainer, recipe.kind, noise.kept(trainer, recipe)):
        trained = trainer.train(resume_from_checkpoint=prepared.checkpoint)
    seconds = time.perf_counter() - started
    trainer.refuse_broken_weights()
    try:
        assert trainer.model is not None
        validated, after = thresholds.folded(trainer, recipe.kind, trainer.predict_evaluated())
        needed = disk.weight_bytes(trainer.model)
        with disk.explained(Path(trainer.args.output_dir or ""), "writing the model", needed):
            trainer.save_model()
        tested = trainer.predict(recipe.prepared["test"])
    except Stopped as wish:
        if not trainer.args.load_best_model_at_end:  # or the best has taken the place of the last
            trainer.stop(str(wish))
        raise
    return trained, seconds, validated, tested, after


def _give_up(run: Run | None, name: str) -> None:
    """Say that there was no time to save; the process ends after this."""
    if run is not None:
        run.update(status="interrupted", stopped_by=f"{name}, not saved within --grace_seconds")
    os.write(
        2, f"error: {name}: could not save within --grace_seconds, the process ends\n".encode()
    )


def _begin(prepared: Prepared, manifest: Manifest, progress: Progress) -> Run:
    """Write ``run.json`` of a run that begins or goes on, in a directory that is now its own."""
    from finetune.training import checkpoint
    from finetune.training.directory import clear_way, occupy

    chosen, found = prepared.settings, prepared.resumption
    manifest = dataclasses.replace(manifest, configuration=prepared.configuration)
    # only now: until here a mistake could still be found, or the model be read from there
    if found is not None and found.in_place:
        occupy(chosen.output_dir)
    elif moved := clear_way(chosen.output_dir):
        progress(MovedAside(moved))
    if found is not None:
        arguments = chosen.arguments
        now = prepared.configuration
        if found.path is not None and found.in_place:
            for sentence in checkpoint.set_later_aside(chosen.output_dir, found.step):
                progress(Noted(sentence))
        if found.path is not None:
            progress(
                Noted(f"resuming from {found.path}, step {found.step:,} of {prepared.steps:,}")
            )
        versions, revision = manifest.versions, manifest.model_revision
        for sentence in changes.differences(found, now, arguments, versions, revision):
            progress(Noted(sentence))
        earlier = found.manifest.resumed if found.manifest is not None else []
        this = changes.record(found, now, arguments)
        manifest = dataclasses.replace(manifest, resumed=[*earlier, this])
    checkpoint.clear(chosen.output_dir)
    manifest.write(chosen.output_dir)
    files.reserve(chosen.output_dir)
    return Run(chosen.output_dir)


def how_to_go_on(chosen: Settings) -> str:
    """Return what to do after an interruption."""
    from finetune.training.checkpoint import committed, number

    saved = committed(chosen.output_dir)
    if not saved:
        return "no checkpoint was saved yet: start again"
    return f"to resume at step {number(saved[0]):,}: {chosen.resuming}"


def _agree(prepared: Prepared) -> Prepared:
    """Refuse machines that would not do the same."""
    chosen = prepared.settings
    if chosen.values.save_on_each_node:
        found = prepared.resumption
        if not (done := all(distributed.gather(prepared.is_done))):
            found = resumption.agreed(found, chosen.output_dir)
        prepared = dataclasses.replace(prepared, resumption=found, is_done=done)
    if not prepared.is_done:
        refuse_different_machines(prepared)
    return prepared


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
