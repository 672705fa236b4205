"""Everything that can be refused before a model is loaded: options, data, directory, machines."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.settings import Settings
from finetune.errors import UserError, counted, suggestion
from finetune.pipeline import changes, resumption
from finetune.pipeline.events import Noted, Progress, ignore, telling
from finetune.pipeline.resumption import Resumption
from finetune.recipe import Recipe, TextRecipe, metric_modules
from finetune.recipe.rows import correction_files
from finetune.runtime import distributed, hub, lock

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues

#: Log entries of the loss that a run has, unless ``--logging_steps`` says how many.
MOST_LOGGED = 500
#: Seconds of ``--ddp_timeout`` where the training arguments cannot be read.
_DDP_TIMEOUT = 1800
#: Schedules of the learning rate that do not read ``warmup_steps``.
_NO_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")
#: Flags that may differ from one machine to the next.
_OWN_TO_EACH = (
    *("output_dir", "resume_from_checkpoint", "resume", "num_threads"),
    "preprocessing_num_workers",
)
#: Optimizer steps below which a pretrained encoder was seen to be undertrained.
_FEWEST_STEPS = 50
#: Outputs of a head that a note names.
_SHOWN_OUTPUTS = 5


@dataclass(frozen=True)
class Prepared:
    """Settings that can be trained: checked, their data loaded and tokenized.

    Attributes:
        settings: The settings.
        resumption: What to go on from; None for a new run.
        configuration: What a training that goes on from this one has to share.
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
        """The checkpoint to go on from, if any."""
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


def prepare(
    chosen: Settings,
    progress: Progress = ignore,
    *,
    rehearsal: bool = False,
) -> Prepared:
    """Refuse everything that can be refused, and tokenize, before any model is loaded.

    Args:
        chosen: The settings.
        progress: Is told how far reading and tokenizing are.
        rehearsal: Leave the output directory to another process, which trains.

    Raises:
        UserError: All errors in the report: options, data, directory and Hub.
    """
    try:
        return _prepare(chosen, progress, rehearsal)
    except BaseException:
        lock.release(chosen.output_dir)
        raise


def _prepare(chosen: Settings, progress: Progress, rehearsal: bool) -> Prepared:
    from finetune.pipeline import provenance
    from finetune.training.directory import occupy, refuse_foreign
    from finetune.training.pickles import refuse_code
    from finetune.training.speed import WARMUP_STEPS

    recipe, report = chosen.recipe, chosen.report
    values: ArgumentValues | None = None
    found: Resumption | None = None
    done = False
    with report.collect():
        values = chosen.values
    touch = not (rehearsal or chosen.dry_run) and leads(values)
    with report.collect():
        if leads(values):  # who has locked it for the others
            refuse_foreign(chosen.output_dir)
        if values is not None and (request := resumption.requested(values, chosen.output_dir)):
            if touch and chosen.output_dir.is_dir():
                occupy(chosen.output_dir)  # or a living run might be writing what is verified
            found = resumption.find(
                request, chosen.output_dir, verifies=leads(values), renames=touch
            )
            if found is not None and found.path is not None and leads(values):
                refuse_code(found.path)
    if values is not None:
        _refuse_unknown_metric(values, recipe)
    _refuse_corrections_inside(recipe, chosen.output_dir)
    with telling(progress) as tell:
        _look_at_sources(recipe, values)
        report.raise_errors()
        chosen = replace(chosen)  # the task, which the data decides, has defaults too
        values = chosen.values
        _refuse_unknown_metric(values, recipe)
        report.raise_errors()
        configuration = changes.configuration(chosen, values)
        if found is not None:
            for sentence in found.notes:
                tell(Noted(sentence))
            changes.refuse_changes(found, configuration, values.allow_changed)
            done = changes.nothing_left(found, configuration, values.early_stopping_patience)
            if done and not values.save_on_each_node:  # another machine may have to go on
                return Prepared(chosen, found, configuration, found.step, is_done=True)
        rows = recipe.prepared["train"]
    steps = provenance.steps(values, rows)
    if values.profile and found is None and steps < values.profile + WARMUP_STEPS:
        raise UserError(
            f"--profile {values.profile}: the run has {counted(steps, 'step')}, and the first "
            f"{WARMUP_STEPS} are not profiled"
        )
    if "logging_steps" not in chosen.given and steps > MOST_LOGGED * values.logging_steps:
        chosen = replace(chosen, training={**chosen.training, "logging_steps": 1 / MOST_LOGGED})
    for remark in remarks(recipe, values, steps):
        if remark:
            report.warning(remark)
    vars(recipe).pop("source", None)  # or its rows, and their hashes, stay in memory
    return Prepared(chosen, found, configuration, steps, is_done=done)


def look(chosen: Settings) -> ArgumentValues | None:
    """Load the data and look at it, tokenizing and writing nothing.

    Args:
        chosen: The settings; their report takes what training would refuse.

    Returns:
        The training arguments; None if they contradict each other.
    """
    values: ArgumentValues | None = None
    report = chosen.report
    with report.collect():
        values = chosen.values
        _refuse_unknown_metric(values, chosen.recipe)
    _look_at_sources(chosen.recipe, values)
    if report.has_errors or "splits" not in vars(chosen.recipe):
        return values
    with report.collect():
        chosen.recipe.kind.refuse_metrics(chosen.recipe.known_scoring)
    with report.collect():
        values = replace(chosen).values  # the task, which the data decides, has defaults too
        _refuse_unknown_metric(values, chosen.recipe)
    return values


def steps_of(values: ArgumentValues, recipe: Recipe) -> int | None:
    """Return the optimizer steps of a training; None of one over windows of texts."""
    from finetune.pipeline import provenance

    if isinstance(recipe, TextRecipe) and recipe.long_texts == "windows":
        return None
    if values.max_tokens_per_batch or values.train_sampling_strategy == "group_by_length":
        return None  # which depends on the lengths of all rows
    return provenance.steps(values, recipe.splits["train"])


def remarks(recipe: Recipe, values: ArgumentValues, steps: int) -> list[str]:
    """Return what the user should know of a training of so many optimizer steps.

    Args:
        recipe: With its splits.
        values: The training arguments.
        steps: Optimizer steps of the training.
    """
    told = (
        too_few_steps(recipe, values, steps),
        _endless_warmup(values, steps),
        _repeated_rows(recipe, values),
        *recipe.kind.remarks(recipe.splits),
    )
    return [each for each in told if each]


def leads(values: ArgumentValues | None) -> bool:
    """Return whether this process writes: rank 0, or one of each machine that shares no disk."""
    me = distributed.ranks()
    return (me.local_rank if values is not None and values.save_on_each_node else me.rank) == 0


def _refuse_corrections_inside(recipe: Recipe, directory: Path) -> None:
    """Refuse files of corrections that will be moved aside with the run that suspected the rows."""
    for flag, names in correction_files(recipe).items():
        for name in names:
            path = Path(name).expanduser().resolve()
            if path.is_relative_to(directory.resolve()):
                recipe.report.error(
                    f"--{flag} {name}: is in the directory of the run, which is moved aside; copy "
                    "it to where it stays, and name the copy"
                )


def _look_at_sources(recipe: Recipe, values: ArgumentValues | None) -> None:
    """Collect what is wrong with model and data; nothing is downloaded for a run with mistakes."""
    from finetune.data import targets
    from finetune.pipeline import lengths
    from finetune.training import sampler

    report = recipe.report
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
            is_cut = not isinstance(recipe, TextRecipe) or recipe.long_texts == "cut"
            if is_cut:  # or a text is several rows
                sampler.require_a_step(values, len(rows))
            if values.label_smoothing_factor and not recipe.kind.smooths_labels:
                raise UserError(
                    f"--label_smoothing_factor: a task of {recipe.kind.name} has no classes of "
                    "which a row has one"
                )
            if values.class_sampling == "balanced":
                sampler.require_classes(recipe.kind.targets(targets.values(rows)))
        if isinstance(recipe, TextRecipe):
            lengths.check_tokens(recipe)
        if recipe.weights is not None and values is not None:
            sampler.refuse_weights(values)
        if told := _trained_head(recipe):
            recipe.note(told)


def _trained_head(recipe: Recipe) -> str | None:
    """Return what becomes of the head that a model was trained with, if it had other outputs."""
    from finetune.data.label_columns import list_names
    from finetune.models.families import outputs_of_head

    if not isinstance(recipe, TextRecipe) or recipe.model_config is None:
        return None
    before, now = outputs_of_head(recipe.model_config), recipe.labels or ["LABEL_0"]
    unnamed = [f"LABEL_{number}" for number in range(len(before))]
    if not before:
        return None
    if len(before) != len(now):
        return (
            f"the head of {recipe.model} has {counted(len(before), 'output')} "
            f"({list_names(before)}), and {len(now)} {'is' if len(now) == 1 else 'are'} needed: it "
            "is replaced by a new one"
        )
    if before in (now, unnamed) or now == unnamed:
        return None
    others = [
        f"'{old}' becomes '{new}'" for old, new in zip(before, now, strict=True) if old != new
    ]
    return (
        f"the head of {recipe.model} goes on from what it was trained for, output by output: "
        f"{', '.join(others[:_SHOWN_OUTPUTS])}{', ...' * (len(others) > _SHOWN_OUTPUTS)}"
    )


def too_few_steps(recipe: Recipe, values: ArgumentValues, steps: int) -> str | None:
    """Return what to type if a pretrained encoder is likely undertrained by so few steps.

    Where the limit comes from: docs/decisions/too-few-steps.md.

    Args:
        recipe: Other recipes than those of text are never told.
        values: The training arguments.
        steps: Optimizer steps of the training.
    """
    if steps >= _FEWEST_STEPS or not isinstance(recipe, TextRecipe):
        return None
    if values.max_steps > 0:
        instead = f"--max_steps {_FEWEST_STEPS} or more"
    else:
        epochs = math.ceil(_FEWEST_STEPS * values.num_train_epochs / steps)
        instead = f"--num_train_epochs {epochs}"
    return (
        f"{counted(steps, 'optimizer step')}: with fewer than {_FEWEST_STEPS} a pretrained model "
        f"is often undertrained; try {instead}"
    )


def _endless_warmup(values: ArgumentValues, steps: int) -> str | None:
    """Return a sentence if the learning rate only rises; below 1 it is a share of the steps."""
    if values.warmup_steps < max(1, steps) or values.lr_scheduler_type in _NO_WARMUP:
        return None
    return (
        f"--warmup_steps {values.warmup_steps:g}: the run has {counted(steps, 'step')}, so the "
        "learning rate never reaches its maximum; try --warmup_steps 0.1, a share of the steps"
    )


def _repeated_rows(recipe: Recipe, values: ArgumentValues) -> str | None:
    """Return how often rows come in an epoch whose classes are balanced."""
    from finetune.data.targets import labels_of

    if values.class_sampling != "balanced":
        return None
    rows = Counter(labels_of(recipe.splits["train"])).most_common()
    alike = sum(count for _, count in rows) / len(rows)
    often, rare = (
        f"{alike / count:.2g} times a row of '{recipe.labels[label]}'"
        for label, count in (rows[0], rows[-1])
    )
    return (
        f"class sampling: each of {len(rows)} classes is {1 / len(rows):.0%} of an epoch, which "
        f"has {often}, {rare}"
    )


def _refuse_unknown_metric(values: Any, recipe: Recipe) -> None:
    """Refuse a metric that is not computed, which the library does after the first epoch.

    Before the data is loaded, which may decide the task, the metrics of the task are not known.
    """
    name = (values.metric_for_best_model or "loss").removeprefix("eval_")
    is_loaded = "splits" in vars(recipe)
    if not (recipe.own_metrics or recipe.metrics or is_loaded):
        return
    if not is_loaded and metric_modules.paths_in(recipe.known_scoring):
        return  # what these compute is not known before the task is
    names = recipe.metric_names if is_loaded else recipe.own_metrics or recipe.known_scoring
    known = ["loss", *names]
    if values.load_best_model_at_end and name not in known:
        recipe.report.error(
            f"--metric_for_best_model: the recipe computes no '{name}'{suggestion(name, known)} "
            f"(it computes: {', '.join(known)})"
        )


def refuse_different_machines(prepared: Prepared) -> None:
    """Refuse what torchrun does not compare: flags, data and disk of each machine."""
    from finetune.pipeline.provenance import versions
    from finetune.runtime.agreement import agree, refuse_half_directories

    if distributed.machines() == 1:
        return
    chosen, checkpoint = prepared.settings, prepared.checkpoint
    own = {each.name: getattr(chosen.recipe, each.name) for each in fields(chosen.recipe)}
    given = {**own, **chosen.training}
    for own_to_each in _OWN_TO_EACH:
        given.pop(own_to_each, None)
    for place in ("dataset", "model"):  # a path may be another on each machine
        if Path(str(given.get(place) or "-")).expanduser().exists():
            given[place] = "a local path"
    if chosen.recipe.metrics:
        given["metrics"] = metric_modules.with_file_names(chosen.recipe.metrics)
    agree(
        {
            "the recipe": type(chosen.recipe).__name__,
            **{f"--{name}": value for name, value in given.items()},
            "the metric files (sha256)": metric_modules.hashes(chosen.recipe.known_scoring),
            "the data (fingerprint)": prepared.configuration["data"],
            "the checkpoint to resume": Path(checkpoint).name if checkpoint else None,
            "versions": versions(),
        }
    )
    if not chosen.dry_run:
        refuse_half_directories(chosen.output_dir, chosen.values.save_on_each_node)
