"""Test searches that are shared, launched by torchrun, killed and interrupted."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from finetune import RunSet
from tests.acceptance.conftest import flags, once
from tests.acceptance.data import write_bert
from tests.acceptance.test_training import FAULTY, checkpoints
from tests.jobs import wait_until
from tests.warm import Servers

pytestmark = [pytest.mark.faults, pytest.mark.processes]
PATIENCE = 300.0  # timeout in seconds of a search that hangs
STEPS = 18  # of a trial that is not pruned
SPACE = "learning_rate=1e-5..1e-2:log,weight_decay=0.0..0.1"
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def start(servers: Servers) -> Iterator[Start]:
    """Return a function that starts a search in the background, by torchrun or alone."""
    started = []

    def run(words: list[str], *, torchrun: bool = False, **more: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, **more}
        if torchrun:
            launch = ("--standalone", "--nproc_per_node=2")
            line = servers.torchrun(words, environment, *launch)
        else:
            line = servers.words("finetune", words, environment)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(line, env=environment, text=True, **pipes))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


#: Optuna, slowly: a worker has stopped a trial, or chosen the best, a second before it says so.
SLOW = """

import optuna

tell, best_params = optuna.Study.tell, optuna.Study.best_params.fget


def slow_tell(study, *args, **options):
    time.sleep(1)
    return tell(study, *args, **options)


def slow_best_params(study):
    time.sleep(1)
    return best_params(study)


optuna.Study.tell, optuna.Study.best_params = slow_tell, property(slow_best_params)
"""


@pytest.fixture(scope="module")
def search(shared_directory: Path, faulty: dict[str, str]) -> list[str]:
    """The words of a search; the model has no dropout, so processes change nothing."""
    model = once(shared_directory / "bert", write_bert)
    options = {**faulty, "model": str(model), "space": SPACE}
    return ["search", str(FAULTY), *flags(**options)]


def finish(process: "subprocess.Popen[str]") -> str:
    """Return the output of a search that succeeds."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return output


def steps_in(rows: Path) -> int:
    """Return the number of optimizer steps that a process trained, which was given ``ROWS``."""
    return len((rows / "rank0.jsonl").read_text().splitlines())


def trials_of(directory: Path) -> list[FrozenTrial]:
    """Return all trials in the journal of a search."""
    storage = JournalStorage(JournalFileBackend(str(directory / "study.journal")))
    return optuna.load_study(study_name="search", storage=storage).get_trials()


def assert_only_the_winner_was_tested(directory: Path, count: int) -> None:
    """Assert that ``count`` trials have directories, and all but the best are without test scores
    and checkpoints.
    """
    runs = RunSet.load(directory).runs
    finished = {f"trial-{t.number:03}": t for t in trials_of(directory) if t.state in FINISHED}
    assert [run.path.name for run in runs] == [*finished]
    assert len(runs) == count
    complete = [t for t in finished.values() if t.state == TrialState.COMPLETE]
    best = min(complete, key=lambda trial: trial.value or 0.0)  # a loss
    for run, trial in zip(runs, finished.values(), strict=True):
        names = {path.name for path in run.path.iterdir()}
        tested = {"metrics.json", "predictions.parquet"} & names
        if run.path.name == f"trial-{best.number:03}":
            assert len(tested) == 2
            assert run.status == "finished"
            assert run.metrics.test.keys() >= {"f1", "loss"}
        else:
            assert not tested
            assert not checkpoints(run.path)
            is_pruned = trial.state == TrialState.PRUNED
            assert run.status == ("pruned" if is_pruned else "validated")
    assert RunSet.load(directory).manifest.winner == f"trial-{best.number:03}"


def test_two_processes_try_the_same_and_score_the_same(
    start: Start, search: list[str], tmp_path: Path
) -> None:
    """Under torchrun each trial is trained by both; they prune it at the same step."""
    found = []
    for name, torchrun in (("one", False), ("two", True)):
        words = [*search, *flags(trials=10, ddp_timeout=30, output_dir=tmp_path / name)]
        output = finish(start(words, torchrun=torchrun))
        assert "is the best of 10" in output
        assert_only_the_winner_was_tested(tmp_path / name, 10)
        found.append(trials_of(tmp_path / name))
    one, two = found
    assert [t.params for t in one] == [t.params for t in two]
    assert [t.state for t in one] == [t.state for t in two]
    assert {t.state for t in one} == {*FINISHED}  # some are pruned
    for trial, other in zip(one, two, strict=True):
        values = pytest.approx(trial.intermediate_values, rel=1e-4)
        assert other.intermediate_values == values
        assert other.value == pytest.approx(trial.value, rel=1e-4)
    runs = RunSet.load(tmp_path / "two").runs
    assert {run.manifest.launch["world_size"] for run in runs} == {2}


def test_two_workers_share_the_trials_of_a_search(
    start: Start, search: list[str], tmp_path: Path
) -> None:
    """A trial that has just ended is not taken for a killed one, and one worker tests the best."""
    recipe = tmp_path / "slow.py"
    recipe.write_text(FAULTY.read_text() + SLOW)
    words = ["search", str(recipe), *search[2:], "--trials", "6", "--output_dir", f"{tmp_path}/s"]
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    workers = [start(words, ROWS=str(place)) for place in places]
    outputs = [finish(worker) for worker in workers]
    lines = [line for output in outputs for line in output.splitlines()]
    ends = Counter(line.partition(":")[0] for line in lines if line.startswith("trial-"))
    names = [f"trial-{number:03}" for number in range(6)]
    assert {name: ends[name] for name in names} == dict.fromkeys(names, 1)
    trials = trials_of(tmp_path / "s")
    assert [t.number for t in trials] == [*range(6)]
    assert {t.state for t in trials} <= {*FINISHED}
    assert len({t.params["learning_rate"] for t in trials}) == 6
    trained = [steps_in(place) for place in places]
    assert all(steps > 0 for steps in trained)
    lengths = [STEPS if t.state == TrialState.COMPLETE else t.last_step or 0 for t in trials]
    assert sum(trained) == sum(lengths)
    assert sum("evaluating it on the test rows" in output for output in outputs) == 1
    assert_only_the_winner_was_tested(tmp_path / "s", 6)


@pytest.mark.parametrize("moment", ["trial-000/checkpoint-6", "trial-002/checkpoint-3"])
def test_a_killed_worker_loses_no_trial(
    start: Start, search: list[str], moment: str, tmp_path: Path
) -> None:
    """The trial that was killed goes on from its checkpoint."""
    directory = tmp_path / "s"
    words = [*search, "--trials", "5", "--output_dir", str(directory)]
    worker = start(words)
    wait_until((directory / moment / "checkpoint.json").exists, worker)
    worker.kill()
    worker.communicate()
    number = int(moment[6:9])
    before = trials_of(directory)
    assert [t.state for t in before] == [*[TrialState.COMPLETE] * number, TrialState.RUNNING]
    step = int(checkpoints(directory / f"trial-{number:03}")[-1][11:])
    output = finish(start(words, ROWS=str(tmp_path)))
    assert steps_in(tmp_path) == (5 - number) * STEPS - step
    trials = trials_of(directory)
    assert trials[number].params == before[number].params
    assert len(trials) == 5
    assert {t.state for t in trials} <= {*FINISHED}
    assert [t.value for t in trials[:number]] == [t.value for t in before[:number]]
    assert "Best of 5 trials" in output
    assert_only_the_winner_was_tested(directory, 5)
    again = finish(start(words, ROWS=str(tmp_path)))  # nothing is left to train
    assert len(trials_of(directory)) == 5
    assert "Best of 5 trials" in again
    assert steps_in(tmp_path) == (5 - number) * STEPS - step


def test_ctrl_c_says_how_to_continue(start: Start, search: list[str], tmp_path: Path) -> None:
    """The status is that of a stopped training; the trial goes on from the step it stopped in."""
    directory, ready = tmp_path / "s", tmp_path / "ready"
    words = [*search, "--trials", "3", "--output_dir", str(directory)]
    worker = start(words, FAULT="step 5,wait", READY=str(ready))
    wait_until(ready.exists, worker)
    worker.send_signal(signal.SIGINT)
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 75, output
    assert "to continue, type the same command again" in output
    assert "Traceback" not in output
    assert checkpoints(directory / "trial-000") == ["checkpoint-3", "checkpoint-5"]
    finish(start(words, ROWS=str(tmp_path)))
    assert steps_in(tmp_path) == 3 * STEPS - 5
    assert_only_the_winner_was_tested(directory, 3)
