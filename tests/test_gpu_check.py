"""`make gpu-check`: what it refuses to compare, its verdicts, and what it lists as unverified."""

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import gpu_check
from benchmarks.gpu_check import CHECKS, CPU, SAME, Incomparable, Launch, Launcher
from tests.conftest import ROOT

TWO = Launch("two", "DistributedDataParallel", gpus=0, processes=2, stages=gpu_check.INTERRUPTED)
RECIPE = "from finetune import TextRecipe\n\nclass Mine(TextRecipe):\n    'Mine.'\n"


@pytest.mark.slow
def test_launches_on_the_cpu_are_compared(
    tmp_path: Path, uneven_reviews: Path, tiny_model: str
) -> None:
    """Two processes that were interrupted agree with one; other weights and launches do not."""
    (tmp_path / "mine.py").write_text(RECIPE)
    data = (str(tmp_path / "mine.py"), f"--dataset={uneven_reviews}", f"--model={tiny_model}")
    launcher = Launcher(tmp_path, data=data)
    lines = gpu_check.trained(TWO, CPU, SAME)(launcher, 0)
    assert [name for name, *_ in lines] == ["losses", "weights", "rows"]
    assert all(difference <= tolerance for _, difference, tolerance in lines), lines
    run = launcher.train(CPU)
    assert gpu_check.weight_difference(run / "checkpoint-10", run) > 20 * SAME["weights"]
    for other, message in (
        ({"gpus": 1}, "device cpu, expected cuda"),
        ({"processes": 2}, "processes 1, expected 2"),
        ({"stages": gpu_check.INTERRUPTED}, "resumed False, expected True"),
    ):
        with pytest.raises(Incomparable, match=message):
            gpu_check.refuse_other(replace(CPU, **other), run)  # type: ignore[arg-type]
    explodes = replace(CPU, name="diverges", flags=gpu_check.EXPLODES)
    with pytest.raises(Incomparable):
        launcher.train(explodes)
    assert gpu_check.read_manifest(tmp_path / "diverges")["status"] == "diverged"
    weights = load_file(run / "model.safetensors")
    name, value = weights.popitem()
    save_file({**weights, "another": value}, run / "model.safetensors")
    with pytest.raises(Incomparable, match=f"other names or shapes: .*{re.escape(name)}"):
        gpu_check.weight_difference(run, launcher.train(TWO))


def reported(measured: dict[str, float], gpus: int) -> tuple[int, list[str]]:
    lines: list[str] = []
    checks = {
        name: (1 + (name == "two"), lambda launcher, count, value=value: [("rows", value, 0.5)])
        for name, value in measured.items()
    }
    launcher = Launcher(Path("nowhere"), [str(number) for number in range(gpus)])
    return gpu_check.report(checks, launcher, lines.append), lines


@pytest.mark.parametrize(("value", "status"), [(0.5, 0), (0.6, 1), (math.nan, 1)])
def test_the_status_is_1_if_a_check_failed(value: float, status: int) -> None:
    assert reported({"one": value}, 1)[0] == status


def test_what_needs_more_gpus_or_any_is_listed_as_unverified() -> None:
    assert reported({"one": 0.1, "two": 0.1}, 1)[1][-2:] == [
        "unverified, on a machine with 1 GPU:",
        "  two (needs 2 GPUs)",
    ]
    printed = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.strip().rpartition(" (needs ")[0] for line in printed.splitlines()[1:]] == [
        *CHECKS
    ]
