"""The same embedded recipe under every launcher: the same numbers in the same shape."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import finetune
from tests.conftest import HANGS, LAUNCHERS, ROOT, Command
from tests.warm import Servers

OPTIONS = {
    "embedded": True,
    "train_samples": 160,
    "eval_samples": 60,
    "max_length": 32,
    "logging_steps": 5,
    "hidden_dropout": 0.0,
    "precision": "fp32",
    "num_threads": 1,
}
FLAGS = ["sentiment", *(word for name, value in OPTIONS.items() for word in (f"--{name}", value))]
NOTEBOOK = """
import json, sys
import finetune

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    forked = finetune.launch("sentiment", num_processes=2, output_dir="forked", **options)
    if "again" in sys.argv:
        again = finetune.launch("sentiment", num_processes=2, output_dir="again", **options)
        assert forked.metrics == again.metrics
    options = {"max_steps": 2, "baseline": False}
    finetune.train("mine.py", output_dir="here", **options)  # now devices are initialised
    try:
        finetune.launch("mine.py", num_processes=2, output_dir="late", **options)
    except finetune.UserError as error:
        assert "restart the kernel" in str(error)
    print("launched", forked.manifest["launch"]["world_size"])
"""

LATE = '''
"""Notes how often a rank has met all others when it has read its model, and when a run is moved."""

import os, sys
import torch.distributed as dist
from examples.regression import Regression
from safetensors.torch import load_model

meetings = 0

def counted(meet):
    def function(*given, **named):
        global meetings
        found = meet(*given, **named)
        meetings += 1
        return found
    return function

dist.all_gather_object, dist.barrier = counted(dist.all_gather_object), counted(dist.barrier)

def note(event):
    with open(f"{event} by rank {os.environ['RANK']}", "w") as file:
        file.write(str(meetings))

def watch(event, arguments):
    if event == "os.rename" and os.path.basename(arguments[0]) == "run":
        note("moved")

sys.addaudithook(watch)

class Late(Regression):
    """The regression toy, trained further."""

    def build_model(self, labels):
        model = super().build_model(labels)
        load_model(model, "run/model.safetensors")
        note("read")
        return model
'''


@dataclass(frozen=True)
class Launched:
    """What a launch printed, and what its run holds."""

    printed: str
    manifest: dict[str, Any]
    metrics: dict[str, Any]

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.manifest["history"] if "loss" in entry]


def launched(words: list[str], directory: Path, run: str) -> Launched:
    """Start these words in a directory, and read the run that they leave there."""
    answer = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    manifest, metrics = (
        json.loads((directory / run / name).read_text()) for name in ("run.json", "metrics.json")
    )
    return Launched(answer.stdout, manifest, metrics)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, warm: Servers) -> Callable[[str], Launched]:
    """Launch the same training by a launcher of the command line, or by a notebook; each once."""

    @functools.cache
    def run(launcher: str) -> Launched:
        directory = tmp_path_factory.mktemp(launcher)
        if launcher in LAUNCHERS:
            typed = [*map(str, FLAGS), "--output_dir", "run"]
            words = (
                warm.words("finetune", typed, os.environ)  # it starts cold in many other tests
                if launcher == "python"
                else [*LAUNCHERS[launcher], *typed]
            )
            return launched(words, directory, "run")
        (directory / "notebook.py").write_text(NOTEBOOK)
        shutil.copy(ROOT / "examples" / "regression.py", directory / "mine.py")
        words = [sys.executable, "notebook.py", json.dumps(OPTIONS), launcher]
        return launched(words, directory, "forked")

    return run


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_trains_in_its_processes_and_rank_0_alone_speaks(
    launcher: str, launch: Callable[[str], Launched]
) -> None:
    found = launch(launcher)
    assert found.printed.count("rows per step") == 1
    assert found.printed.count("Test set,") == 1
    assert found.manifest["launch"]["world_size"] == (2 if launcher == "torchrun" else 1)


@pytest.mark.processes
@pytest.mark.parametrize("notebook", ["once", pytest.param("again", marks=pytest.mark.slow)])
def test_a_notebook_launches_before_a_trainer_was_built(
    notebook: str, launch: Callable[[str], Launched]
) -> None:
    """Also twice, with the same numbers; after it that is refused."""
    assert "launched 2" in launch(notebook).printed


@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_launcher_gives_the_numbers_of_one_process(
    launcher: str, launch: Callable[[str], Launched]
) -> None:
    one, other = launch("python"), launch(launcher)
    assert one.metrics["test"].keys() == {"loss", "accuracy", "f1"}
    assert len(one.losses) == 1
    assert other.losses == pytest.approx(one.losses, abs=1e-5)
    assert other.metrics["baseline"] == one.metrics["baseline"]
    for split in ("validation", "test"):  # they differ in processes, and so in rounding
        assert other.metrics[split] == pytest.approx(one.metrics[split], abs=1e-5)


@pytest.mark.processes
def test_a_notebook_gives_the_numbers_of_torchrun(launch: Callable[[str], Launched]) -> None:
    assert launch("once").metrics == launch("torchrun").metrics


@pytest.mark.processes
def test_a_run_is_not_moved_while_a_rank_still_reads_its_model(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    finetune.train(
        str(ROOT / "examples" / "regression.py"), output_dir=str(tmp_path / "run"), max_steps=1
    )
    answer = command(
        "late.py",
        *("--output_dir", "run", "--max_steps", "1"),
        launcher="torchrun",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run.1" / "run.json").exists()
    met_when = {
        event: int((tmp_path / event).read_text())
        for event in ("read by rank 0", "read by rank 1", "moved by rank 0")
    }
    # whoever has met all others once more than they had when they read knows that they have read
    assert met_when["moved by rank 0"] > met_when["read by rank 1"] == met_when["read by rank 0"]
