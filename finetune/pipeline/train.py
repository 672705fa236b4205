"""Training: from settings to a run directory.

``train`` is the whole path for notebooks and scripts. The command line takes its three parts by
themselves: settings, :func:`prepare` on rank 0 first, and :func:`fit` on every rank.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import settings
from finetune.config.settings import Settings
from finetune.errors import Mistakes, UserError, counted, suggestion
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
from finetune.recipe import Recipe
from finetune.runs.run import Run
from finetune.runtime import distributed, hub, versions

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from transformers.trainer_utils import PredictionOutput

    from finetune.training.arguments import ArgumentValues
    from finetune.training.trainer import Trainer

#: Optimizer steps below which a pretrained encoder was seen to learn little or nothing.
_FEWEST_STEPS = 50


@dataclass(frozen=True)
class Prepared:
    """Settings that can be trained (checked, their data loaded and tokenized), the checkpoint to
    go on from, if any, and the optimizer steps of the training.
    """

    settings: Settings
    checkpoint: str | None
    steps: int


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


def prepare(
    chosen: Settings, progress: Progress = ignore, mistakes: Mistakes | None = None
) -> Prepared:
    """Refuse everything that can be refused, and tokenize, before any model is loaded.

    Args:
        chosen: The settings.
        progress: Is told how far reading and tokenizing are.
        mistakes: What is wrong with the settings, to be told with what is wrong with the data.

    Raises:
        UserError: what is wrong with the options, the data, the directory or the Hub.
    """
    from finetune.pipeline import provenance
    from finetune.training.checkpoint import to_resume
    from finetune.training.directory import refuse_foreign
    from finetune.training.early_stopping import refuse_stopped
    from finetune.training.profile import BEFORE

    wrong, recipe = mistakes or Mistakes(), chosen.recipe
    values: ArgumentValues | None = None
    checkpoint: str | None = None
    with wrong:
        values = chosen.values
    with wrong:
        refuse_foreign(chosen.output_dir)
    if values is not None:
        with wrong:
            checkpoint = to_resume(values.resume_from_checkpoint, values.output_dir)
            refuse_stopped(checkpoint, values.early_stopping_patience)
        _refuse_unknown_metric(values, recipe, wrong)
    with telling(progress):
        _look_at_sources(recipe, values, wrong)
        wrong.refuse()
        assert values is not None
        rows = recipe.prepared["train"]
    steps = provenance.steps(values, rows)
    if values.profile and checkpoint is None and steps < values.profile + BEFORE:
        raise UserError(
            f"--profile {values.profile}: the run has {counted(steps, 'step')}, and the first "
            f"{BEFORE} are not profiled"
        )
    note = too_few_steps(recipe, values, steps)
    if note and note not in recipe.notes:  # a recipe may be prepared twice
        recipe.note(note)
    return Prepared(chosen, checkpoint, steps)


def _look_at_sources(recipe: Recipe, values: ArgumentValues | None, mistakes: Mistakes) -> None:
    """Collect what is wrong with model and data; nothing is downloaded for a run with mistakes."""
    from finetune.training.sampler import refuse_too_few

    if unreachable := hub.unreachable(hub.missing(vars(recipe))):
        mistakes.add(*unreachable.mistakes)
    if not (mistakes.found and hub.missing({**vars(recipe), "dataset": None})):
        with mistakes:
            recipe.check()
    if mistakes.found and hub.missing({**vars(recipe), "model": None}):
        return
    with mistakes:
        rows = recipe.splits["train"]
        if values is not None:
            refuse_too_few(values, len(rows))
            if values.label_smoothing_factor and not recipe.labels:
                raise UserError(
                    "--label_smoothing_factor: there are no classes, the labels are numbers"
                )


def too_few_steps(recipe: Recipe, values: ArgumentValues, steps: int) -> str | None:
    """Return what to type if a pretrained encoder is unlikely to learn in so many optimizer steps.

    Where the limit comes from: docs/decisions/too-few-steps.md.
    """
    from finetune.recipe.text import TextClassification

    if steps >= _FEWEST_STEPS or not isinstance(recipe, TextClassification):
        return None
    if values.max_steps > 0:
        instead = f"--max_steps {_FEWEST_STEPS} or more"
    else:
        epochs = math.ceil(_FEWEST_STEPS * values.num_train_epochs / steps)
        instead = f"--num_train_epochs {epochs}"
    return (
        f"{steps:,} optimizer step{'s' * (steps != 1)}: with fewer than {_FEWEST_STEPS} a "
        f"pretrained model learns little or nothing; try {instead}"
    )


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
        validated = trainer.predict(recipe.prepared["validation"])
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
    except KeyboardInterrupt:
        if run is not None:
            run.update(status="interrupted")
            progress(Interrupted(f"interrupted; {how_to_go_on(chosen)}"))
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
    _refuse_different_machines(prepared)


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


def _refuse_unknown_metric(values: Any, recipe: Recipe, mistakes: Mistakes) -> None:
    """Refuse a metric that is not computed, which the library does after the first epoch.

    Only of a recipe that computes its metrics the common way can it be told before.
    """
    name = (values.metric_for_best_model or "loss").removeprefix("eval_")
    known = ["loss", *recipe.known_scoring]
    if values.load_best_model_at_end and recipe.known_scoring and name not in known:
        mistakes.add(
            f"--metric_for_best_model: the recipe computes no '{name}'{suggestion(name, known)} "
            f"(it computes: {', '.join(known)})"
        )


def _refuse_different_machines(prepared: Prepared) -> None:
    """Refuse what torchrun does not compare: flags, data and disk of each machine."""
    from finetune.data.splits import fingerprint
    from finetune.pipeline.provenance import versions
    from finetune.runtime.agreement import agree, refuse_half_directories

    if distributed.machines() == 1:
        return
    chosen, checkpoint = prepared.settings, prepared.checkpoint
    own = {each.name: getattr(chosen.recipe, each.name) for each in fields(chosen.recipe)}
    given = {**own, **chosen.training}
    for own_to_each in ("output_dir", "resume_from_checkpoint", "num_threads"):
        given.pop(own_to_each, None)
    for place in ("dataset", "model"):  # a path may be another on each machine
        if Path(str(given.get(place) or "-")).expanduser().exists():
            given[place] = "a local path"
    agree(
        {
            "the recipe": type(chosen.recipe).__name__,
            **{f"--{name}": value for name, value in given.items()},
            "the data (fingerprint)": fingerprint(chosen.recipe.splits, chosen.recipe.input_column),
            "the checkpoint to resume": Path(checkpoint).name if checkpoint else None,
            "versions": versions(),
        }
    )
    if not chosen.dry_run:
        refuse_half_directories(chosen.output_dir, chosen.values.save_on_each_node)
