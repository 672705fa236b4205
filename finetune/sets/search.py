"""Search for the best options of a recipe with Optuna. A trial is a run that is never tested."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from finetune.config.settings import Settings
from finetune.errors import Diverged, Pruned, UserError
from finetune.pipeline.events import Noted, Progress, ignore
from finetune.recipe import Recipe
from finetune.recipe.defaults import unset_names
from finetune.runs.directory import unlock_directory
from finetune.runtime import distributed
from finetune.sets import require_optuna
from finetune.sets.report import write_report
from finetune.sets.run_set import RunSet, open_set, prepare_set, run_one
from finetune.training.arguments import ArgumentValues

if TYPE_CHECKING:
    from finetune.sets.trials import Trial, Trials


def search(
    recipe: str | type[Recipe] | Recipe,
    *,
    space: str | Mapping[str, Any] | None = None,
    trials: int = 20,
    pruner: str = "median",
    progress: Progress = ignore,
    **options: Any,
) -> RunSet:
    """Search for the best options of a recipe, judged by the validation rows.

    The best trial alone is evaluated on the test rows, once. The same call continues the search; in
    several processes, or on several machines with a common file system, the calls share it.

    Args:
        recipe: The name of a recipe, the path of a recipe file, a recipe class, or an instance.
        space: The options to vary: ``"learning_rate=1e-5..1e-3:log,model=a|b"``, or a mapping from
            options to such ranges or lists; None for the default of the task.
        trials: The number of trials in all.
        pruner: When a trial is stopped early: ``median``, ``hyperband`` or ``none``.
        progress: Called with each event, e.g. ``print``.
        **options: As in :func:`finetune.train`. ``output_dir`` is the directory of the search; the
            default is ``runs/RECIPE-search``.

    Raises:
        UserError: If the options or the data have errors, or if the directory has another search.
    """
    run_set = run_search(Settings.from_keywords(recipe, options), progress, space, trials, pruner)
    if distributed.is_main_process():
        write_report(run_set)
    return run_set


def run_search(
    base: Settings,
    progress: Progress,
    space: str | Mapping[str, Any] | None = None,
    trials: int = 20,
    pruner: str = "median",
) -> RunSet:
    """Search as :func:`search` does; every process calls this.

    Args:
        base: The settings that the trials share.
        progress: Called with each event.
        space: The options to vary.
        trials: The number of trials in all.
        pruner: When a trial is stopped early.
    """
    require_optuna()
    from finetune.sets.space import (
        check_values,
        default_space,
        list_values,
        max_epochs,
        nearest_values,
        parse_space,
    )
    from finetune.sets.trials import PRUNERS, Trials

    if trials < 1:
        raise UserError(f"--trials {trials}: expected 1 or more")
    if pruner not in PRUNERS:
        raise UserError(f"--pruner {pruner}: expected {', '.join(PRUNERS)}")
    is_main = distributed.is_main_process()
    note = progress if is_main else ignore
    base.report.raise_errors()
    if "load_best_model_at_end" not in base.user_options:  # even where rows are few
        base = base.with_options({"load_best_model_at_end": True})
    recipe = type(base.recipe)
    distributions = {}
    if space is not None:
        distributions = parse_space(space, recipe)
    first = {name: list_values(part)[0] for name, part in distributions.items()}
    _require_checkpoints(base.with_options(first).values)
    check_values(distributions, base)
    for name in distributions.keys() & base.user_options.keys():
        note(Noted(f"--space decides {name}: the value of --{name} is not used"))
    typed = {"space": space, "trials": trials, "pruner": pruner}
    prepared = prepare_set("search", base, first, typed, progress)
    values = prepared.settings.values
    defaults: dict[str, float] = {}
    if not distributions:
        default = default_space(
            prepared.settings.recipe.resolved_task.name, values, base.user_options
        )
        note(Noted(f"--space {default}"))
        distributions = parse_space(default, recipe)
        defaults = nearest_values(distributions, values)
        if "global_batch_size" in unset_names(prepared.settings.recipe, prepared.settings.training):
            # where rows are few, it depends on whether the space has the other values
            base = base.with_options({"global_batch_size": values.global_batch_size})
    run_set = open_set("search", prepared, distributions)
    stopper = PRUNERS[pruner](max_epochs(distributions, values))
    study = Trials(run_set, distributions, defaults, values.seed, stopper)
    while (trial := distributed.on_main_process(lambda: study.ask(trials))) is not None:
        try:
            _run_trial(trial, study, base, progress)
        finally:
            unlock_directory(trial.path)
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    winner = distributed.on_main_process(study.choose_winner)
    if winner is None:
        note(Noted("the trials that are left run in other processes: the last one ends the search"))
        distributed.leave_process_group()
        return run_set
    count = distributed.on_main_process(study.count)
    if count < trials:
        note(
            Noted(
                f"all {count} combinations of the values in --space have been trained: the search "
                f"ends before trial {trials}"
            )
        )
    note(Noted(f"{winner.path.name} is the best of {count}: evaluating it on the test rows"))
    run_one(base.with_options(winner.changes), progress)
    if is_main and (gap_note := study.finish(winner, base.user_options)):
        note(Noted(gap_note))
    return run_set


class _Pruning(TrainerCallback):
    """Stops a trial on every process if its evaluations are worse than those of others."""

    def __init__(self, study: Trials) -> None:
        self.study = study

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask Optuna in rank 0, unless the training has ended."""
        if state.global_step >= state.max_steps:
            return
        is_worse = False
        if distributed.is_main_process():
            is_worse = self.study.should_prune(state.log_history, args.eval_strategy == "epoch")
        if distributed.gather(is_worse)[0]:
            raise Pruned(f"pruned after epoch {state.epoch:.3g}")


def _run_trial(trial: Trial, study: Trials, base: Settings, progress: Progress) -> None:
    """Train a trial; every process calls this.

    Raises:
        Exception: With several processes, one that not all of them have: they would wait for each
            other. The trial is then continued by the next start, twice.
    """
    caught: Any = Exception
    if distributed.ranks().world_size > 1:
        caught = (Pruned, Diverged, UserError)
    failure: Exception | None = None
    try:
        run_one(base.with_options(trial.changes), progress, _Pruning(study))
    except caught as error:
        failure = error.with_traceback(None)  # which holds the model
    gc.collect()
    if distributed.is_main_process():
        progress(Noted(study.tell(trial, failure)))


def _require_checkpoints(values: ArgumentValues) -> None:
    """Require evaluations and checkpoints: the best trial is chosen by the ones, and its test rows
    are predicted from the others.
    """
    for name in ("eval_strategy", "save_strategy"):
        if getattr(values, name) == "no":
            raise UserError(f"--{name} no: a search needs evaluations and checkpoints")
    if values.save_only_model:
        raise UserError("--save_only_model: a search resumes its best trial to test it")
    if not values.load_best_model_at_end:
        raise UserError("--load_best_model_at_end false: a trial is judged by its best evaluation")
