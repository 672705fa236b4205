"""Training: from settings to a run directory.

:func:`train` is the whole path for notebooks and scripts. The command line calls its parts:
settings and :func:`run_training` on every process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from finetune.config.settings import Settings
from finetune.data import windows
from finetune.errors import Diverged, RunError, UserError
from finetune.pipeline import changes, provenance, results, resumption, thresholds
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
    prepare_job,
    refuse_different_machines,
    writes_run,
)
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.runtime import distributed, files, lock, signals
from finetune.runtime.signals import Stopped
from finetune.training import checkpoint
from finetune.training.callbacks import Bar
from finetune.training.checkpoint import clear_way, occupy
from finetune.training.saving import explained
from finetune.training.trainer import Trainer, build_trainer


def train(
    recipe: str | type[Recipe] | Recipe, *, progress: Progress = ignore, **options: Any
) -> Run:
    """Fine-tune in this process: one device, or DataParallel where several GPUs are visible.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        progress: Called with each :class:`~finetune.pipeline.events.Event`, e.g. ``print``.
        **options: Options of the recipe, training arguments, ``embedded`` and ``config``. The
            ``dataset`` may also be rows in memory: see :func:`finetune.data.memory.store`.

    Returns:
        The finished run.

    Raises:
        UserError: What is wrong with the options or the data.
    """
    return run_training(resolve_settings(recipe, options), progress)


def resolve_settings(recipe: str | type[Recipe] | Recipe, options: dict[str, Any]) -> Settings:
    """Return the settings that keywords make; :func:`prepare_job` raises the mistakes in them.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        options: As of :func:`train`.
    """
    settings = Settings.from_keywords(recipe, options)
    if settings.dry_run:
        settings.report.error(
            "dry_run is for the command line: here, look at recipe.splits and recipe.prepared"
        )
    return settings


def run_training(settings: Settings, progress: Progress = ignore) -> Run:
    """Prepare, train, evaluate once on the test set and write the run; every process calls it.

    A dry run ends with one collated batch, and writes nothing.

    Args:
        settings: The settings.
        progress: Called with each event, on rank 0.

    Returns:
        The run in the directory.
    """
    with telling(progress) as report:
        recording = _Recording(settings, report)
        try:
            with recording.failures():
                prepared = _agree(prepare_job(settings, progress))
                if settings.dry_run:
                    _show_batch(prepared, report)
                elif prepared.is_done:
                    return _show_finished(prepared, report)
                else:
                    is_profiled = _train_and_write(prepared, recording)
            if recording.run is not None:
                results.write_report(recording.run, report, profiled=is_profiled)
        finally:
            lock.release(settings.output_dir)
    return Run(settings.output_dir)


def _show_batch(prepared: Prepared, progress: Progress) -> None:
    """Do everything up to one collated batch."""

    arguments, recipe = prepared.settings.arguments, prepared.settings.recipe
    progress(Started(prepared.settings, arguments, prepared.steps, model=None))
    if prepared.checkpoint is not None:
        progress(Noted(f"would resume from {prepared.checkpoint}"))
    rows = recipe.prepared["train"]
    unused = {arguments.length_column_name, windows.COLUMN}
    rows = rows.select_columns([name for name in rows.column_names if name not in unused])
    rows = rows.select(range(min(arguments.per_device_train_batch_size or 1, len(rows))))
    progress(Collated(recipe.data_collator()(list(rows))))
    distributed.leave()


def _show_finished(prepared: Prepared, progress: Progress) -> Run:
    distributed.leave()
    assert prepared.resumption is not None
    run = Run(prepared.resumption.directory)  # which may not be `output_dir`
    page = run.path / "report.html"
    progress(Noted("the run is finished, nothing is left to train; its results:"))
    progress(Finished(run, False, page if page.exists() else None))
    if not page.exists():
        command = f"python -m finetune report {run.path}"
        progress(Noted(f"its report was not written; to write it: {command}"))
    return run


def _train_and_write(prepared: Prepared, recording: _Recording) -> bool:
    """Train, and write all but the report; return whether steps were profiled."""

    settings, progress = prepared.settings, recording.progress
    recipe, arguments = settings.recipe, settings.arguments
    trainer = _build_trainer(prepared, progress)
    assert trainer.model is not None
    if no_bias := thresholds.without_place(recipe, trainer.model):
        recipe.note(no_bias)
    if writes_run(settings.values):
        progress(Started(settings, arguments, prepared.steps, trainer.model))
        with explained(arguments, "writing run.json"):
            recording.run = _start_run(prepared, progress)
    with signals.deferred(arguments.grace_seconds, recording.give_up):
        outputs, outcome = _train_and_predict(trainer, prepared)
    for sentence in filter(None, (no_bias, outcome["stopped_early"])):
        progress(Noted(sentence))
    is_profiled = trainer.profile is not None and trainer.profile.is_written
    del trainer
    gc.collect()
    distributed.leave()  # the other processes are done
    if (run := recording.run) is not None:
        signals.heed()
        with explained(arguments, "writing the results"):
            results.write(
                run, recipe, outputs, outcome, baseline=arguments.baseline, progress=progress
            )
    return is_profiled


def _build_trainer(prepared: Prepared, progress: Progress) -> Trainer:
    """Return the trainer, whose logs go to ``progress`` instead of being printed."""

    recipe, arguments = prepared.settings.recipe, prepared.settings.arguments
    trainer = build_trainer(recipe.trainer_kwargs, arguments, recipe.adapt)
    trainer.configuration = prepared.configuration
    if prepared.resumption is not None:
        differences = changes.changed_entries(prepared.resumption, prepared.configuration)
        trainer.reschedules = bool(differences)
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(Bar())
    trainer.throughput.take = lambda state, values: progress(
        Logged(state.global_step, state.max_steps, values)
    )
    return trainer


def _train_and_predict(
    trainer: Trainer, prepared: Prepared
) -> tuple[results.Outputs, dict[str, Any]]:
    """Train, predict the validation rows, fold what the task fits on them into the model, save it,
    and predict the test rows.

    Returns:
        The outputs of the model, and the fields of ``run.json`` that are known now.

    Raises:
        Stopped: On every process, if a signal asked for it; what is trained is in a checkpoint.
    """

    started, recipe = time.perf_counter(), prepared.settings.recipe
    with thresholds.in_evaluations(trainer, recipe.kind):
        trained = trainer.train(resume_from_checkpoint=prepared.checkpoint)
    seconds = time.perf_counter() - started
    trainer.require_finite_weights()
    try:
        with thresholds.unfolded_if_stopped(trainer, recipe.kind):
            validation = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
            validation, calibration = thresholds.folded(trainer, recipe.kind, validation)
            with explained(trainer.args, "writing the model"):
                trainer.save_model()
            test = trainer.predict(recipe.prepared["test"])
    except Stopped:
        if not trainer.args.load_best_model_at_end:  # or the best has taken the place of the last
            trainer.save_stopped()
        raise
    steps_before = prepared.resumption.step if prepared.resumption is not None else 0
    outcome = provenance.outcome(trainer, trained.training_loss, seconds, steps_before)
    return results.Outputs(validation, test, calibration), outcome


@dataclass
class _Recording:
    """Records in ``run.json`` how a training ended, if it did not finish.

    Attributes:
        settings: Of the training.
        progress: Called with each event.
        run: The run, once it has begun on the process that writes it.
    """

    settings: Settings
    progress: Progress
    run: Run | None = None

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Record ``interrupted``, ``diverged`` or ``failed``, and raise the error again."""
        try:
            yield
        except KeyboardInterrupt as stop:
            reason = f" by {stop}" if isinstance(stop, Stopped) else ""
            if self.run is not None:
                self.run.update(status="interrupted", stopped_by=str(stop) or None)
                checkpoints = checkpoint.list_checkpoints(self.run.path)
                then = "no checkpoint was saved yet: start again"
                if checkpoints:
                    step = checkpoint.number(checkpoints[0])
                    then = f"to resume at step {step:,}: {self.settings.resuming}"
                stop.args = (f"interrupted{reason}; {then}",)
                self.progress(Interrupted(*stop.args))
            else:
                sentence = f"interrupted{reason} before the training began: start it again"
                self.progress(Interrupted(sentence))
            raise
        except BaseException as error:  # the process group stays: leaving it waits for the others
            if self.run is not None:
                is_explained = isinstance(error, (RunError, UserError))
                status = error.status if isinstance(error, RunError) else "failed"
                failure = str(error) if is_explained else type(error).__name__
                with contextlib.suppress(OSError, RunError):  # the failure itself is what counts
                    self.run.update(status=status, failure=failure)
                files.release(self.run.path)
            if isinstance(error, Diverged):  # on every process: the first to exit ends the others
                distributed.gather(None)
            raise

    def give_up(self, name: str) -> None:
        """Record that there was no time to save; the process ends after this."""
        sentence = f"{name}: not saved within --grace_seconds"
        if self.run is not None:
            self.run.update(status="interrupted", stopped_by=sentence)
        os.write(2, f"error: {sentence}, the process ends\n".encode())


def _start_run(prepared: Prepared, progress: Progress) -> Run:
    """Write ``run.json`` of a run that begins or continues, in a directory that is now its own."""

    settings, resumed = prepared.settings, prepared.resumption
    directory, arguments = settings.output_dir, settings.arguments
    manifest = provenance.manifest(settings, arguments)
    manifest = dataclasses.replace(manifest, configuration=prepared.configuration)
    # only now: until here a mistake could still be found, or the model be read from there
    if resumed is not None and resumed.in_place:
        occupy(directory)
    elif moved := clear_way(directory):
        progress(MovedAside(moved))
    if resumed is not None:
        if resumed.path is not None and resumed.in_place:
            for path in checkpoint.list_checkpoints(directory):
                if (checkpoint.number(path) or 0) > resumed.step:
                    aside = checkpoint.set_aside(path, "later")
                    progress(Noted(f"{path} is not of this continuation: renamed to {aside.name}"))
        if resumed.path is not None:
            progress(
                Noted(f"resuming from {resumed.path}, step {resumed.step:,} of {prepared.steps:,}")
            )
        for sentence in changes.describe(resumed, prepared.configuration, manifest):
            progress(Noted(sentence))
        earlier = resumed.manifest.resumed if resumed.manifest is not None else []
        record = {
            "step": resumed.step,
            "from": str(resumed.path) if resumed.path else None,
            "allowed": changes.changed_entries(resumed, prepared.configuration),
            "world_size": [resumed.world_size, arguments.world_size],
        }
        manifest = dataclasses.replace(manifest, resumed=[*earlier, record])
    manifest.write(directory)
    files.reserve(directory)
    return Run(directory)


def _agree(prepared: Prepared) -> Prepared:
    """Refuse machines that would not do the same."""
    settings = prepared.settings
    if settings.values.save_on_each_node:
        resumed = prepared.resumption
        if not (is_done := all(distributed.gather(prepared.is_done))):
            resumed = resumption.agree_on_checkpoint(resumed, settings.output_dir)
        prepared = dataclasses.replace(prepared, resumption=resumed, is_done=is_done)
    if not prepared.is_done:
        refuse_different_machines(prepared)
    return prepared
