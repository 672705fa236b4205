"""Test that a run that is killed again and again ends like an uninterrupted one."""

import json
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import xxhash

from finetune import Run
from finetune.runtime import hub
from tests.acceptance.conftest import flags
from tests.acceptance.data import write_reviews
from tests.acceptance.test_training import assert_identical, checkpoints
from tests.jobs import wait_until

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.faults]
TIMES = int(os.environ.get("FAULT_TIMES", "5"))
PATIENCE = 120.0  # timeout in seconds of a run that hangs
#: Modules that are imported once, in the process from which all others are forked.
WARM = ["finetune.training.trainer", "finetune.cli.verbs", "finetune.pipeline.train", "datasets"]
Start = Callable[..., BaseProcess]


def work(words: list[str], log: str, environment: dict[str, str]) -> None:
    """Run the command line in a forked process, with its output in a file."""
    from finetune import cli

    os.environ |= environment
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.exit(cli.main(words))


@pytest.fixture(scope="module")
def start() -> Start:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)

    def run(words: list[str], log: Path, environment: dict[str, str] | None = None) -> BaseProcess:
        process = context.Process(target=work, args=(words, str(log), environment or {}))
        process.start()
        return process

    return run


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def finish(process: BaseProcess, log: Path) -> None:
    process.join(PATIENCE)
    assert process.exitcode == 0, log.read_text()


@pytest.mark.parametrize("seed", range(TIMES))
def test_kills_at_random_moments(
    start: Start, words: list[str], whole: Callable[..., Path], seed: int, tmp_path: Path
) -> None:
    """The run is killed up to nine times, anywhere from the lock to the report."""
    generator, run, log = random.Random(seed), tmp_path / "run", tmp_path / "log"
    typed = [*words, "--output_dir", str(run), "--resume"]
    for _ in range(9):
        process = start(typed, log)
        process.join(generator.uniform(0, 3))
        kill(process)
    finish(start(typed, log), log)
    assert_identical(run, whole())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "run"]  # nothing moved aside


@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_kills_within_50_ms_of_a_save(
    start: Start, words: list[str], whole: Callable[..., Path], seed: int, tmp_path: Path
) -> None:
    generator, run, log = random.Random(seed), tmp_path / "run", tmp_path / "log"
    typed = [*words, "--output_dir", str(run), "--resume"]
    step = 3 * generator.randint(1, 6)
    process = start(typed, log)
    ready = run / f"checkpoint-{step}"
    wait_until(lambda: ready.exists() or not process.is_alive())
    time.sleep(generator.uniform(0, 0.05))
    kill(process)
    saved = [name for name in checkpoints(run) if (run / name / "checkpoint.json").exists()]
    assert {f"checkpoint-{earlier}" for earlier in range(3, step, 3)} <= set(saved)
    for name in saved:
        assert_whole(run / name)
    finish(start(typed, log), log)
    assert_identical(run, whole())


def test_a_run_whose_head_was_fitted_is_killed(
    start: Start, words: list[str], pretrained_bert: Path, tmp_path: Path
) -> None:
    """It ends like an uninterrupted one."""
    reviews = write_reviews(tmp_path / "reviews.csv")  # whose labels the head can predict
    options: dict[str, Any] = dict(dataset=reviews, model=pretrained_bert, hidden_dropout=0.1)
    options |= dict(label_column="label", max_length=64, learning_rate=1e-4, resume=True)
    options |= dict(max_steps=60, save_steps=15, eval_steps=15)
    typed = [words[0], *flags(**options), "--output_dir"]
    run, log = tmp_path / "run", tmp_path / "log"
    for step in (15, 30):
        process = start([*typed, str(run)], log)
        ready = run / f"checkpoint-{step}" / "checkpoint.json"
        wait_until(lambda: ready.exists() or not process.is_alive())  # noqa: B023
        assert process.is_alive(), log.read_text()
        kill(process)
    finish(start([*typed, str(run)], log), log)
    finish(start([*typed, str(tmp_path / "whole")], log), log)
    notes = Run.load(tmp_path / "whole").manifest.data.notes
    assert any("head: logistic regression of " in note for note in notes)
    assert_identical(run, tmp_path / "whole")


def assert_whole(path: Path) -> None:
    """Assert that a checkpoint has every file that it lists, each with its checksum."""
    manifest = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
    assert manifest["files"].keys() >= {"model.safetensors", "optimizer.pt", "rng_state.pth"}
    for name, expected in manifest["files"].items():
        content = (path / name).read_bytes()
        checksum = xxhash.xxh3_128_hexdigest(content)
        assert expected == {"bytes": len(content), "xxh3_128": checksum}, path / name


@pytest.mark.parametrize("flags", ["", "--resume", "--resume_from_checkpoint last"])
def test_two_at_once_in_one_directory(
    start: Start, words: list[str], whole: Callable[..., Path], flags: str, tmp_path: Path
) -> None:
    """Of two runs that start together one trains, and the other is refused meanwhile."""
    run, ready = tmp_path / "run", tmp_path / "ready"
    if flags:  # it was killed after step 12
        shutil.copytree(whole(), run)
        Run.load(run).update(status="running")
        (run / "metrics.json").unlink()
        for name in ("checkpoint-15", "checkpoint-18"):
            shutil.rmtree(run / name)
    typed = [*words, "--output_dir", str(run), *flags.split()]
    logs = [tmp_path / "first", tmp_path / "second"]
    fault = {"FAULT": "start,until ready", "READY": str(ready)}
    pair = [start(typed, log, fault) for log in logs]
    ended = multiprocessing.connection.wait([process.sentinel for process in pair], PATIENCE)
    ready.touch()
    printed = "".join(log.read_text() for log in logs if log.exists())
    assert len(ended) == 1, printed
    for process in pair:
        process.join(PATIENCE)
    assert sorted(process.exitcode or 0 for process in pair) == [0, 2], printed
    assert "a run is in progress there (process " in printed
    assert_identical(run, whole())
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]


@pytest.mark.processes
@pytest.mark.parametrize("time_", range(TIMES))
def test_a_rank_that_is_killed_is_restarted(
    words: list[str], two: Callable[..., Path], time_: int, tmp_path: Path
) -> None:
    """``torchrun --max-restarts`` restarts it; the weights are those of a job without faults."""
    generator, run = random.Random(time_), tmp_path / "run"
    with launched(words, run, "--max-restarts", "1") as job:
        ready = run / f"checkpoint-{3 * generator.randint(1, 5)}"
        wait_until(lambda: ready.exists() or job.poll() is not None)
        time.sleep(generator.uniform(0, 0.3))
        os.kill(generator.choice(workers(job)), signal.SIGKILL)
        output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, output
    assert_identical(run, two())


@pytest.mark.processes
def test_ranks_whose_launcher_was_killed_end_within_ten_seconds(
    words: list[str], two: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with launched(words, run) as job:
        wait_until(lambda: (run / "checkpoint-3").exists() or job.poll() is not None)
        ranks = workers(job)
        job.kill()
        killed = time.monotonic()
        wait_until(lambda: not any(map(alive, ranks)))
    assert time.monotonic() - killed < 10
    assert Run.load(run).status in ("interrupted", "failed", "stale")
    complete(words, run, "--resume")
    assert_identical(run, two())


@pytest.mark.processes
@pytest.mark.parametrize("rank", range(2))
def test_a_rank_that_is_stopped_ends_the_job(
    words: list[str],
    two: Callable[..., Path],
    rank: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other rank waits for ``--ddp_timeout``; torchrun kills ranks that run on after 30 s."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setenv("FAULT", f"step 5,SIGSTOP,{rank}")
        with launched(words, run, more=("--ddp_timeout", "10")) as job:
            output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 1, output
    reason = "it exited, or took longer than --ddp_timeout"
    assert f"rank {1 - rank} lost the connection to another rank: {reason}" in output
    assert Run.load(run).status == ("stale" if rank == 0 else "failed")
    complete(words, run, "--resume")
    assert_identical(run, two())


@pytest.mark.parametrize("seed", range(TIMES))
def test_kills_during_tokenization(
    start: Start, words: list[str], seed: int, tmp_path: Path
) -> None:
    """The next start keeps the splits of 20,000 rows that are whole, and writes the others."""
    generator, log, many = random.Random(seed), tmp_path / "log", tmp_path / "many.csv"
    lines = [f"place {number} was {('bad', 'good')[number % 2]}" for number in range(20_000)]
    rows = "".join(f"{line},{line.split()[-1]}\n" for line in lines)
    many.write_text(f"text,label\n{rows}", encoding="utf-8")
    flags = ["--max_steps", "2", "--eval_samples", "50", "--eval_steps", "2", "--save_steps", "2"]
    typed = [words[0], "--dataset", str(many), *words[3:], *flags, "--resume", "--output_dir"]
    cached = hub.caches()["datasets"] / "finetune-tokenized"
    before, known = set(cached.glob("*/tmp*")), set(cached.glob("*"))

    process = start([*typed, str(tmp_path / "run")], log)
    wait_until(lambda: set(cached.glob("*/tmp*")) - before or not process.is_alive())
    time.sleep(generator.uniform(0, 1))
    kill(process)
    finish(start([*typed, str(tmp_path / "run")], log), log)
    for prepared in set(cached.glob("*")) - known:  # the other run writes it from the beginning
        shutil.rmtree(prepared)
    finish(start([*typed, str(tmp_path / "whole")], log), log)
    assert Run.load(tmp_path / "run").predictions.equals(Run.load(tmp_path / "whole").predictions)


@pytest.fixture(scope="module")
def two(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An uninterrupted run of two processes."""
    run = tmp_path_factory.mktemp("two") / "run"
    complete(words, run)
    return lambda: run


def complete(words: list[str], run: Path, *more: str) -> None:
    """Train in two processes to the end."""
    with launched(words, run, more=more) as job:
        output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, output


def launched(
    words: list[str], run: Path, *flags: str, more: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", *flags]
    address = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return subprocess.Popen(
        [*torchrun, *address, "-m", "finetune", *words, "--output_dir", str(run), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers(job: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return [int(pid) for pid in children]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
