"""Search for the best options of a recipe with Optuna. A trial is a run that is never tested."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import optuna
import yaml
from filelock import FileLock
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from transformers import TrainerCallback

from finetune.config.settings import Settings
from finetune.errors import Pruned, RunError, UserError
from finetune.pipeline.events import Noted, Progress, ignore, on_rank_zero
from finetune.recipe import Recipe
from finetune.reporting.tables import format_number
from finetune.runs.run import Run
from finetune.runtime import distributed, files
from finetune.search import optimism, pages
from finetune.search.run_set import (
    RunSet,
    Settle,
    from_keywords,
    open_set,
    prepare_set,
    run_one,
    set_directory,
)
from finetune.search.space import check_values, default_space, parse_space
from finetune.training import checkpoint
from finetune.training.arguments import ArgumentValues

JOURNAL = "study.journal"
BEST = "best.yaml"  # the options of the best trial, for --config
#: The attribute of a trial that has the number of the killed one which it continues.
_CONTINUES = "continues"
#: Trials that are not pruned, because there is too little to compare with; and random trials.
_STARTUP = 5
#: When a trial is stopped: below the median of the others at the same epoch, or, with hyperband,
#: outside the best third of its bracket after 1, 3, 9 ... epochs (Li et al., JMLR 18, 2018).
PRUNERS: dict[str, Callable[[], BasePruner]] = {
    "median": lambda: MedianPruner(n_startup_trials=_STARTUP),
    "hyperband": HyperbandPruner,
    "none": NopPruner,
}
#: A search ends if this many trials have failed and none has succeeded.
_MOST_FAILURES = 3
Result = TypeVar("Result")


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
    run_set = run_search(from_keywords(recipe, options), progress, space, trials, pruner)
    if distributed.is_main_process():
        pages.write(run_set)
    return run_set


def run_search(
    settle: Settle,
    progress: Progress = ignore,
    space: str | Mapping[str, Any] | None = None,
    trials: int = 20,
    pruner: str = "median",
) -> RunSet:
    """Search as :func:`search` does; every process calls this."""
    if trials < 1:
        raise UserError(f"--trials {trials}: expected 1 or more")
    if pruner not in PRUNERS:
        raise UserError(f"--pruner {pruner}: expected {', '.join(PRUNERS)}")
    report = on_rank_zero(progress)
    base = settle({})
    base.report.raise_errors()
    directory = set_directory(base, "search")
    recipe = type(base.recipe)
    distributions = parse_space(space, recipe) if space is not None else {}
    first_run = settle({"output_dir": str(directory / _name(0))})
    _require_checkpoints(first_run.values)
    check_values(distributions, settle)
    prepared = prepare_set(first_run, progress)
    if not distributions:
        default = default_space(prepared.settings.recipe.kind.name, prepared.settings.values)
        report(Noted(f"--space {default}"))
        distributions = parse_space(default, recipe)
    texts = {name: distribution_to_json(row) for name, row in distributions.items()}
    run_set = open_set(directory, "search", base, prepared, distributions, texts)
    seed: int = prepared.settings.values.seed
    trials_of_set: list[_Trials] = []  # in rank 0 only
    _on_main_process(lambda: trials_of_set.append(_Trials(run_set, distributions, seed, pruner)))
    while (trial := _on_main_process(lambda: trials_of_set[0].ask(trials))) is not None:
        try:
            _run_trial(trial, trials_of_set, settle, progress)
        finally:
            files.unlock(trial.path)
        values = first_run.values
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    winner = _on_main_process(lambda: trials_of_set[0].winner())
    if winner is None:
        report(
            Noted("the trials that are left run in other processes: the last one ends the search")
        )
        distributed.leave()
        return run_set
    report(Noted(f"{winner.path.name} is the best of {trials}: evaluating it on the test rows"))
    run_one(settle({**winner.changes, "resume": True}), progress)
    if distributed.is_main_process():
        trials_of_set[0].finish(winner, base)
    return run_set


@dataclass(frozen=True)
class _Trial:
    """A trial as every process knows it."""

    number: int
    params: Mapping[str, Any]
    path: Path

    @property
    def changes(self) -> dict[str, Any]:
        """The options of its run."""
        return {**self.params, "output_dir": str(self.path)}


class _Trials:
    """The trials of a search, in rank 0: asks Optuna for values, and tells it the scores."""

    def __init__(
        self, run_set: RunSet, space: Mapping[str, BaseDistribution], seed: int, pruner: str
    ) -> None:
        self.path = run_set.path
        self.manifest = run_set.manifest
        self.space = dict(space)
        self.study = open_study(run_set)
        seed += len(self.study.trials)  # not the same values in another process
        self.study.pruner = PRUNERS[pruner]()
        self.study.sampler = TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=True)

    def ask(self, count: int) -> _Trial | None:
        """Return the next trial; its directory is locked. None if ``count`` trials have begun."""
        with FileLock(self.path / ".ask.lock"):
            trials = self.study.get_trials(states=[TrialState.RUNNING])
            free = {t.number for t in trials if not files.is_locked(self.path / _name(t.number))}
            for frozen in self.study.get_trials(states=[TrialState.RUNNING]):  # one may have ended
                if frozen.number in free:  # it was killed
                    self.study.tell(frozen.number, state=TrialState.FAIL)
                    continued = {_CONTINUES: frozen.number}
                    self.study.enqueue_trial(frozen.params, user_attrs=continued)
            begun_trials = list_trials(self.study)
            begun = len(begun_trials)
            if begun >= count:
                return None
            reasons = [t.user_attrs["reason"] for t in begun_trials if "reason" in t.user_attrs]
            if begun == len(reasons) == _MOST_FAILURES:
                raise RunError(f"the first {begun} trials failed: {reasons[-1]}")
            trial = self.study.ask(self.space)
            path = self.path / _name(trial.number)
            if (earlier := trial.user_attrs.get(_CONTINUES)) is not None:
                with contextlib.suppress(FileNotFoundError):  # killed before it began
                    (self.path / _name(earlier)).rename(path)
            checkpoint.occupy(path)
        self.current, self.last_step = trial, 0
        return _Trial(trial.number, trial.params, path)

    def should_prune(self, history: Sequence[Mapping[str, Any]], by_epoch: bool) -> bool:
        """Tell Optuna the evaluations so far, and return whether the trial is worse than others."""
        name = f"eval_{self.manifest.metric}"
        for entry in history:
            step = round(entry["epoch" if by_epoch else "step"])
            if step > self.last_step and math.isfinite(entry.get(name, math.nan)):
                self.current.report(entry[name], step)
                self.last_step = step
        return self.current.should_prune()

    def tell(self, trial: _Trial, failure: Exception | None) -> str:
        """Tell Optuna how a trial ended, delete checkpoints that no longer matter, and return a
        sentence.
        """
        values = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
        if failure is not None:
            is_pruned = isinstance(failure, Pruned)
            state = TrialState.PRUNED if is_pruned else TrialState.FAIL
            self.current.set_user_attr("reason", str(failure))
            self.study.tell(trial.number, state=state)
            ending = str(failure) if is_pruned else f"failed: {failure}"
        elif math.isnan(score := self._score(Run(trial.path).manifest.history)):
            reason = f"no evaluation has a number for {self.manifest.metric}"
            self.current.set_user_attr("reason", reason)
            self.study.tell(trial.number, state=TrialState.FAIL)
            ending = f"failed: {reason}"
        else:
            self.study.tell(trial.number, score)
            ending = f"{self.manifest.metric} {format_number(score)}"
        deleted = ", ".join(self._delete_checkpoints())
        note = f"; deleted the checkpoints of {deleted}" * bool(deleted)
        return f"{trial.path.name}: {ending} ({values}){note}"

    def _score(self, history: Sequence[Mapping[str, Any]]) -> float:
        name = f"eval_{self.manifest.metric}"
        scores = [entry[name] for entry in history if name in entry]
        choose = max if self.manifest.greater_is_better else min
        return float(choose(filter(math.isfinite, scores), default=math.nan))

    def _delete_checkpoints(self) -> Iterator[str]:
        """Delete the checkpoints of all finished trials but the best, and yield their names."""
        best = self._best()
        for frozen in self.study.get_trials(deepcopy=False):
            paths = checkpoint.list_checkpoints(self.path / _name(frozen.number))
            if paths and frozen.state.is_finished() and frozen.number != best:
                for path in paths:
                    shutil.rmtree(path, ignore_errors=True)
                yield _name(frozen.number)

    def _best(self) -> int | None:
        """Return the number of the best complete trial, if there is one."""
        complete = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        return self.study.best_trial.number if complete else None

    def winner(self) -> _Trial | None:
        """Return the best trial; None if other processes have trials that are not finished.

        Raises:
            RunError: If all trials failed.
        """
        if self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            return None
        if (best := self._best()) is None:
            reasons = {t.user_attrs.get("reason", "killed") for t in self.study.get_trials()}
            raise RunError(f"no trial has a score: {'; '.join(sorted(reasons))}")
        winner = _Trial(best, self.study.best_params, self.path / _name(best))
        with contextlib.suppress(TimeoutError):  # another process may be evaluating it
            files.lock(winner.path)
            return winner
        return None

    def finish(self, winner: _Trial, base: Settings) -> None:
        """Write the options of the best trial, and the optimism of its validation score."""
        complete = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        runs = [Run(self.path / _name(frozen.number)) for frozen in complete]
        gap = optimism.estimate(runs, self.manifest.metric, self.manifest.greater_is_better)
        options = {**base.user_options, **winner.params}
        for name in ("output_dir", "config"):
            options.pop(name, None)
        plain = json.loads(json.dumps(options, default=str))  # a path, in Python
        files.write_whole(self.path / BEST, yaml.safe_dump(plain, sort_keys=False))
        changed = dataclasses.replace(self.manifest, winner=winner.path.name, optimism=gap)
        changed.write(self.path)


def list_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that have begun, without killed ones that another trial continues."""
    trials = study.get_trials(deepcopy=False)
    continued = {trial.user_attrs.get(_CONTINUES) for trial in trials}
    begun = [trial for trial in trials if trial.state != TrialState.WAITING]
    return [trial for trial in begun if trial.number not in continued]


def open_study(run_set: RunSet) -> optuna.Study:
    """Return the study of a search, from its journal.

    Raises:
        UserError: If the journal is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = run_set.path / JOURNAL
    try:
        return optuna.create_study(
            study_name="search",
            storage=JournalStorage(JournalFileBackend(str(path))),
            direction="maximize" if run_set.manifest.greater_is_better else "minimize",
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UserError(
            f"{path} is damaged: {error}; remove its directory, or restore it"
        ) from error


class _Pruning(TrainerCallback):
    """Stops a trial on every process if its evaluations are worse than those of others."""

    def __init__(self, trials_of_set: Sequence[_Trials]) -> None:
        self.trials_of_set = trials_of_set

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask Optuna in rank 0, unless the training has ended."""
        if state.global_step >= state.max_steps:
            return
        by_epoch = args.eval_strategy == "epoch"
        answers = [t.should_prune(state.log_history, by_epoch) for t in self.trials_of_set]
        if any(distributed.gather(any(answers))):
            raise Pruned(f"pruned after epoch {state.epoch:.3g}")


def _run_trial(
    trial: _Trial, trials_of_set: Sequence[_Trials], settle: Settle, progress: Progress
) -> None:
    failure: Exception | None = None
    try:
        settings = settle({**trial.changes, "resume": True})
        run_one(settings, progress, _Pruning(trials_of_set))
    except (RunError, UserError, RuntimeError, ValueError) as error:
        failure = error.with_traceback(None)  # which holds the model
    for trials in trials_of_set:
        progress(Noted(trials.tell(trial, failure)))


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


def _on_main_process(function: Callable[[], Result]) -> Result:
    """Call a function in rank 0, and return its result, or raise its error, in every process."""
    result: Any = None
    failure: Exception | None = None
    if distributed.is_main_process():
        try:
            result = function()
        except (UserError, RunError) as error:
            failure = error
    result, failure = distributed.gather((result, failure))[0]
    if failure is not None:
        raise failure
    return cast(Result, result)


def _name(number: int) -> str:
    return f"trial-{number:03}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
