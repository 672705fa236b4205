"""``python -m finetune RECIPE``: the whole path, from the settings to a run directory.

It runs on every rank; where only rank 0 speaks and writes, it says so.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune import catalog, hub, job
from finetune.commands import imports
from finetune.errors import UserError, suggestion
from finetune.flags import Flags
from finetune.recipe import Recipe
from finetune.settings import Settings, from_command_line, peek

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.run import Run
    from finetune.training.arguments import FinetuneArguments


def main(words: Sequence[str]) -> int:
    """``finetune train RECIPE FLAGS``; the word ``train`` may be left out."""
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: python -m finetune train RECIPE [flags]\n\n"
            "The flags: python -m finetune RECIPE --help"
        )
        return 0
    if not words or words[0].startswith("-"):
        named = [word for word in words if word in catalog.names()]
        raise UserError(
            "the name of a recipe comes first: python -m finetune "
            f"{named[0] if named else 'RECIPE'} [flags] (there are: {', '.join(catalog.names())})"
        )
    recipe, *flags = words
    cls = catalog.find(recipe)
    if {"-h", "--help"} & set(flags):
        imports.at_once("finetune.training.arguments")
        print(Flags(cls).help(), end="")
        return 0

    wanted = peek(cls, flags)
    missing = [] if wanted is None else hub.missing(wanted)
    if job.ranks().rank == 0 and (unreachable := hub.unreachable(missing)):
        raise unreachable  # before the flags are read: for that the libraries are imported
    if not missing:  # all at once: rank 0 waits for the others before it begins
        imports.at_once("datasets", "finetune.training.trainer")

    def settled() -> Settings:
        settings = from_command_line(recipe, flags)
        get_ready(settings)
        return settings

    train(job.rank_zero_first(settled))
    return 0


def get_ready(settings: Settings) -> None:
    """Everything that can be refused, and the tokenization, before any model is loaded.

    Raises:
        UserError: what is wrong with the options, the data or the directory.
    """
    from finetune import provenance
    from finetune.commands import console
    from finetune.directory import refuse_foreign
    from finetune.training.checkpoint import to_resume
    from finetune.training.profile import BEFORE
    from finetune.training.sampler import refuse_too_few

    console.quiet()
    draft, recipe = settings.draft(), settings.recipe
    checkpoint = to_resume(draft.resume_from_checkpoint, draft.output_dir)
    refuse_foreign(settings.output_dir)
    _refuse_unknown_metric(draft, recipe)
    refuse_too_few(draft, len(recipe.splits["train"]))
    if draft.label_smoothing_factor and not recipe.labels:
        raise UserError("--label_smoothing_factor: there are no classes, the labels are numbers")
    steps = provenance.steps(draft, recipe.prepared["train"])
    if draft.profile and checkpoint is None and steps < draft.profile + BEFORE:
        raise UserError(
            f"--profile {draft.profile}: the run has {steps} steps, and the first {BEFORE} are not "
            "profiled"
        )


def _refuse_unknown_metric(arguments: FinetuneArguments, recipe: Recipe) -> None:
    """The library would find out only after the first epoch.

    Only of a recipe that computes its metrics the common way can it be told before.
    """
    name = (arguments.metric_for_best_model or "loss").removeprefix("eval_")
    known = ["loss", *recipe.known_scoring]
    if arguments.load_best_model_at_end and recipe.known_scoring and name not in known:
        raise UserError(
            f"--metric_for_best_model: the recipe computes no '{name}'{suggestion(name, known)} "
            f"(it computes: {', '.join(known)})"
        )


def train(settings: Settings) -> Run | None:
    """Train, evaluate once on the test set, and write the run. Every rank calls it with the same
    settings.

    Args:
        settings: Checked by :func:`get_ready` on every rank, rank 0 first.

    Returns:
        The run, or None after ``dry_run``.
    """
    from finetune import provenance
    from finetune.commands import console, screen
    from finetune.directory import make_way
    from finetune.run import Run
    from finetune.training.checkpoint import to_resume
    from finetune.training.trainer import build_trainer

    recipe, draft, me = settings.recipe, settings.draft(), job.ranks()
    # on each machine one, where they share no directory; the others leave everything to it
    leads = (me.local_rank if draft.save_on_each_node else me.rank) == 0
    job.join(draft.ddp_backend, draft.ddp_timeout, draft.use_cpu)
    run = None
    try:
        checkpoint = to_resume(draft.resume_from_checkpoint, draft.output_dir)
        _refuse_different_machines(settings, draft, checkpoint)
        arguments = settings.arguments()
        if settings.dry_run:
            screen.start(settings, arguments, trainer=None)
            screen.batch(recipe.data_collator(), recipe.prepared["train"], arguments)
            job.leave()
            return None
        trainer = build_trainer(recipe.parts, arguments, recipe.adapt)
        job.gather(None)  # every rank has read its model, which may lie in the directory
        if leads:
            screen.start(settings, arguments, trainer)
            facts = provenance.facts(settings, arguments)
            # only now: until here a mistake could still be found, or the model be read from there
            if moved := make_way(settings.output_dir, checkpoint):
                console.say(f"{moved}\n")
            run = Run(settings.output_dir)
            run.update(**facts, status="running")
        started = time.perf_counter()
        trained = trainer.train(resume_from_checkpoint=checkpoint)
        seconds = time.perf_counter() - started
        trainer.save_model()
        validated = trainer.predict(recipe.prepared["validation"])
        tested = trainer.predict(recipe.prepared["test"])
        state, speed = trainer.state, trainer.speed()
        profiled = trainer.profile is not None and trainer.profile.written
        del trainer
        gc.collect()
        job.leave()  # the other ranks are done
        if run is not None:
            before = provenance.steps_before(checkpoint)
            outcome = provenance.outcome(trained, state, seconds, before, speed)
            _write_results(run, recipe, validated, tested, outcome, baseline=arguments.baseline)
            screen.end(run)
            if profiled:
                screen.profile(run)
            elif arguments.profile:
                console.say(
                    f"--profile {arguments.profile}: too few steps were left, none was traced"
                )
    except KeyboardInterrupt:
        if run is not None:
            run.update(status="interrupted")
            console.say(f"\ninterrupted; {how_to_go_on(settings)}")
        raise
    except BaseException:  # the process group is left as it is: leaving it waits for the others
        if run is not None:
            run.update(status="failed")
        raise
    if run is not None:  # finished whatever becomes of these: `report` makes them again
        from finetune.results import card, page

        card.write(run)
        page.write(run)
    return Run(settings.output_dir)


def _write_results(
    run: Run,
    recipe: Recipe,
    validated: PredictionOutput,
    tested: PredictionOutput,
    outcome: dict[str, Any],
    *,
    baseline: bool,
) -> None:
    """The predictions and what they are worth; what is known is written as soon as it is."""
    from finetune import provenance
    from finetune.commands.assess import assess
    from finetune.results import predictions

    rows, tokens = recipe.splits["test"], recipe.whole_lengths("test")
    predictions.write(run.path, rows, tested.predictions, tokens)
    metrics = {
        "validation": provenance.validation_metrics(outcome["history"], outcome["best_step"]),
        "test": provenance.scores_only(tested.metrics or {}, "test_"),
    }
    run.write_metrics(metrics)
    run.update(**outcome)
    fingerprint = run.manifest["data"]["fingerprint"]
    judged = assess(recipe, validated, tested, fingerprint=fingerprint, baseline=baseline)
    run.write_metrics({**metrics, **judged.metrics})
    run.update(
        status="finished",
        temperature=judged.temperature,
        baseline_seconds=judged.baseline_seconds,
    )


def _refuse_different_machines(
    settings: Settings, draft: FinetuneArguments, checkpoint: str | None
) -> None:
    """What torchrun does not compare: each machine has its own command line, data and disk."""
    from finetune.agreement import agree, refuse_half_directories
    from finetune.data.splits import fingerprint
    from finetune.provenance import versions

    if job.machines() == 1:
        return
    own = {each.name: getattr(settings.recipe, each.name) for each in fields(settings.recipe)}
    given = {**own, **settings.training}
    for own_to_each in ("output_dir", "resume_from_checkpoint", "num_threads"):
        given.pop(own_to_each, None)
    for place in ("dataset", "model"):  # a path may be another on each machine
        if Path(str(given.get(place) or "-")).expanduser().exists():
            given[place] = "a local path"
    agree(
        {
            "the recipe": type(settings.recipe).__name__,
            **{f"--{name}": value for name, value in given.items()},
            "the data (fingerprint)": fingerprint(
                settings.recipe.splits, settings.recipe.input_column
            ),
            "the checkpoint to resume": Path(checkpoint).name if checkpoint else None,
            "versions": versions(),
        }
    )
    if not settings.dry_run:
        refuse_half_directories(settings.output_dir, draft.save_on_each_node)


def how_to_go_on(settings: Settings) -> str:
    """What to do after an interruption."""
    if not any(settings.output_dir.glob("checkpoint-*")):
        return "no checkpoint was saved yet: start again"
    return f"to go on: {settings.resuming}"
