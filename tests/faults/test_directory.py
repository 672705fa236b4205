"""Test that a lock, not a file, decides which process uses a run directory."""

import dataclasses
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from finetune import Run, UserError
from finetune.runs import checkpoints, resumption
from finetune.runs.directory import lock_directory, move_run_aside, refuse_foreign_directory
from tests.acceptance.conftest import Finished
from tests.acceptance.test_training import Train
from tests.conftest import HANGS
from tests.jobs import free_port, rank_without_launcher
from tests.warm import Servers

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture
def running(whole: Callable[..., Path], tmp_path: Path) -> Path:
    """A run with the status running, whose process has ended or is on another machine."""
    run = shutil.copytree(whole(), tmp_path / "run")
    elsewhere = dataclasses.replace(Run.load(run).manifest.process, host="another-machine", pid=1)
    Run.load(run).update(status="running", process=elsewhere)
    (run / ".lock").touch()
    return run


def test_a_run_whose_process_is_gone_is_stale(running: Path) -> None:
    process = dataclasses.replace(Run.load(running).manifest.process, host=platform.node())
    Run.load(running).update(process=process)
    assert Run.load(running).status == "stale"
    with FileLock(running / ".lock"):
        assert Run.load(running).status == "running"
    assert Run.load(running).manifest.status == "running"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("writable", [False, True])
def test_a_run_of_another_user_is_refused_and_not_moved(running: Path, writable: bool) -> None:
    """The run is in a shared directory, and writable for its owner or for everybody."""
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        run = Path(shutil.copytree(running, Path(shared, "run")))
        os.chmod(run, 0o777 if writable else 0o755)

        sentence = as_nobody(take, run)

        expected = "cannot be locked: " if writable else "cannot be written to"
        assert expected in sentence
        assert os.listdir(shared) == ["run"]


def take(run: Path) -> None:
    refuse_foreign_directory(run)
    lock_directory(run)
    move_run_aside(run)


def as_nobody(work: Callable[[Path], object], run: Path) -> str:
    """Return the result or the error message of a call by another user."""
    processes = multiprocessing.get_context("fork")
    answers = processes.Queue()

    def child() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            answers.put(str(work(run)))
        except UserError as error:
            answers.put(str(error))

    process = processes.Process(target=child)
    process.start()
    sentence: str = answers.get(timeout=60)
    process.join()
    return sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_checkpoint_without_permission_is_not_called_damaged(
    whole: Callable[..., Path],
) -> None:
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        run = Path(shutil.copytree(whole(), Path(shared, "run")))
        os.chmod(run, 0o777)
        newest = checkpoints.list_checkpoints(run)[0] / "optimizer.pt"
        newest.chmod(0o600)
        message = as_nobody(lambda run: resumption.find_checkpoint("last", run, renames=True), run)
        assert message == f"{newest} cannot be read: Permission denied"
        assert newest.exists()


def test_a_run_that_is_removed_in_training_is_reported(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train(run, fault="end of step 16,remove", environment={"DISK": str(run)})
    assert done.status == 1
    assert f"{run / 'run.json'} was removed while the run was in progress" in done.stderr


@pytest.mark.faults
def test_nothing_is_written_through_a_link_in_a_run(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, fault="step 5,SIGTERM").status == 75
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    names += ("training_args.bin", "model.safetensors", "metrics.json", "predictions.parquet")
    for name in names:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(treasure)
    assert train(run, "--resume").status == 0
    assert treasure.read_text(encoding="utf-8") == "untouched"
    assert not [name for name in names if (run / name).is_symlink()]


@pytest.mark.faults
def test_a_signal_while_the_report_is_written_is_reported(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(run: Run) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

    run = tmp_path / "run"
    monkeypatch.setattr("finetune.reporting.page.write", write)
    done = train(run, "--max_steps", 3)
    assert done.status == 75
    assert f"to write it: python -m finetune report {run}" in done.stderr
    assert Run.load(run).status == "finished"
    again = train(run, "--max_steps", 3, "--resume")
    assert again.status == 0
    assert "nothing is left to train" in again.stdout


# ---- machines with a disk each -------------------------------------------------------------------

Machines = Callable[..., list[Finished]]


@pytest.fixture
def machines(servers: Servers, words: list[str], tmp_path: Path) -> Machines:
    """Resume in two processes that act as machines, with run directories named by their ranks."""

    def resume(*flags: str) -> list[Finished]:
        port, ranks = free_port(), []
        typed = [*words, *flags, "--save_on_each_node", "--ddp_timeout=60", "--resume"]
        for rank in range(2):
            environment = {**os.environ, **rank_without_launcher(rank, 2, port)}
            place = ["--output_dir", str(tmp_path / str(rank))]
            line = servers.words("finetune", [*typed, *place], environment)
            pipes: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ranks.append(subprocess.Popen(line, env=environment, **pipes))
        outputs = [rank.communicate(timeout=HANGS) for rank in ranks]
        return [
            Finished(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)
        ]

    return resume


@pytest.mark.faults
@pytest.mark.processes
def test_machines_resume_from_a_checkpoint_that_is_whole_on_all(
    machines: Machines, whole: Callable[..., Path], tmp_path: Path
) -> None:
    runs = [shutil.copytree(whole(), tmp_path / str(rank)) for rank in range(2)]
    for run in runs:
        Run.load(run).update(status="running")
    for name in ("checkpoint-18/optimizer.pt", "checkpoint-15/scheduler.pt"):
        (runs[1] / name).unlink()
    shutil.rmtree(runs[0] / "checkpoint-12")
    resumed = machines()
    assert [rank.status for rank in resumed] == [0, 0], resumed
    assert "checkpoint-9, step 9" in resumed[0].stdout
    assert (runs[1] / "damaged-checkpoint-15").is_dir()
    assert [Run.load(run).manifest.status for run in runs] == ["finished", "finished"]
    Run.load(runs[0]).update(status="running")
    shutil.rmtree(runs[1])
    refused = machines()
    assert 2 in [rank.status for rank in refused]
    assert (
        "expected a checkpoint that is complete on every machine, found steps [18, 0]"
        in refused[0].stderr
    )


@pytest.mark.faults
@pytest.mark.processes
def test_a_finished_machine_continues_with_one_that_is_not(
    machines: Machines, tmp_path: Path
) -> None:
    runs = [tmp_path / "0", tmp_path / "1"]
    for run in runs:
        run.mkdir()
    for killed in (None, runs[1], None):
        if killed is not None:  # after the last checkpoint, before the results
            Run.load(killed).update(status="running")
            for name in ("metrics.json", "model.safetensors", "predictions.parquet"):
                (killed / name).unlink()
        before = [path.read_bytes() for path in sorted(tmp_path.glob("*/run.json"))]
        ended = machines("--max_steps=6")
        assert [rank.status for rank in ended] == [0, 0], ended
        assert [Run.load(run).manifest.status for run in runs] == ["finished", "finished"]
        assert (runs[0] / "metrics.json").read_bytes() == (runs[1] / "metrics.json").read_bytes()
    assert before == [(run / "run.json").read_bytes() for run in runs]
    assert "nothing is left to train" in ended[0].stdout
