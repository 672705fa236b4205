"""The same embedded recipe under every launcher: the same numbers in the same shape."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import finetune
from tests.conftest import ROOT, Command

OPTIONS = {
    "embedded": True,
    "train_samples": 160,
    "eval_samples": 60,
    "max_length": 32,
    "logging_steps": 5,
    "hidden_dropout": 0.0,
    "precision": "fp32",
}
FLAGS = ["sentiment", *(word for name, value in OPTIONS.items() for word in (f"--{name}", value))]
NOTEBOOK = """
import json, sys
import finetune

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    forked = finetune.launch("sentiment", num_processes=2, output_dir="forked", **options)
    again = finetune.launch("sentiment", num_processes=2, output_dir="again", **options)
    assert forked.metrics == again.metrics
    options |= {"max_steps": 2}
    finetune.train("mine.py", output_dir="here", **options)  # now devices are initialised
    fresh = finetune.launch("mine.py", num_processes=2, output_dir="fresh", **options)
    assert fresh.manifest["launch"]["world_size"] == 2
    print("launched", forked.manifest["launch"]["world_size"])
"""

LATE = '''
import os, time
from examples.regression import Regression
from safetensors.torch import load_model

class Late(Regression):
    """The regression toy, trained further; rank 1 is late to read what it starts from."""

    def build_model(self, labels):
        model = super().build_model(labels)
        time.sleep(2 * int(os.environ["RANK"]))
        load_model(model, "run/model.safetensors")
        return model
'''


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launchers")


@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["python", "torchrun", "accelerate"])
def test_command_line(launcher: str, directory: Path, command: Command) -> None:
    answer = command(*FLAGS, "--output_dir", launcher, launcher=launcher, cwd=directory)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("rows a step") == 1
    assert answer.stdout.count("test set,") == 1
    manifest = json.loads((directory / launcher / "run.json").read_text())
    assert manifest["launch"]["world_size"] == (2 if launcher == "torchrun" else 1)


@pytest.mark.processes
def test_launch_twice_and_after_a_trainer_was_built(directory: Path) -> None:
    (directory / "notebook.py").write_text(NOTEBOOK)
    shutil.copy(ROOT / "recipes" / "sentiment.py", directory / "mine.py")
    answer = subprocess.run(
        [sys.executable, "notebook.py", json.dumps(OPTIONS)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "launched 2" in answer.stdout


@pytest.mark.processes
def test_the_numbers_are_the_same(directory: Path) -> None:
    launches = ["python", "torchrun", "accelerate", "forked"]
    metrics = {
        name: json.loads((directory / name / "metrics.json").read_text()) for name in launches
    }
    losses = {
        name: [
            entry["loss"]
            for entry in json.loads((directory / name / "run.json").read_text())["history"]
            if "loss" in entry
        ]
        for name in launches
    }
    assert metrics["torchrun"] == metrics["forked"]
    assert len(losses["python"]) == 1
    assert losses["torchrun"] == pytest.approx(losses["python"], abs=1e-5)
    one = metrics["python"]
    assert one["test"].keys() == {"loss", "accuracy", "f1"}
    for other in ("torchrun", "accelerate"):  # they differ in threads, and so in rounding
        assert metrics[other]["baseline"] == one["baseline"]
        for split in ("validation", "test"):
            assert metrics[other][split] == pytest.approx(one[split], abs=1e-5)


@pytest.mark.processes
def test_a_run_is_not_moved_while_a_rank_still_reads_its_model(
    directory: Path, command: Command
) -> None:
    (directory / "late.py").write_text(LATE)
    flags = ["--output_dir", "run", "--num_train_epochs", "1"]
    finetune.train(
        str(ROOT / "examples" / "regression.py"), output_dir=str(directory / "run"), max_steps=1
    )
    answer = command(
        "late.py",
        *flags,
        launcher="torchrun",
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert answer.returncode == 0, answer.stderr
    assert (directory / "run.1" / "run.json").exists()
