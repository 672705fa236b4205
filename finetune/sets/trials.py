"""The trials of a search, in rank 0: Optuna proposes their options, and is told their scores."""

import dataclasses
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from filelock import FileLock
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BruteForceSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from transformers import EvalPrediction

from finetune.errors import Pruned, RunError, UserError
from finetune.recipe.run import Run
from finetune.reporting.tables import format_number
from finetune.runs import checkpoints
from finetune.runs.directory import VALIDATION, is_locked, lock_directory
from finetune.runtime.files import to_json_values, write_whole
from finetune.sets.run_set import RunSet

JOURNAL, _NAME = "study.journal", "search"
BEST = "best.yaml"  # the options of the best trial, for --config
#: Trials that are not pruned, because there is too little to compare with; and random trials.
STARTUP_TRIALS = 5
#: When a trial is stopped: below the median of the others at the same epoch, or, with hyperband,
#: outside the best third of its bracket after 1, 3, 9 ... epochs of at most so many (Li et al.,
#: JMLR 18, 2018).
PRUNERS: dict[str, Callable[[int], BasePruner]] = {
    "median": lambda epochs: MedianPruner(n_startup_trials=STARTUP_TRIALS),
    "hyperband": lambda epochs: HyperbandPruner(max_resource=epochs),
    "none": lambda epochs: NopPruner(),
}
#: Attributes of a trial: how often its process was killed, and why it failed or was pruned.
_KILLS, _REASON = "kills", "reason"
_MAX_KILLS = 3  # then the trial fails
#: A search ends if this many trials have failed and none has succeeded.
_MAX_FAILURES = 3


@dataclass(frozen=True)
class Trial:
    """A trial as every process knows it."""

    params: Mapping[str, Any]
    path: Path

    @property
    def changes(self) -> dict[str, Any]:
        """The options of its run, which continues from its checkpoint if there is one."""
        return {**self.params, "output_dir": str(self.path), "resume": True}


@dataclass
class Trials:
    """The trials of a search. Only rank 0 calls the methods.

    Attributes:
        run_set: The set of their runs.
        space: The values of each option.
        first: The values of the first trial; if it is empty, Optuna proposes them, too.
        seed: The seed of Optuna's sampler.
        pruner: One of :data:`PRUNERS`, made for the most epochs of a trial.
    """

    run_set: RunSet
    space: Mapping[str, BaseDistribution]
    first: Mapping[str, Any]
    seed: int
    pruner: BasePruner

    @cached_property
    def _study(self) -> optuna.Study:
        study = open_study(self.run_set)
        study.pruner = self.pruner
        return study

    @property
    def _lock(self) -> FileLock:
        """The lock of the study, for reading it and changing directories in one step."""
        return FileLock(self.run_set.path / ".study.lock")

    def ask(self, count: int) -> Trial | None:
        """Return the next trial, with its directory locked.

        None if ``count`` trials have begun, or if the space has no other values.

        Raises:
            RunError: If the first trials failed.
        """
        study = self._study
        with self._lock:
            number = self._find_killed()
            if number is None:
                begun = trials_in(study)
                failed = [reason_of(trial) for trial in begun if trial.state == TrialState.FAIL]
                if len(failed) == len(begun) >= _MAX_FAILURES:
                    raise RunError(f"the first {len(begun)} trials failed: {failed[-1]}")
                if len(begun) >= count:
                    return None
                params = self._propose(begun)
                if params is None:
                    return None
                number = len(begun)
                trial = create_trial(
                    state=TrialState.RUNNING, params=params, distributions=dict(self.space)
                )
                study.add_trial(trial)
            path = self._path(number)
            lock_directory(path)
        self._current = self._open_trial(number)
        return Trial(self._current.params, path)

    def _open_trial(self, number: int) -> optuna.Trial:
        """Return a running trial, to report scores; ``Study.ask`` only returns new ones."""
        storage = open_storage(self.run_set)
        study_id = storage.get_study_id_from_name(_NAME)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
        return optuna.Trial(self._study, trial_id)

    def _propose(self, begun: Sequence[FrozenTrial]) -> dict[str, Any] | None:
        """Return values that no trial has had; None if there are none left.

        Optuna may propose values again; then others are drawn at random. It is asked in a copy of
        the study, as a trial that it has made cannot be taken back.
        """
        if not begun and self.first:
            return dict(self.first)
        tried = [trial.params for trial in begun]
        seed = self.seed + len(begun)  # a process that asks later samples other values
        sampler = TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True)
        copy = optuna.create_study(sampler=sampler, direction=self._study.direction)
        copy.add_trials(self._study.get_trials())
        params = copy.ask(dict(self.space)).params
        if params in tried:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                copy.sampler = BruteForceSampler(seed=seed)
            params = copy.ask(dict(self.space)).params
        if params in tried:
            return None
        return params

    def count(self) -> int:
        """Return the number of trials that have begun."""
        return len(trials_in(self._study))

    def _find_killed(self) -> int | None:
        """Return the number of a trial whose process is gone; it continues from its checkpoint."""
        running = trials_in(self._study, TrialState.RUNNING)
        unlocked = {trial.number for trial in running if not is_locked(self._path(trial.number))}
        for trial in trials_in(self._study, TrialState.RUNNING):  # one may have ended
            if trial.number in unlocked:
                kills = trial.user_attrs.get(_KILLS, 0) + 1
                if kills < _MAX_KILLS:
                    self._open_trial(trial.number).set_user_attr(_KILLS, kills)
                    return trial.number
                self._study.tell(trial.number, state=TrialState.FAIL)
        return None

    def should_prune(self, history: Sequence[Mapping[str, Any]], by_epoch: bool) -> bool:
        """Tell Optuna the evaluations so far, and return whether the trial is worse than others."""
        unit = "step"
        if by_epoch:
            unit = "epoch"
        reported = trials_in(self._study)[self._current.number].intermediate_values
        for entry in history:
            step = round(entry[unit])
            score = self._scores([entry])
            if step > max(reported, default=0) and score:
                self._current.report(score[0], step)
        return self._current.should_prune()

    def tell(self, trial: Trial, failure: Exception | None) -> str:
        """Tell Optuna how a trial ended, delete checkpoints that no longer matter, and return a
        sentence.
        """
        values = ", ".join(f"{name}={short(value)}" for name, value in trial.params.items())
        metric = self.run_set.manifest.metric
        scores: list[float] = []
        reason = str(failure)
        if failure is None:
            scores = self._scores(Run(trial.path).manifest.history)
            reason = f"no evaluation has a number for {metric}"
        if scores:
            best = max if self.run_set.manifest.greater_is_better else min
            score = best(scores)
            self._study.tell(self._current, score)
            ending = f"{metric} {format_number(score)}"
        else:
            self._current.set_user_attr(_REASON, reason)
            state, ending = TrialState.FAIL, f"failed: {reason}"
            if isinstance(failure, Pruned):
                state, ending = TrialState.PRUNED, reason
            self._study.tell(self._current, state=state)
        line = f"{trial.path.name}: {ending} ({values})"
        if deleted := ", ".join(self._delete_checkpoints()):
            line += f"; deleted the checkpoints of {deleted}"
        return line

    def _scores(self, history: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the finite scores in a history; ``run.json`` has null for NaN."""
        scores = []
        for entry in history:
            score = entry.get(f"eval_{self.run_set.manifest.metric}")
            if score is not None and math.isfinite(score):
                scores.append(score)
        return scores

    def _delete_checkpoints(self) -> Iterator[str]:
        """Delete the checkpoints of all finished trials but the best, and yield their names."""
        with self._lock:  # of two processes one may not know the best trial of the other
            best = self._best()
            for frozen in trials_in(self._study):
                paths = checkpoints.list_checkpoints(self._path(frozen.number))
                is_best = best is not None and frozen.number == best.number
                if paths and frozen.state.is_finished() and not is_best:
                    for path in paths:
                        shutil.rmtree(path, ignore_errors=True)
                    yield trial_name(frozen.number)

    def _best(self) -> FrozenTrial | None:
        """Return the best complete trial, if there is one."""
        if trials_in(self._study, TrialState.COMPLETE):
            return self._study.best_trial
        return None

    def choose_winner(self) -> Trial | None:
        """Return the best trial, with its directory locked; None if other processes have trials
        that are not finished, or evaluate it.

        Raises:
            RunError: If all trials failed.
        """
        with self._lock:
            if trials_in(self._study, TrialState.RUNNING):
                return None
            if (best := self._best()) is None:
                reasons = sorted(set(map(reason_of, trials_in(self._study))))
                raise RunError(f"no trial has a score: {'; '.join(reasons)}")
            path = self._path(best.number)
            if is_locked(path):
                return None
            lock_directory(path)
        return Trial(best.params, path)

    def finish(self, winner: Trial, options: Mapping[str, Any]) -> str:
        """Write the options of the best trial, and the optimism of its validation score.

        Args:
            winner: The best trial, evaluated on the test rows.
            options: The options that all trials share.

        Returns:
            A sentence if the optimism is not known, else an empty string.
        """
        shared = {n: value for n, value in options.items() if n not in ("output_dir", "config")}
        best = to_json_values({**shared, **winner.params})  # paths in Python
        write_whole(self.run_set.path / BEST, yaml.safe_dump(best, sort_keys=False))
        complete = trials_in(self._study, TrialState.COMPLETE)
        runs = [Run(self._path(trial.number)) for trial in complete]
        manifest = self.run_set.manifest
        gap, note = None, ""
        try:
            gap = _estimate_optimism(runs, manifest.metric, manifest.greater_is_better)
        except Exception as error:  # in the metrics of a recipe, which get a sample of the rows
            note = f"the optimism of the best score is not known: {type(error).__name__}: {error}"
        manifest = dataclasses.replace(manifest, winner=winner.path.name, optimism=gap)
        manifest.write(self.run_set.path)
        return note

    def _path(self, number: int) -> Path:
        return self.run_set.path / trial_name(number)


def _estimate_optimism(runs: Sequence[Run], metric: str, greater_is_better: bool) -> float | None:
    """Return by how much the validation score of the best run is expected to be better than its
    score on other rows because it was chosen among the runs, in units of the metric, 0 or more;
    None if the recipe's metrics do not have it. The best of many scores on the same rows is too
    good: it is chosen because chance favored it there. The choice of an epoch in each run, on the
    same rows, is not included.

    On each of 100 bootstrap samples of the validation rows the best run is chosen again, and scored
    on the rows that are not in the sample (Tsamardinos, Greasidou and Borboudakis, Machine Learning
    107, 2018: bootstrap bias-corrected cross-validation).
    """
    outputs_of_runs = []
    for run in runs:
        with np.load(run.path / VALIDATION, allow_pickle=False) as arrays:
            labels, outputs = arrays["labels"], arrays["outputs"]
        outputs_of_runs.append(outputs)
    compute = runs[0].compute_metrics
    places = runs[0].task.places(labels)
    generator = np.random.default_rng(0)
    sign = 1
    if not greater_is_better:
        sign = -1

    if metric not in compute(EvalPrediction(outputs, labels)):
        return None  # the loss

    def score(outputs: np.ndarray, rows: np.ndarray) -> float:
        chosen = np.concatenate([places[row] for row in rows])
        return sign * float(compute(EvalPrediction(outputs[chosen], labels[chosen]))[metric])

    every_row = np.arange(len(places))
    best = max(score(outputs, every_row) for outputs in outputs_of_runs)
    held_out = []
    for _ in range(100):
        sample = generator.integers(len(places), size=len(places))
        scores = [score(outputs, sample) for outputs in outputs_of_runs]
        rows_left_out = np.setdiff1d(every_row, sample)
        if not len(rows_left_out):  # of very few rows
            continue
        held_out.append(score(outputs_of_runs[int(np.argmax(scores))], rows_left_out))
    gap = float(best - np.mean(held_out))
    if np.isfinite(gap):
        return max(0.0, gap)
    return None


def trials_in(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Return the trials in some states, by default all, in the order of their numbers."""
    return study.get_trials(deepcopy=False, states=states or None)


def reason_of(trial: FrozenTrial) -> str:
    """Return why a trial failed or was pruned."""
    return str(trial.user_attrs.get(_REASON, f"its process was killed {_MAX_KILLS} times"))


def open_storage(run_set: RunSet) -> JournalStorage:
    """Return the journal of a search."""
    return JournalStorage(JournalFileBackend(str(run_set.path / JOURNAL)))


def open_study(run_set: RunSet) -> optuna.Study:
    """Return the study of a search, from its journal.

    Raises:
        UserError: If the journal is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = StudyDirection.MINIMIZE
    if run_set.manifest.greater_is_better:
        direction = StudyDirection.MAXIMIZE
    try:
        return optuna.create_study(
            study_name=_NAME,
            storage=open_storage(run_set),
            direction=direction,
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        path = run_set.path / JOURNAL
        raise UserError(
            f"{path} is damaged: {error}; remove its directory, or restore it"
        ) from error


def trial_name(number: int) -> str:
    """Return the name of a trial, which is also its directory."""
    return f"trial-{number:03}"


def short(value: Any) -> str:
    """Return the value of an option with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
