"""Test signals that need a separate process; the others are in test_training.py."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune import Run
from tests.acceptance.test_training import assert_identical, checkpoints

MATRIX = pytest.mark.faults


def test_a_second_signal_ends_at_once(words: list[str], tmp_path: Path) -> None:
    """The process sends it after the time in which a launcher may repeat the first one."""
    typed = [*words, "--output_dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "finetune", *typed],
        env=os.environ | {"FAULT": "step 5,SIGTERM;step 5,pause;step 5,SIGTERM"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM


@MATRIX
def test_a_closed_terminal_saves(words: list[str], tmp_path: Path) -> None:
    """Linux sends SIGHUP, and nothing can be printed any more."""
    run = tmp_path / "run"
    typed = [*words, "--output_dir", str(run), "--num_train_epochs", "500", "--save_steps", "3000"]
    shell, terminal = pty.fork()
    if shell == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would make this process ignore it
        os.execv(sys.executable, [sys.executable, "-m", "finetune", *typed, "--eval_steps", "3000"])
    printed = b""
    while b"  loss " not in printed:
        printed += os.read(terminal, 2**16)
    os.close(terminal)
    _, status = os.waitpid(shell, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", "SIGHUP")
    assert len(checkpoints(run)) == 1


@MATRIX
@pytest.mark.processes
@pytest.mark.parametrize(("rank", "place", "step"), [("1", "step 5", 5), ("0", "batch 1", 3)])
def test_ranks_agree_on_the_step(
    command: Callable[..., "subprocess.CompletedProcess[str]"],
    words: list[str],
    rank: str,
    place: str,
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a signal to one of two ranks both stop at the same step or batch, save and resume."""
    flags = [*words, "--per_device_eval_batch_size", "2", "--output_dir"]
    whole = command(*flags, tmp_path / "whole", launcher="torchrun")
    assert whole.returncode == 0, whole.stderr
    monkeypatch.setenv("FAULT", f"{place},SIGUSR1,{rank}")
    stopped = command(*flags, tmp_path / "run", launcher="torchrun")
    assert stopped.returncode == 1  # the status of torchrun; the manifest has the real one
    assert f"to resume at step {step}: " in " ".join(stopped.stderr.split())
    assert Run.load(tmp_path / "run").manifest.status == "interrupted"
    monkeypatch.delenv("FAULT")
    resumed = command(*flags, tmp_path / "run", "--resume", launcher="torchrun")
    assert resumed.returncode == 0, resumed.stderr
    assert_identical(tmp_path / "run", tmp_path / "whole")
