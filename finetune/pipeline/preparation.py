"""Everything that can be refused before a model is loaded: options, data, directory, machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.settings import Settings
from finetune.data import ROW, targets
from finetune.data.label_columns import list_names
from finetune.data.lengths import unknown_findings
from finetune.errors import UserError, counted
from finetune.models.families import outputs_of_head
from finetune.models.head import match_outputs
from finetune.pipeline import changes, provenance, resumption
from finetune.pipeline.events import Noted, Progress, ignore, telling
from finetune.pipeline.resumption import Resumption
from finetune.recipe import ImageRecipe, Recipe, TextRecipe
from finetune.recipe.rows import correction_files
from finetune.runtime import distributed, hub
from finetune.training import sampler
from finetune.training.arguments import ArgumentValues
from finetune.training.directory import occupy, refuse_foreign
from finetune.training.pickles import refuse_code
from finetune.training.speed import WARMUP_STEPS

#: Log entries of the loss in a run, unless ``--logging_steps`` is given.
_MOST_LOGGED = 500
#: Seconds of ``--ddp_timeout`` where the training arguments cannot be read.
_DDP_TIMEOUT = 1800
#: Flags that may differ from one machine to the next.
_MACHINE_FLAGS = {
    *("output_dir", "resume_from_checkpoint", "resume", "num_threads"),
}
#: Steps below which a pretrained model is often undertrained: docs/decisions/too-few-steps.md.
_FEWEST_STEPS = 50


@dataclass(frozen=True)
class Prepared:
    """Settings that can be trained: checked, their data loaded and tokenized.

    Attributes:
        settings: The settings.
        resumption: What to resume; None for a new run.
        configuration: What decides the result, see :func:`finetune.pipeline.changes.configuration`.
        steps: The optimizer steps of the training.
        is_done: Whether the run is finished already, and is only to be shown; with
            ``--save_on_each_node`` only if it is on every machine.
    """

    settings: Settings
    resumption: Resumption | None
    configuration: dict[str, Any]
    steps: int
    is_done: bool = False

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to resume from, if any."""
        path = self.resumption.path if self.resumption is not None else None
        return None if path is None else str(path)


def prepare_job(settings: Settings, progress: Progress = ignore) -> Prepared:
    """Join the process group, and return on every rank what :func:`prepare` returns on rank 0.

    Raises:
        UserError: On every rank, all errors in the report.
    """
    try:
        values = settings.values
    except UserError:  # which `prepare` reports
        distributed.join_process_group("gloo", _DDP_TIMEOUT, use_cpu=True)
    else:
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    return distributed.main_process_first(lambda: prepare(settings, progress))


def prepare(settings: Settings, progress: Progress = ignore, *, trains: bool = True) -> Prepared:
    """Refuse everything that can be refused, and tokenize, before any model is loaded.

    Args:
        settings: The settings.
        progress: Called while files are read and tokenized.
        trains: Whether this process trains, and so needs the output directory for itself.

    Raises:
        UserError: All errors in the report: options, data, directory and Hub.
    """
    with telling(progress) as report_event:
        values = _check_values(settings)
        resumed = _check_directory(settings, values, trains=trains)
        _check_sources(settings, values)
        settings.report.raise_errors()
        for note in resumed.notes if resumed is not None else ():
            report_event(Noted(note))
        return _tokenize(settings, resumed)


def look(settings: Settings) -> ArgumentValues | None:
    """Load the data and check it; nothing is tokenized or written.

    Args:
        settings: Their report takes what training would refuse.

    Returns:
        The training arguments; None if they contradict each other.
    """
    report, recipe = settings.report, settings.recipe
    values = _check_values(settings)
    _check_sources(settings, values)
    if report.has_errors or "splits" not in vars(recipe):
        return values
    with report.collect():
        recipe.kind.refuse_metrics(recipe.known_scoring)
    return _check_values(replace(settings))  # the task, which the data decides, has defaults too


def steps_of(values: ArgumentValues, recipe: Recipe) -> int | None:
    """Return the optimizer steps of a training; None where they depend on the token counts."""

    if isinstance(recipe, TextRecipe) and recipe.long_texts == "windows":
        return None
    if values.max_tokens_per_batch or values.train_sampling_strategy == "group_by_length":
        return None
    return provenance.steps(values, recipe.splits["train"])


def remarks(recipe: Recipe, values: ArgumentValues, steps: int) -> list[str]:
    """Return what the user should know of a training of so many optimizer steps."""
    sentences = list(recipe.kind.remarks(recipe.splits))
    if steps < _FEWEST_STEPS and isinstance(recipe, TextRecipe):
        flag = f"--max_steps {_FEWEST_STEPS} or more"
        if values.max_steps <= 0:
            epochs = math.ceil(_FEWEST_STEPS * values.num_train_epochs / steps)
            flag = f"--num_train_epochs {epochs}"
        sentences.insert(
            0,
            f"{counted(steps, 'optimizer step')}: with fewer than {_FEWEST_STEPS} a pretrained "
            f"model is often undertrained; try {flag}",
        )
    return sentences


def writes_run(values: ArgumentValues | None) -> bool:
    """Return whether this process writes: rank 0, or one of each machine that shares no disk."""
    ranks = distributed.ranks()
    per_machine = values is not None and values.save_on_each_node
    return (ranks.local_rank if per_machine else ranks.rank) == 0


def refuse_different_machines(prepared: Prepared) -> None:
    """Refuse what torchrun does not compare: flags, data and disk of each machine.

    Raises:
        UserError: On every rank, one line for each that differs.
    """

    if distributed.machines() == 1:
        return
    settings, checkpoint = prepared.settings, prepared.checkpoint
    facts = {**prepared.configuration, **settings.training, "versions": provenance.versions()}
    facts["the checkpoint to resume"] = Path(checkpoint).name if checkpoint else None
    if Path(str(facts.get("model") or "-")).expanduser().exists():
        del facts["model"]  # a path may be another on each machine
    options = {**vars(settings.recipe), **vars(settings.values)}
    names = {name: f"--{name}" if name in options else name for name in facts}
    distributed.refuse_disagreement(
        {names[name]: fact for name, fact in facts.items() if name not in _MACHINE_FLAGS}
    )
    if not settings.dry_run:
        save_on_each_node = settings.values.save_on_each_node
        distributed.refuse_half_directories(settings.output_dir, save_on_each_node)


def _check_values(settings: Settings) -> ArgumentValues | None:
    """Return the training arguments, whose errors are added to the report; None if they contradict
    each other.
    """
    values = None
    with settings.report.collect():
        values = settings.values
    return values


def _check_directory(
    settings: Settings, values: ArgumentValues | None, *, trains: bool
) -> Resumption | None:
    """Check the output directory, and return what is to be resumed."""

    directory, is_writer, resumed = settings.output_dir, writes_run(values), None
    is_locked = is_writer and trains and not settings.dry_run
    with settings.report.collect():
        if is_writer:
            refuse_foreign(directory)
        request = resumption.requested(values, directory) if values is not None else None
        if request and is_locked and directory.is_dir():
            occupy(directory)  # or a running training might be writing what is verified
        resumed = resumption.find(request, directory, verifies=is_writer, renames=is_locked)
        if resumed is not None and resumed.path is not None and is_writer:
            refuse_code(resumed.path)
    _refuse_files_inside(settings.recipe, directory)
    return resumed


def _check_sources(settings: Settings, values: ArgumentValues | None) -> None:
    """Collect what is wrong with model and data; nothing is downloaded for a run with mistakes."""

    recipe, report = settings.recipe, settings.report
    # an unknown option may be meant to say where data and model are
    has_unknown = any(finding.name == "unknown_option" for finding in report.findings)
    missing = [] if has_unknown else hub.missing(vars(recipe))
    packaged = recipe.packaged_model
    if unreachable := hub.unreachable(missing, embedded=bool(recipe.embedded), packaged=packaged):
        report.error(str(unreachable))
    if not (report.has_errors and hub.missing({**vars(recipe), "dataset": None})):
        with report.collect():
            recipe.check()
    if report.has_errors and hub.missing({**vars(recipe), "model": None}):
        return
    with report.collect():
        rows = recipe.splits["train"]
        if values is not None:
            if not isinstance(recipe, TextRecipe) or recipe.long_texts == "cut":
                sampler.require_a_step(values, len(rows))
            if values.label_smoothing_factor and not recipe.kind.smooths_labels:
                raise UserError(
                    "--label_smoothing_factor needs one class a row; the task is "
                    f"{recipe.kind.name}"
                )
            if values.class_sampling == "balanced":
                sampler.require_classes(recipe.kind.targets(targets.values(rows)))
            if recipe.weights is not None:
                sampler.refuse_weights(values)
        if isinstance(recipe, TextRecipe) and (sample := recipe.token_sample) is not None:
            numbers = np.asarray(rows.select_columns(ROW)[sample.rows][ROW])
            report.add(*unknown_findings(sample, recipe.model, numbers))
        if isinstance(recipe, (TextRecipe, ImageRecipe)):
            _note_trained_head(recipe)


def _tokenize(settings: Settings, resumed: Resumption | None) -> Prepared:
    """Return the settings with tokenized rows, or a run that is finished already."""

    settings = replace(settings)  # the task, which the data decides, has defaults too
    recipe, values = settings.recipe, settings.values
    configuration, is_done = changes.configuration(settings, values), False
    if resumed is not None:
        changes.refuse_changes(resumed, configuration, values.allow_changed)
        is_done = resumed.finished and not changes.extends(resumed, configuration)
        if is_done and not values.save_on_each_node:  # another machine may have to go on
            return Prepared(settings, resumed, configuration, resumed.step, is_done=True)
    steps = provenance.steps(values, recipe.prepared["train"])
    if values.profile and resumed is None and steps < values.profile + WARMUP_STEPS:
        raise UserError(
            f"--profile {values.profile}: the run has {counted(steps, 'step')}, and the first "
            f"{WARMUP_STEPS} are not profiled"
        )
    if "logging_steps" not in settings.user_options and steps > _MOST_LOGGED * values.logging_steps:
        settings = replace(
            settings, training={**settings.training, "logging_steps": 1 / _MOST_LOGGED}
        )
    for remark in remarks(recipe, values, steps):
        recipe.report.warning(remark)
    vars(recipe).pop("source", None)  # or its rows, and their hashes, stay in memory
    return Prepared(settings, resumed, configuration, steps, is_done=is_done)


def _refuse_files_inside(recipe: Recipe, directory: Path) -> None:
    """Refuse a model, and files of corrections, that would be moved aside with an earlier run."""
    model = getattr(recipe, "model", None)
    files = {**correction_files(recipe), "model": [model] if model else []}
    for flag, names in files.items():
        for name in names:
            path = Path(name).expanduser()
            if path.exists() and path.resolve().is_relative_to(directory.resolve()):
                recipe.report.error(
                    f"--{flag} {name}: is in --output_dir {directory}, which is moved aside; use "
                    "another --output_dir, or a copy elsewhere"
                )


def _note_trained_head(recipe: TextRecipe | ImageRecipe) -> None:
    """Note where a head that was trained before is replaced, or its outputs are reordered."""

    if recipe.model_config is None:
        return
    trained, labels = outputs_of_head(recipe.model_config), recipe.labels or ["LABEL_0"]
    order = match_outputs(trained, labels)
    if trained and order is None:
        recipe.note(
            f"the head of {recipe.model} is replaced by a new one: it was trained for "
            f"{counted(len(trained), 'output')} ({list_names(trained)}), and these labels are "
            f"{list_names(labels)}"
        )
    elif order is not None and order != sorted(order):
        recipe.note(f"the head of {recipe.model} is continued, its outputs matched by name")
