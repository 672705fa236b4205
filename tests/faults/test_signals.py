"""A signal in any phase loses at most a step, and what goes on is what would have been."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune import Run, UserError, report
from tests.faults.conftest import EPOCH, STEPS, Faulty, assert_same

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
MATRIX = pytest.mark.faults
EPOCHS = ("--eval_strategy", "epoch", "--save_strategy", "epoch", "--logging_steps", "4")
#: Place of the signal, flags, and the step that is saved.
PHASES = {
    "a step": ("step 4", (), 5),
    "the first step of an epoch": (f"step {EPOCH}", (), EPOCH + 1),
    "the last step": (f"step {STEPS - 1}", (), STEPS),
    "the end of the last step": (f"end of step {STEPS}", (), STEPS),
    "an evaluation": ("batch 1", (), 3),
    "an evaluation in the middle": ("batch 2", ("--per_device_eval_batch_size", "4"), 3),
    "a save": ("save 6", (), 6),
    "the end of an epoch": ("end of epoch 1", EPOCHS, EPOCH),
    "the evaluation of an epoch": ("batch 1", EPOCHS, EPOCH),
    "accumulation": ("step 5", ("--gradient_accumulation_steps", "2"), 6),
    "early stopping": ("step 7", ("--early_stopping_patience", "9"), 8),
}


#: The others belong to `make faults`.
ALWAYS = ("the last step", "an evaluation", "the end of an epoch", "accumulation")


@pytest.mark.parametrize(
    "phase", [each if each in ALWAYS else pytest.param(each, marks=MATRIX) for each in PHASES]
)
def test_a_signal_saves_and_the_rest_is_what_it_would_have_been(
    faulty: Faulty,
    whole: Callable[..., Path],
    phase: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place, flags, step = PHASES[phase]
    name = ("SIGTERM", "SIGINT", "SIGUSR1")[list(PHASES).index(phase) % 3]
    run = tmp_path / "run"
    status = faulty(run, *flags, fault=f"{place},{name}")
    assert status == 75
    said = capfd.readouterr().out
    assert f"interrupted by {name}; to resume at step {step}: " in said
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", name)
    with pytest.raises(UserError, match=r"metrics\.json: its status is 'interrupted'; to continue"):
        report(run)
    assert faulty(run, *flags, "--resume") == 0
    resumed = f"resuming from {run / f'checkpoint-{step}'}, step {step} of {STEPS}"
    assert resumed in capfd.readouterr().out
    assert_same(run, whole(*flags))


def test_a_signal_while_the_test_rows_are_predicted(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """Seven predictions of the validation rows, of one batch each, come before."""
    run = tmp_path / "run"
    assert faulty(run, fault="batch 8,SIGTERM") == 75
    assert faulty(run, "--resume") == 0
    assert_same(run, whole())


def test_nothing_is_lost_without_a_save_strategy(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path
) -> None:
    run, flags = tmp_path / "run", ("--save_strategy", "no", "--eval_strategy", "no")
    assert faulty(run, *flags, fault="step 5,SIGTERM") == 75
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-6"]
    assert faulty(run, *flags, "--resume") == 0
    assert Run.load(run).metrics == Run.load(whole(*flags)).metrics


@MATRIX
def test_the_grace_period_ends_a_process_that_cannot_save(words: list[str], tmp_path: Path) -> None:
    """Held up in its step, it ends with the same status, and says why."""
    held = tmp_path / "held.py"
    text = Path(words[0]).read_text(encoding="utf-8")
    held.write_text(text.replace('fault(f"step', 'hold(state.global_step); fault(f"step') + HOLD)
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "finetune", str(held), *words[1:], "--output_dir", str(run),
         "--grace_seconds", "1"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 75
    assert "SIGTERM: not saved within --grace_seconds, the process ends" in done.stderr
    manifest = Run.load(run).manifest
    assert manifest.status == "interrupted"
    assert manifest.stopped_by == "SIGTERM: not saved within --grace_seconds"
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-3"]


HOLD = """

def hold(step):
    import time

    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
"""


def test_a_second_signal_ends_at_once(words: list[str], tmp_path: Path) -> None:
    """Sent by the process to itself, after the time in which a launcher may repeat the first."""
    held = tmp_path / "held.py"
    twice = HOLD.replace("time.sleep(60)", "time.sleep(2.5); os.kill(os.getpid(), signal.SIGTERM)")
    text = Path(words[0]).read_text(encoding="utf-8")
    held.write_text(text.replace('fault(f"step', 'hold(state.global_step); fault(f"step') + twice)
    typed = [str(held), *words[1:], "--output_dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "finetune", *typed],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM


@MATRIX
def test_a_closed_terminal_saves(words: list[str], tmp_path: Path) -> None:
    """The system sends SIGHUP, and nothing can be printed any more."""
    run = tmp_path / "run"
    typed = [*words, "--output_dir", str(run), "--num_train_epochs", "500", "--save_steps", "3000"]
    shell, terminal = pty.fork()
    if shell == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup would have this process ignore
        os.execv(sys.executable, [sys.executable, "-m", "finetune", *typed, "--eval_steps", "3000"])
    printed = b""
    while b"  loss " not in printed:
        printed += os.read(terminal, 2**16)
    os.close(terminal)
    _, status = os.waitpid(shell, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", "SIGHUP")
    assert len(list(run.glob("checkpoint-*"))) == 1


@MATRIX
@pytest.mark.processes
@pytest.mark.parametrize(("rank", "place", "step"), [("1", "step 4", 5), ("0", "batch 1", 3)])
def test_ranks_agree_on_the_step(
    command: Callable[..., "subprocess.CompletedProcess[str]"],
    words: list[str],
    rank: str,
    place: str,
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal to one of two: both stop after the same step or batch, save, and go on."""
    flags = [*words, "--per_device_eval_batch_size", "2", "--output_dir"]
    whole = command(*flags, tmp_path / "whole", launcher="torchrun")
    assert whole.returncode == 0, whole.stderr
    monkeypatch.setenv("FAULT", f"{place},SIGUSR1")
    monkeypatch.setenv("FAULTY_RANK", rank)
    stopped = command(*flags, tmp_path / "run", launcher="torchrun")
    assert stopped.returncode == 1  # of torchrun; the manifest says it
    assert f"to resume at step {step}: " in " ".join(stopped.stdout.split())
    assert Run.load(tmp_path / "run").manifest.status == "interrupted"
    monkeypatch.delenv("FAULT")
    resumed = command(*flags, tmp_path / "run", "--resume", launcher="torchrun")
    assert resumed.returncode == 0, resumed.stderr
    assert_same(tmp_path / "run", tmp_path / "whole", world_size=2)
