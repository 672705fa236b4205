"""Training: from settings to a run directory.

:func:`train` and :func:`launch` are for notebooks and scripts. The command line calls
:func:`run_training` in every process.
"""

import contextlib
import copy
import dataclasses
import gc
import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict, concatenate_datasets
from scipy.special import expit, logit
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, set_seed

from finetune.config.settings import Settings
from finetune.data.encoding import COLUMN
from finetune.errors import Diverged, RunError, UserError
from finetune.models import adapters, head
from finetune.pipeline import refit, results
from finetune.pipeline.description import describe_run
from finetune.pipeline.events import Finished, Logged, Progress, Started, emit, ignore, reporting
from finetune.pipeline.preparation import Prepared, has_adapter, prepare, prepare_job, writes_run
from finetune.pipeline.refit import ScoredRun
from finetune.pipeline.time_limit import UNEVALUATED, fit_epochs
from finetune.recipe import Recipe, probe, teacher
from finetune.recipe.run import Run
from finetune.reporting.tracking import Trackers, tracking
from finetune.runs import checkpoints
from finetune.runs.directory import lock_directory, move_run_aside, unlock_directory
from finetune.runtime import activity, distributed, stopping
from finetune.runtime.stopping import Stopped
from finetune.training.callbacks import Bar, explained
from finetune.training.trainer import Trainer, build_trainer


def train(
    recipe: str | type[Recipe] | Recipe, *, progress: Progress = ignore, **options: Any
) -> Run:
    """Fine-tune in this process, on one device, or with DataParallel if several GPUs are visible.

    Args:
        recipe: The name of a recipe, the path of a recipe file, a recipe class, or an instance.
        progress: Called with each :class:`~finetune.pipeline.events.Event`, e.g. ``print``.
        **options: Options of the recipe, training arguments, ``embedded`` and ``config``. The
            ``dataset`` may also be rows in memory: see :func:`finetune.data.memory.store`.

    Returns:
        The finished run.

    Raises:
        UserError: If the options or the data have errors; it lists all of them.
    """
    distributed.refuse_separate_processes()
    return run_training(_settings(recipe, options), progress)


def launch(
    recipe: str | type[Recipe] | Recipe,
    *,
    num_processes: int,
    progress: Progress = ignore,
    **options: Any,
) -> Run:
    """Fine-tune with DistributedDataParallel in worker processes of this machine.

    Args:
        recipe: The name of a recipe, the path of a recipe file, a recipe class, or an instance.
        num_processes: The number of workers, forked by ``accelerate.notebook_launcher``; on GPUs
            at most one per GPU. With 1, this process trains, as in :func:`finetune.train`.
        progress: Called with each event, in the worker of rank 0.
        **options: As in :func:`finetune.train`.

    Returns:
        The finished run, read from its directory.

    Raises:
        UserError: If the options or the data have errors. They are checked before a worker starts.
        ValueError: If a trainer was built in this process before: it can no longer be forked.
    """
    from accelerate import notebook_launcher

    if num_processes < 1:
        raise UserError(f"num_processes={num_processes}: expected 1 or more")
    if num_processes == 1:
        return train(recipe, progress=progress, **options)
    distributed.refuse_separate_processes()
    settings = _settings(recipe, options)
    with reporting(progress):
        prepared = prepare(dataclasses.replace(settings, dry_run=True))
    settings = dataclasses.replace(settings, recipe=prepared.settings.recipe)  # with its rows
    stdout = sys.stdout
    stdout.flush()

    def run_worker() -> None:
        sys.stdout = stdout
        run_training(settings, progress)

    with contextlib.redirect_stdout(io.StringIO()):  # it prints "2 CUDAs", even without a GPU
        notebook_launcher(
            run_worker,
            num_processes=num_processes,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",  # torch chooses the port
        )
    return Run.load(settings.output_dir)


def _settings(recipe: str | type[Recipe] | Recipe, options: dict[str, Any]) -> Settings:
    settings = Settings.from_keywords(recipe, options)
    if settings.dry_run:
        settings.report.error(
            "dry_run is for the command line: in Python, use recipe.splits and recipe.prepared"
        )
    return settings


def run_training(
    settings: Settings, progress: Progress = ignore, pruning: TrainerCallback | None = None
) -> Run:
    """Prepare, train, evaluate once on the test set and write the run; every process calls this.

    A dry run ends after one collated batch and writes nothing. With ``--refit``, a second training
    on training and validation rows follows.

    Args:
        settings: The settings of the training.
        progress: Called with each event.
        pruning: Makes the run a trial of a search, which ends after the predictions of validation
            rows; it may raise ``Pruned``. A resume without it evaluates the trial on the test rows.
    """
    try:
        trained = _run_training(settings, progress, pruning)
        if trained.values.refit and not trained.dry_run:
            scored_run = ScoredRun.read(trained.output_dir)
            trained = refit.derive_settings(trained, scored_run)
            try:
                _run_training(trained, progress, scored_run=scored_run)
            finally:
                unlock_directory(trained.output_dir)
    finally:
        if pruning is None:  # else the search does, when the score is in the study
            unlock_directory(settings.output_dir)
    return Run(settings.output_dir)


def _run_training(
    settings: Settings,
    progress: Progress,
    pruning: TrainerCallback | None = None,
    scored_run: ScoredRun | None = None,
) -> Settings:
    """Run one training, and return its settings, with its rows.

    The process group stays if a second training follows; ``scored_run`` is the run that
    this one follows.
    """
    with reporting(progress), tracking(settings.output_dir) as trackers:
        recording = _Recording(settings)
        with recording.failures():
            prepared = fit_epochs(prepare_job(settings))
            settings = prepared.settings
            if settings.values.refit:
                refit.check_settings(settings)
            if settings.dry_run or prepared.is_done:
                _report_without_training(prepared)
                return settings
            _train_and_write(prepared, trackers, recording, pruning, scored_run)
        if recording.run is not None and pruning is None:
            from finetune.pipeline.report import write_final_report  # imports matplotlib

            write_final_report(recording.run)
    return settings


def _train_and_write(
    prepared: Prepared,
    trackers: Trackers,
    recording: "_Recording",
    pruning: TrainerCallback | None,
    scored_run: ScoredRun | None,
) -> None:
    """Train as prepared, and write the results in the process that writes the run."""
    settings = prepared.settings
    all_rows = None  # the recipe on training and validation rows, for a second training
    if scored_run is not None:
        all_rows = _on_all_rows(settings.recipe)
    trainer, recipe = _build_trainer(prepared, all_rows)
    shown = dataclasses.replace(settings, recipe=all_rows or recipe)
    emit(Started(shown, settings.arguments, prepared.steps, trainer.model))
    final_recipe = None
    baseline_recipe = recipe  # baselines are fitted on the rows that the model is trained on
    if settings.arguments.final_epochs and pruning is None:
        final_recipe = _on_all_rows(recipe)
        if recipe.resolved_task.thresholds == "none":
            baseline_recipe = final_recipe
        else:
            recipe.note(
                "baselines are fitted to the training rows alone, because their thresholds "
                "are fitted to the validation rows"
            )
    trackers.take_over(trainer)
    if pruning is not None:
        trainer.add_callback(pruning)
    if writes_run(settings.values):
        recording.run = _start_run(prepared, trainer, scored_run)
    with stopping.deferred(settings.arguments.grace_seconds, recording.give_up):
        outputs: Any
        if scored_run is not None:
            outputs = _train_again(trainer, recipe, prepared, scored_run)
        else:
            outputs = _train_and_predict(
                trainer, recipe, final_recipe, prepared, is_trial=pruning is not None
            )
    del trainer
    gc.collect()
    if not settings.values.refit:
        distributed.leave_process_group()  # only rank 0 has work left
    if recording.run is None:
        return
    if name := stopping.requested():  # a signal arrived since the training
        raise Stopped(name)
    with explained(settings.arguments, "writing the results"):
        if scored_run is not None:
            recording.run.update(**outputs, status="finished")
        elif pruning is not None:
            results.write_trial(recording.run, *outputs)
        else:
            results.write(recording.run, baseline_recipe, settings.arguments, *outputs)
            trackers.metrics = recording.run.metrics


def _report_without_training(prepared: Prepared) -> None:
    """Report the start block and one batch for a dry run, or the results of a finished run."""
    settings = prepared.settings
    run = Run(prepared.resumption.directory)
    if settings.dry_run:
        recipe = settings.recipe
        arguments = settings.arguments
        emit(Started(settings, arguments, prepared.steps, model=None))
        if prepared.resumption.path is not None:
            activity.say(f"would resume from {prepared.resumption.path}")
        rows = recipe.training_rows
        unused = {arguments.length_column_name, COLUMN} & set(rows.column_names)
        rows = rows.remove_columns(list(unused))
        rows = rows.select(range(min(arguments.per_device_train_batch_size or 1, len(rows))))
        batch = recipe.data_collator()(list(rows))
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in batch.items())
        activity.say(f"one collated batch: {shapes}")
        activity.say("dry run: nothing was trained, nothing was written")
    else:
        page = run.path / "report.html"
        activity.say("the run is finished, nothing is left to train. Its results:")
        emit(Finished(run, page if page.exists() else None))
    if settings.dry_run or not settings.values.refit:
        distributed.leave_process_group()


def _build_trainer(prepared: Prepared, all_rows: Recipe | None = None) -> tuple[Trainer, Recipe]:
    """Build the trainer, which reports its logs as events and does not print them. That of a second
    training has all rows, but the weights of classes of the first, and its head unless this reads
    the mean.

    Returns:
        The trainer, and the recipe, without thresholds if the model has no bias to store them in.
    """
    recipe = prepared.settings.recipe
    load_model = None
    if prepared.resumption.path is not None:  # the checkpoint has the weights of the head
        load_model = recipe.new_model
        if (manifest := prepared.resumption.manifest) is not None:
            for note in manifest.data.notes:
                if note.startswith(probe.NOTE):
                    recipe.note(note)
    changes = {}
    if all_rows is not None:
        changes["train_dataset"] = all_rows.training_rows
    trainer = build_trainer(recipe, prepared.settings.arguments, load_model, **changes)
    trainer.configuration = prepared.configuration
    trainer.reschedules = bool(prepared.resumption.changes(prepared.configuration))
    _emit_logs(trainer)
    if all_rows is not None and load_model is None:
        probe.add_validation_rows(recipe, trainer.model, trainer.args)
    if has_adapter(recipe) and not hasattr(trainer.model, "merge_adapter"):
        raise UserError("--adapter lora: adapt() of the recipe must return super().adapt(...)")
    has_bias = False
    with contextlib.suppress(UserError):  # a model may have no such layer
        has_bias = head.last_linear(trainer.model, recipe.resolved_task.width).bias is not None
    if recipe.resolved_task.thresholds != "none" and not has_bias:
        recipe.note(
            f"{type(trainer.model).__name__}: the last layer has no bias to store thresholds in: a "
            "label is predicted if its probability is above one half"
        )
        recipe = recipe.with_values(
            resolved_task=dataclasses.replace(recipe.resolved_task, thresholds="none")
        )
    return trainer, recipe


def _emit_logs(trainer: Trainer) -> None:
    """Let a trainer emit its logs as events, and not print them."""
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(Bar())
    trainer.callback.on_entry = lambda state, values: emit(
        Logged(state.global_step, state.max_steps, values)
    )


def _train_and_predict(
    trainer: Trainer,
    recipe: Recipe,
    final_recipe: Recipe | None,
    prepared: Prepared,
    *,
    is_trial: bool = False,
) -> tuple[Any, ...]:
    """Train, predict the validation rows, train the final epochs, fold the shift fitted on the
    validation rows into the model, predict the test rows, and save the model.

    Args:
        trainer: From :func:`_build_trainer`.
        recipe: The recipe on its rows.
        final_recipe: The recipe on the rows of ``--final_epochs``; None without these epochs.
        prepared: The settings, and the checkpoint to continue from.
        is_trial: Whether it is a trial of a search, which predicts no test rows and is not saved.

    Returns:
        Outputs on validation and test rows, thresholds and outcome, as :func:`results.write` takes;
        of a trial, which predicts no test rows and is not saved, outputs on validation rows and
        outcome.

    Raises:
        Stopped: In every process, if a signal arrived. A checkpoint has the trained weights.
    """
    task = recipe.resolved_task
    trainer.shifted = task.shifted
    outcome = _train(trainer, recipe, prepared)
    if trainer.args.load_best_model_at_end and not trainer.state.best_global_step:
        name = trainer.args.metric_for_best_model
        activity.say(f"no evaluation has a number for {name}: the model of the last step is saved")
    layer = None
    thresholds = None
    is_final = False
    try:
        validation = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
        shift = task.fit(np.asarray(validation.predictions), np.asarray(validation.label_ids))
        if shift is not None:
            layer = head.last_linear(trainer.model, task.width)
            weights = copy.deepcopy(layer.state_dict())
            head.fold(layer, 1.0, shift)
            validation = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
            # the probabilities that the shift moves to one half
            thresholds = dict(zip(task.labels, expit(-shift).tolist(), strict=True))
        if final_recipe is not None:
            if layer is not None:
                layer.load_state_dict(weights)
            is_final = True
            started = time.perf_counter()
            probe.add_validation_rows(recipe, trainer.model, trainer.args)
            _train_final_epochs(trainer, final_recipe)
            seconds = outcome["train_seconds"] + time.perf_counter() - started
            outcome |= {"train_seconds": round(seconds, 2), "finished": _now()}
            if layer is not None and shift is not None:
                head.fold(layer, 1.0, shift)
        test = None if is_trial else trainer.predict(recipe.prepared["test"])
    except Stopped:
        if is_final:  # a resumed run trains these epochs again, from the last checkpoint
            raise
        if layer is not None:  # a resumed run fits and folds again
            layer.load_state_dict(weights)
        if not trainer.args.load_best_model_at_end:  # else the best weights have replaced the last
            trainer.save_stopped()
        raise
    if is_trial:
        return (validation, outcome)
    _save_model(trainer, recipe)
    return (validation, test, thresholds, outcome)


def _train_again(
    trainer: Trainer, recipe: Recipe, prepared: Prepared, scored_run: ScoredRun
) -> dict[str, Any]:
    """Train on all rows, fold in the thresholds of the first training, and save the model.

    Returns:
        The outcome, with the temperature of the first training.

    Raises:
        Stopped: As :func:`_train_and_predict`.
    """
    outcome = _train(trainer, recipe, prepared)
    thresholds = scored_run.metrics.statistics.thresholds
    if thresholds is not None:
        shift = -logit([thresholds[label] for label in recipe.labels])
        head.fold(head.last_linear(trainer.model, recipe.resolved_task.width), 1.0, shift)
    output = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
    loss = (output.metrics or {})["eval_loss"]
    loss_before = scored_run.metrics.validation["loss"]
    sentence = (
        f"{scored_run.not_scored}; on the validation rows, which it was trained on, its loss is "
        f"{loss:.4f} instead of {loss_before:.4f}"
    )
    if loss > loss_before:
        sentence += ", which is worse: prefer the run"
    _save_model(trainer, recipe)
    return {**outcome, "temperature": scored_run.manifest.temperature, "not_scored": sentence}


def _save_model(trainer: Trainer, recipe: Recipe) -> None:
    with explained(trainer.args, "writing the model"):
        if has_adapter(recipe):
            adapters.save_and_unload_adapter(trainer)
        trainer.save_model()


def _train(trainer: Trainer, recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """Train, merge an adapter into the model, and return the fields of ``run.json`` about the
    training. Loss, seconds and speed are measured since the start or the resume.
    """
    started = time.perf_counter()
    trained = trainer.train(resume_from_checkpoint=prepared.resumption.path)
    seconds = time.perf_counter() - started
    trainer.require_finite()
    if has_adapter(recipe):  # in place; checkpoints stay the same
        trainer.model.merge_adapter()  # type: ignore[operator]
    state = trainer.state
    return {
        "steps": state.global_step,
        "steps_before": prepared.resumption.step,
        "train_loss": trained.training_loss,
        "train_seconds": round(seconds, 2),
        "finished": _now(),
        "speed": trainer.callback.summary(),
        "best_step": state.best_global_step if trainer.args.load_best_model_at_end else None,
        "stopped_early": trainer.callback.stop_reason,
        "history": state.log_history,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _on_all_rows(recipe: Recipe) -> Recipe:
    """Return the recipe with its validation rows among the training rows, on every process."""
    splits = recipe.splits
    rows = concatenate_datasets([splits["train"], splits["validation"]])
    raw = DatasetDict(train=rows, test=splits["test"])
    features = distributed.main_process_first(lambda: recipe.prepare(raw)["train"])
    loaded = dataclasses.replace(recipe.loaded, splits=DatasetDict({**splits, "train": rows}))
    prepared = DatasetDict({**recipe.prepared, "train": features})
    soft_labels = recipe.soft_labels
    if soft_labels is not None:  # validation rows have classes
        classes = np.eye(len(recipe.labels))[recipe.targets("validation")]
        soft_labels = np.concatenate([soft_labels, classes])
    recipe = recipe.with_values(loaded=loaded, prepared=prepared, soft_labels=soft_labels)
    training_rows = distributed.main_process_first(lambda: teacher.training_rows(recipe))
    return recipe.with_values(training_rows=training_rows)


def _train_final_epochs(trainer: Trainer, recipe: Recipe) -> None:
    """Train the model of a trainer for ``--final_epochs``, without evaluations and checkpoints.

    Args:
        trainer: The trainer of the epochs before.
        recipe: From :func:`_on_all_rows`.

    Raises:
        Stopped: In every process, if a signal arrived.
    """
    arguments = copy.copy(trainer.args)
    # where the checkpoint goes that a signal asks for
    directory = Path(str(arguments.output_dir)) / "final"
    changes = UNEVALUATED | {
        "output_dir": str(directory),
        "num_train_epochs": arguments.final_epochs,
        "max_steps": -1,
        "save_strategy": "no",
    }
    warmup = arguments.warmup_steps or 0
    if warmup >= 1:  # as large a share of these epochs as it was before
        changes["warmup_steps"] = warmup / max(1, trainer.state.max_steps)
    for name, value in changes.items():
        setattr(arguments, name, value)
    activity.say(
        f"training {arguments.final_epochs:g} epochs on training and validation rows, "
        f"{len(recipe.training_rows):,} in all"
    )
    set_seed(arguments.seed + arguments.process_index)
    final = Trainer(args=arguments, **recipe.trainer_kwargs(trainer.model, arguments))
    _emit_logs(final)
    try:
        final.train()
        final.require_finite()
    finally:
        if arguments.should_save:
            shutil.rmtree(directory, ignore_errors=True)


@dataclass
class _Recording:
    """Records in ``run.json`` why a training did not finish."""

    settings: Settings
    run: Run | None = None  # set once the run has started, in the process that writes it

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Record the status ``interrupted``, ``diverged`` or ``failed``, and re-raise the error."""
        try:
            yield
        except KeyboardInterrupt as stop:
            hint = f"to start again: {self.settings.command}"
            if self.run is not None:
                self.run.update(status="interrupted", stopped_by=getattr(stop, "name", None))
                paths = checkpoints.list_checkpoints(self.run.path)
                if paths and not self.settings.values.save_only_model:
                    step = checkpoints.step_of(paths[0])
                    hint = f"to resume at step {step:,}: {self.settings.resuming}"
            stop.args = (f"{str(stop) or 'interrupted'}; {hint}",)
            raise
        except BaseException as error:  # the group stays: leaving waits for all ranks
            if self.run is not None:
                status = "failed"
                if isinstance(error, RunError):
                    status = error.status
                is_explained = isinstance(error, (RunError, UserError))
                failure = str(error) if is_explained else type(error).__name__
                with contextlib.suppress(OSError, RunError):  # must not replace the first error
                    self.run.update(status=status, failure=failure)
            if isinstance(error, Diverged):  # on every rank: the first to exit ends the others
                distributed.gather(None)
            raise

    def give_up(self, name: str) -> None:
        """Record that saving took longer than ``--grace_seconds``; the process ends after this."""
        reason = f"{name}: not saved within --grace_seconds"
        if self.run is not None:
            self.run.update(status="interrupted", stopped_by=reason)
        os.write(2, f"error: {reason}, the process ends\n".encode())


def _start_run(prepared: Prepared, trainer: Trainer, scored_run: ScoredRun | None) -> Run:
    """Take over the output directory, and write ``run.json`` of a new or a resumed run."""
    settings = prepared.settings
    resumption = prepared.resumption
    directory = settings.output_dir
    manifest = describe_run(settings, prepared.configuration)
    if scored_run is not None:
        manifest = dataclasses.replace(
            manifest, data=scored_run.manifest.data, not_scored=scored_run.not_scored
        )
    # not earlier: an error could still stop the command, or the model be read from this directory
    lock_directory(directory)
    if not resumption.in_place and (message := move_run_aside(directory)):
        activity.say(message)
    refit.set_aside(directory)
    if resumption.path is not None:
        step = resumption.step
        for path in checkpoints.list_checkpoints(directory):
            if checkpoints.step_of(path) > step:
                renamed = checkpoints.set_aside(path, "later")
                activity.say(f"{path} is newer than step {step:,}: renamed to {renamed.name}")
        activity.say(f"resuming from {resumption.path}, step {step:,} of {prepared.steps:,}")
        earlier = resumption.manifest.resumed if resumption.manifest is not None else []
        record = {"step": step, "from": resumption.path, "differences": prepared.differences}
        manifest = dataclasses.replace(manifest, resumed=[*earlier, record])
    with explained(settings.arguments, "writing run.json"):
        manifest.write(directory)
    run = Run(directory)
    run.reserve_space()
    return run
