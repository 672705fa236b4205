"""One of several processes fails: the job ends, and its first cause is told once.

It ends by itself: the timeout of the process group is half an hour, and a test waits for less.
"""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.jobs import TORCHRUN, Job, Jobs, free_port, jobs, rank_without_launcher
from tests.warm import Servers

pytestmark = pytest.mark.processes
FINETUNE = [sys.executable, "-m", "finetune"]
REGRESSION = ROOT / "examples" / "regression.py"
TIMEOUT = 5  # seconds
TRACEBACK = "Traceback (most recent call last):"
RECIPE = '''
import os, signal
from examples.regression import Regression

class Faulty(Regression):
    """The regression toy, of which some ranks fail at their fifth batch, when the test says so."""

    fault: str = ""
    ranks: str = "1"

    def data_collator(self):
        collate, seen = super().data_collator(), []

        def fail_at_the_fifth(rows):
            seen.append(rows)
            if os.environ["RANK"] in self.ranks and len(seen) == 5:
                os.write(1, b"fifth batch\\n")  # in one piece
                os.read(0, 1)
                if self.fault == "raise":
                    raise ValueError("the fifth batch is broken")
                os.kill(os.getpid(), signal.Signals[self.fault])
            return collate(rows)

        return fail_at_the_fifth
'''


class Fault:
    """A fault of a job alone in its directory, in so many of its ranks, as soon as it happens."""

    def __init__(self, job: Job, ranks: int = 1) -> None:
        for _ in range(ranks):
            job.wait_for("fifth batch")
        self.job, self.processes = job, list(processes_in(job.cwd))
        job.say("\n" * ranks)

    def end(self) -> str:
        """What the job said in error until it ended; nothing of it is left."""
        done = self.job.ended()
        assert done.returncode == 1
        assert len(self.processes) > 2
        assert not [each for each in self.processes if each.is_running()]
        return done.stderr


def processes_in(directory: Path) -> Iterator[psutil.Process]:
    """Whatever was started there, by whom ever."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(directory):
                yield process


@pytest.fixture(scope="module")
def started() -> Iterator[Jobs]:
    with jobs() as every:
        yield every


@pytest.fixture(scope="module")
def train(
    started: Jobs, tmp_path_factory: pytest.TempPathFactory, warm: Servers
) -> Callable[..., Job]:
    """Start a job that will have this fault, in a directory of its own."""

    def start(fault: str, processes: int, *flags: str, cold: bool = False) -> Job:
        directory = tmp_path_factory.mktemp(fault).resolve()
        (directory / "faulty.py").write_text(RECIPE)
        launch = ["--standalone", f"--nproc_per_node={processes}"]
        words = ["faulty.py", "--fault", fault, "--output_dir", fault, *flags]
        if cold:
            return started.start([*TORCHRUN, *launch, "-m", "finetune", *words], directory)
        return started.start(warm.torchrun(words, os.environ, *launch), directory)

    return start


@pytest.fixture(scope="module", autouse=True)
def stopped(train: Callable[..., Job]) -> Fault:
    """Its seconds run while the other tests do."""
    return Fault(train("SIGSTOP", 2, "--ddp_timeout", str(TIMEOUT), cold=True))


@pytest.fixture(scope="module")
def others(train: Callable[..., Job]) -> dict[str, Job]:
    """They start at the same time, and fail one after the other."""
    return {
        "SIGKILL": train("SIGKILL", 2),
        "raise": train("raise", 3, "--ranks", "12", "--global_batch_size", "33"),
    }


# ---- a rank fails --------------------------------------------------------------------------------


def test_a_rank_that_is_killed_ends_the_job(others: dict[str, Job]) -> None:
    said = Fault(others["SIGKILL"]).end()
    assert said.count("Signal 9 (SIGKILL)") == 1
    assert said.count(TRACEBACK) == 1  # torchrun's own, at the end
    assert "error:" not in said  # rank 0 knows only that a connection was closed


def test_of_two_ranks_that_raise_one_shows_its_traceback_and_the_others_are_quiet(
    others: dict[str, Job],
) -> None:
    said = Fault(others["raise"], ranks=2).end()
    assert len(re.findall("^rank [12] failed:$", said, re.MULTILINE)) == 1
    assert said.count("ValueError: the fifth batch is broken") == 1
    assert said.count("in fail_at_the_fifth") == 1
    assert said.count(TRACEBACK) == 2
    assert "error:" not in said


def test_a_mistake_on_one_machine_is_told_there_and_stops_the_other(
    started: Jobs, tmp_path: Path, warm: Servers
) -> None:
    port = free_port()
    first, second = (
        started.start(
            warm.words("finetune", [str(REGRESSION), *flags], os.environ),
            tmp_path,
            rank_without_launcher(rank, 2, port),
        )
        for rank, flags in enumerate(([], ["--learnin_rate", "1"]))
    )
    mistaken, other = second.ended(), first.ended()
    assert mistaken.returncode == 2
    assert mistaken.stderr.startswith("error: unknown option --learnin_rate; did you mean")
    assert mistaken.stderr.count("\n") == 1
    assert other.returncode == 2
    assert other.stderr.startswith("error: rank 1: unknown option --learnin_rate")
    assert other.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_named(started: Jobs, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = started.start(
            [*FINETUNE, REGRESSION], tmp_path, rank_without_launcher(0, 2, port)
        ).ended()
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port {port} of this machine is in use")
    assert "Traceback" not in done.stderr


# ---- a launcher of old ---------------------------------------------------------------------------


def test_a_command_starts_under_torch_distributed_launch(started: Jobs, tmp_path: Path) -> None:
    """It puts `--local-rank` before the words of the user."""
    old = [sys.executable, "-m", "torch.distributed.launch", "--master_port", str(free_port())]
    done = started.start([*old, "-m", "finetune", "list"], tmp_path).ended()
    assert done.returncode == 0, done.stderr
    assert "sentiment" in done.stdout


# ---- at last -------------------------------------------------------------------------------------


def test_a_rank_that_is_stopped_is_waited_for_until_the_timeout(stopped: Fault) -> None:
    said = stopped.end()
    assert said.count("error: rank 0 timed out waiting for another rank (--ddp_timeout)") == 1
    assert said.count("forcefully exiting via") == 1
    assert said.count(TRACEBACK) == 1
