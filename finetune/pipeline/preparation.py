"""Everything that can be refused before a model is loaded: options, data, directory, machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.settings import Settings
from finetune.errors import Mistakes, UserError, counted, suggestion
from finetune.pipeline.events import Progress, ignore, telling
from finetune.recipe import Recipe
from finetune.runtime import distributed, hub

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues

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
    from finetune.training.pickles import refuse_code
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
            if checkpoint is not None:
                refuse_code(checkpoint)
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


def refuse_different_machines(prepared: Prepared) -> None:
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
