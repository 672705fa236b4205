"""Check options, data, directory and machines, and tokenize, before a model is loaded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction

from finetune.config.settings import Settings
from finetune.data.comma_list import split_values
from finetune.data.labels import list_names
from finetune.errors import UserError
from finetune.models.families import outputs_of_head
from finetune.models.head import match_outputs
from finetune.pipeline.description import describe_configuration
from finetune.recipe import Recipe, TextRecipe, defaults, scoring
from finetune.recipe.catalog import display_name, origin
from finetune.recipe.options import ModelOptions, rule_options
from finetune.reporting import tracking
from finetune.rules.check import check_command, check_task
from finetune.rules.schedule import describe_weak_training, ignores_warmup
from finetune.runs import resumption
from finetune.runs.checkpoints import refuse_code
from finetune.runs.directory import lock_directory, refuse_foreign_directory
from finetune.runs.provenance import REPORTED_CHANGES
from finetune.runs.resumption import Resumption
from finetune.runtime import activity, distributed, hub, versions
from finetune.training import steps as training_steps
from finetune.training.arguments import ArgumentValues
from finetune.training.options import merge_options

#: Flags that may differ between machines.
_MACHINE_FLAGS = {"output_dir", "resume_from_checkpoint", "resume", "num_threads"}


@dataclass(frozen=True)
class Prepared:
    """Checked settings, with loaded and tokenized data."""

    settings: Settings
    resumption: Resumption  # the checkpoint to continue from, if any
    configuration: dict[str, Any]  # what decides the result, see `runs/provenance.py`
    differences: str | None  # a sentence about changes since the checkpoint
    steps: int  # optimizer steps in total; 0 before the first steps are timed, for --max_minutes
    is_done: bool = False  # whether the run is finished on every machine: nothing is trained


def prepare_job(settings: Settings) -> Prepared:
    """Join the process group, run :func:`prepare` on rank 0, and return its result on every rank.

    Raises:
        UserError: On every rank, with all errors in the report, or if the machines differ.
    """
    if (values := _check_values(settings)) is not None:
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    else:  # the values have errors, which `prepare` raises
        distributed.join_process_group("gloo", 1800, use_cpu=True)
    prepared = distributed.main_process_first(lambda: prepare(settings))
    if prepared.settings.values.save_on_each_node:  # each machine has its own checkpoints
        common = prepared.resumption
        if not (is_done := all(distributed.gather(prepared.is_done))):
            common = resumption.agree_on_checkpoint(common)
        prepared = replace(prepared, resumption=common, is_done=is_done)
    if not prepared.is_done and distributed.machines() > 1:
        _refuse_different_machines(prepared)
    return prepared


def prepare(settings: Settings) -> Prepared:
    """Check everything and tokenize, before any model is loaded.

    A dry run does not lock or change the output directory.

    Raises:
        UserError: With all errors in the report: about options, data, directory and Hub.
    """
    # the caller keeps its recipe until the end of the run, which must not hold the rows
    settings = replace(settings, recipe=settings.recipe.with_values())
    values = _check_values(settings)
    resumed = _check_directory(settings, values)
    if values is not None and distributed.is_main_process():
        tracking.require_mlflow(values.report_to)
    settings = load_and_check(settings)
    settings.report.raise_errors()
    for note in resumed.notes:
        activity.say(note)
    settings = _with_stored_schedule(settings, resumed)
    timed = settings  # with the epochs of a resumed run with --max_minutes
    is_timed = settings.values.max_minutes is not None and bool(resumed.configuration)
    if is_timed:
        timed = with_epochs(settings, resumed.configuration["num_train_epochs"])
    recipe = settings.recipe
    values = timed.values
    schedule = defaults.describe(recipe, vars(values), timed.training)
    for sentence in (*schedule, *versions.describe_untested()):
        recipe.note(sentence)
    configuration = describe_configuration(timed)
    differences = resumed.refuse_changes(configuration, values.allow_changed)
    is_done = resumed.finished and not resumed.extended_by(configuration)
    if is_timed and values.max_minutes != resumed.configuration["max_minutes"]:  # allowed
        is_timed = is_done = False
    else:
        settings = timed
    if not is_done:
        resumed.require_state()
    if is_done and values.refit:
        _refuse_changed_refit(resumed, configuration)
    if differences and not settings.dry_run:
        ending = ""
        if is_done:
            ending = "; the run is finished and stays as it is"
        activity.say(differences + ending)
    steps = resumed.step
    if not is_done or values.save_on_each_node:  # with it another machine may have to train
        rows, steps = recipe.training_rows, 0
        if values.max_minutes is None or is_timed:
            steps = count_steps(settings, rows)
    # without the rows of the source and their hashes
    settings = replace(settings, recipe=recipe.with_values(source=None))
    return Prepared(settings, resumed, configuration, differences, steps, is_done)


def _refuse_changed_refit(resumed: Resumption, configuration: Mapping[str, Any]) -> None:
    """Raise a ``UserError`` if the refit of a finished run would have other options."""
    reported = {*REPORTED_CHANGES, "final_epochs", "data"}  # other data is refused later
    names = sorted(resumed.changes(configuration).keys() - reported)
    if names:
        raise UserError(
            f"--refit: the run is finished, and its refit has the same {', '.join(names)}: start "
            "another run, with another --output_dir"
        )


def load_and_check(settings: Settings) -> Settings:
    """Load the data, and add findings about data and options to the report.

    Returns:
        The settings with the rows, unless these cannot be read.
    """
    recipe = settings.recipe
    values = _check_values(settings)
    if values is not None:
        with settings.report.collect():
            check_command(rule_options(recipe).beside(values, settings.user_options))
    settings = replace(settings, is_loaded=_check_sources(settings, values))
    if settings.report.sentences("error") or not settings.is_loaded:
        return settings
    values = _check_values(settings)  # with the defaults of the task
    if values is not None and not recipe.metric_arguments:
        with settings.report.collect():
            _try_metrics(recipe, str(values.metric_for_best_model or "loss"))
    return settings


def _try_metrics(recipe: Recipe, metric_for_best_model: str) -> None:
    """Call a recipe's own ``compute_metrics`` on random outputs, without inputs and losses.

    A training passes those of ``--include_for_metrics``; reports and ``evaluate`` have none.

    Raises:
        UserError: If it fails, or if it does not return numbers with ``metric_for_best_model``.
    """
    targets = recipe.targets("validation")
    shape = (len(targets), recipe.resolved_task.width)
    outputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    step = f"compute_metrics() of {display_name(type(recipe))}"
    prediction = EvalPrediction(outputs, targets)
    file = Path(origin(type(recipe)))
    scores = scoring.call(lambda: recipe.compute_metrics(prediction), file, step)
    if (name := metric_for_best_model.removeprefix("eval_")) not in {*scores, "loss"}:
        names = ", ".join(scores)
        raise UserError(f"{step} returned {names}: expected {name}, the --metric_for_best_model")


def count_steps(settings: Settings, rows: Dataset) -> int:
    """Return the number of optimizer steps on training ``rows``; report a learning rate or a number
    of steps that teaches little.
    """
    recipe = settings.recipe
    values = settings.values
    epoch_steps = len(training_steps.GlobalBatchSampler(values, rows).sizes)
    steps: int = values.max_steps
    if steps <= 0:
        steps = math.ceil(values.num_train_epochs * epoch_steps)
    is_text = isinstance(recipe, TextRecipe)
    for sentence in describe_weak_training(values, steps, is_text, has_adapter(recipe)):
        recipe.report.warning(sentence)
    return steps


def with_epochs(settings: Settings, epochs: float) -> Settings:
    """Return the settings with another number of epochs, which ``max_steps`` does not override."""
    values = settings.values
    # defaults that may depend on whether the number of epochs is set
    changes = {"load_best_model_at_end": values.load_best_model_at_end}
    if values.global_batch_size is not None:
        changes["global_batch_size"] = values.global_batch_size
    changes |= {"num_train_epochs": epochs, "max_steps": -1}
    return replace(settings, training=merge_options(settings.training, changes))


def _with_stored_schedule(settings: Settings, resumed: Resumption) -> Settings:
    """Return new settings, with the numbers of a resumed run that are unset in this command."""
    names = defaults.unset_names(settings.recipe, settings.training)
    if settings.training.get("final_epochs") is None:
        names.append("final_epochs")
    configuration = resumed.configuration
    stored = {name: configuration[name] for name in names if name in configuration}
    if ignores_warmup(settings.values):  # if it were typed, it would be refused
        stored.pop("warmup_steps", None)
    if settings.values.max_minutes is not None:  # the minutes decide
        stored.pop("num_train_epochs", None)
    values = [f"{name} {value}" for name, value in stored.items() if value]
    if values:
        settings.recipe.note(f"{', '.join(values)}: as before, in the run that is resumed")
    return replace(settings, training=settings.training | stored)


def has_adapter(recipe: Recipe) -> bool:
    """Return whether an adapter is trained."""
    return isinstance(recipe, ModelOptions) and recipe.adapter is not None


def writes_run(values: ArgumentValues | None) -> bool:
    """Return whether this process writes: rank 0, or local rank 0 with ``--save_on_each_node``."""
    ranks = distributed.ranks()
    per_machine = values is not None and values.save_on_each_node
    return (ranks.local_rank if per_machine else ranks.rank) == 0


def _refuse_different_machines(prepared: Prepared) -> None:
    """Refuse machines that differ in flags, data, libraries or disk, which neither torchrun nor
    ``Trainer`` compares; every process calls this.
    """
    settings = prepared.settings
    facts = prepared.configuration | settings.training
    facts["the checkpoint of step"] = prepared.resumption.step
    facts["--dry_run"] = settings.dry_run
    if Path(str(facts.get("model") or "-")).expanduser().exists():
        del facts["model"]  # its path may differ between machines; its files are compared
    flags = vars(settings.recipe) | vars(settings.values)
    compared = {}
    for name, fact in facts.items():
        if name not in _MACHINE_FLAGS:
            compared[f"--{name}" if name in flags else name] = fact
    first, *facts_of_others = distributed.gather(compared)
    for rank, other in enumerate(facts_of_others, start=1):
        mistakes = []
        for name in first | other:
            if first.get(name) != other.get(name):
                mistakes.append(
                    f"the machines differ in {name}: rank 0 has {first.get(name)!r}, rank {rank} "
                    f"has {other.get(name)!r}; start all machines with the same flags, data and "
                    "libraries"
                )
        if mistakes:
            raise UserError(*mistakes)
    if not settings.dry_run:
        save_on_each_node = settings.values.save_on_each_node
        distributed.refuse_half_directories(settings.output_dir, save_on_each_node)


def _check_values(settings: Settings) -> ArgumentValues | None:
    """Return the training arguments; None if they have errors, which are added to the report."""
    values = None
    with settings.report.collect():
        values = settings.values
    return values


def _check_directory(settings: Settings, values: ArgumentValues | None) -> Resumption:
    """Check the output directory, and return the checkpoint to continue from, if any."""
    directory = settings.output_dir
    resumed = resumption.find_checkpoint(None, directory)
    is_writer = writes_run(values)
    is_locked = is_writer and not settings.dry_run
    with settings.report.collect():
        if is_writer:
            refuse_foreign_directory(directory)
        request = None
        if values is not None:
            paths = values.resume_from_checkpoint, directory
            request = resumption.requested_checkpoint(values.resume, *paths)
        if request and is_locked and directory.is_dir():
            lock_directory(directory)  # or another training could write while they are verified
        resumed = resumption.find_checkpoint(request, directory, renames=is_locked)
        if resumed.path is not None:
            refuse_code(resumed.path)
    files = settings.recipe.correction_files()
    for flag in ("model", "teacher", "unlabelled"):
        files[flag] = split_values(getattr(settings.recipe, flag, None) or "")
    for flag, names in files.items():
        for path in (Path(name).expanduser() for name in names if name):
            if path.exists() and path.resolve().is_relative_to(directory.resolve()):
                settings.report.error(
                    f"--{flag} {path}: expected a path outside of --output_dir {directory}, which "
                    "is moved aside; type another --output_dir, or copy the file elsewhere"
                )
    return resumed


def _check_sources(settings: Settings, values: ArgumentValues | None) -> bool:
    """Add errors in model and data to the report, and download nothing if there are any.

    Returns:
        Whether the rows can be read.
    """
    recipe = settings.recipe
    report = settings.report
    # an unknown option may be a misspelled --dataset or --model: then do not look for them
    has_unknown = any(finding.name == "unknown_option" for finding in report.findings)
    options = {} if has_unknown else vars(recipe)
    with report.collect():
        hub.require(options, recipe)
    has_model = not (report.sentences("error") and hub.missing({**vars(recipe), "dataset": None}))
    if has_model:
        with report.collect():
            recipe.check()
    if report.sentences("error") and hub.missing({**vars(recipe), "model": None}):
        return False
    is_loaded = False
    with report.collect():
        task = recipe.resolved_task
        is_loaded = True
        if values is not None:
            check_task(rule_options(recipe).beside(values, settings.user_options), task)
            _ = recipe.weights  # may name classes that the data does not have
        with report.collect():
            for model in recipe.teachers:
                model.report_held_out_rows(recipe)
        for name in ("unlabelled_rows", "soft_labels"):
            with report.collect():
                getattr(recipe, name)
        if not has_model:  # transformers would try to download it for half a minute
            return True
        if isinstance(recipe, TextRecipe) and (sample := recipe.token_sample) is not None:
            sample.report_unknown(recipe.model, report)
        if isinstance(recipe, ModelOptions) and recipe.model_config is not None:
            head_labels = outputs_of_head(recipe.model_config)
            labels = recipe.labels or ["LABEL_0"]
            order = match_outputs(head_labels, labels)
            if head_labels and order is None:
                recipe.note(
                    f"the head of {recipe.model} is replaced by a new one: it was trained for "
                    f"{list_names(head_labels)}, and the labels here are {list_names(labels)}"
                )
            elif order is not None and order != sorted(order):
                recipe.note(f"the head of {recipe.model} is kept, outputs matched by name")
    return is_loaded
