"""`make gpu-check`: its comparisons, on real runs of one and two processes on the CPU.

What is left to a machine with GPUs is the launches on them.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import differences, gpu_check
from benchmarks.differences import Incomparable
from benchmarks.gpu_check import CHECKS, CPU, SAME, Check, Launch, Launcher, Line
from tests.conftest import ROOT

TWO = Launch("two", "DistributedDataParallel", gpus=0, processes=2, stages=gpu_check.INTERRUPTED)
RECIPE = "from finetune import TextRecipe\n\nclass Mine(TextRecipe):\n    'Mine.'\n"


@pytest.fixture(scope="module")
def launcher(
    tmp_path_factory: pytest.TempPathFactory, uneven_reviews: Path, tiny_model: str
) -> Launcher:
    directory = tmp_path_factory.mktemp("check")
    (directory / "mine.py").write_text(RECIPE)
    data = (str(directory / "mine.py"), f"--dataset={uneven_reviews}", f"--model={tiny_model}")
    return Launcher(directory, data=data)


@pytest.fixture(scope="module")
def run(launcher: Launcher) -> Path:
    return launcher.train(CPU)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def edit(run: Path, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    content = differences.manifest(run)
    change(content)
    (run / "run.json").write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_that_were_interrupted_are_verified(launcher: Launcher) -> None:
    lines = gpu_check.trained(launcher, TWO, CPU, SAME)

    assert [line.what for line in lines] == ["losses", "weights", "rows"]
    assert all(line.verified for line in lines), lines


@pytest.mark.processes
def test_steps_change_the_weights_by_far_more_than_is_tolerated(run: Path) -> None:
    """So that a factor in the gradient, as the stock trainer has it in two processes, fails."""
    assert differences.in_weights(run / "checkpoint-10", run) > 20 * SAME["weights"]


@pytest.mark.processes
def test_a_training_that_explodes_is_verified_to_stop(launcher: Launcher) -> None:
    launch = replace(CPU, name="explodes", flags=gpu_check.EXPLODES)

    assert all(line.verified for line in gpu_check.diverged(launcher, launch))
    assert not (launcher.directory / "explodes" / "model.safetensors").exists()


@pytest.mark.slow  # acceptance: two processes write what one writes
@pytest.mark.processes
def test_predictions_of_two_processes_are_those_of_one(launcher: Launcher) -> None:
    one, two = (Launch(f"{count}-predicts", gpus=0, processes=count, mode="") for count in (0, 2))

    (line,) = gpu_check.predicted(launcher, two, one, CPU)

    assert line.verified
    assert len(pd.read_parquet(launcher.directory / "2-predicts.parquet")) == 40


@pytest.mark.processes
def test_a_run_differs_by_what_was_changed_in_it(run: Path, copy: Path) -> None:
    compared = (differences.in_losses, differences.in_weights, differences.in_rows)
    assert [each(copy, run) for each in compared] == [0, 0, 0]

    def raise_a_loss(content: dict) -> None:  # type: ignore[type-arg]
        content["history"][7]["loss"] += 0.25

    edit(copy, raise_a_loss)
    assert differences.in_losses(copy, run) == pytest.approx(0.25)

    weights = load_file(copy / "model.safetensors")
    save_file({name: value * 2 for name, value in weights.items()}, copy / "model.safetensors")
    assert differences.in_weights(copy, run) == pytest.approx(1)

    table = pd.read_parquet(copy / "predictions.parquet")
    probability = next(name for name in table if table[name].dtype.kind == "f")
    table.loc[3, probability] += 0.5
    table.to_parquet(copy / "predictions.parquet")
    assert differences.in_rows(copy, run) == pytest.approx(0.5)


@pytest.mark.processes
def test_runs_that_did_not_do_the_same_are_not_compared(run: Path, copy: Path) -> None:
    edit(copy, lambda content: content.update(history=content["history"][3:]))
    with pytest.raises(Incomparable, match="losses of the steps"):
        differences.in_losses(copy, run)

    weights = load_file(copy / "model.safetensors")
    name, value = weights.popitem()
    save_file({**weights, "another": value}, copy / "model.safetensors")
    with pytest.raises(Incomparable, match=f"other names or shapes: .*{re.escape(name)}"):
        differences.in_weights(copy, run)

    table = pd.read_parquet(copy / "predictions.parquet")
    table.iloc[::-1].to_parquet(copy / "predictions.parquet", index=False)
    with pytest.raises(Incomparable, match="column 'id' has other values or another order"):
        differences.in_rows(copy, run)
    table[:-1].to_parquet(copy / "predictions.parquet")
    with pytest.raises(Incomparable, match="rows and columns"):
        differences.in_rows(copy, run)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"gpus": 1}, "device cpu, expected cuda"),
        ({"mode": "DataParallel"}, "mode one device, expected DataParallel"),
        ({"processes": 2}, "processes 1, expected 2"),
        ({"precision": "bf16"}, "precision fp32, expected bf16"),
        ({"stages": gpu_check.INTERRUPTED}, "resumed False, expected True"),
    ],
)
def test_a_run_that_was_made_in_another_way_is_refused(
    other: dict[str, object], message: str, run: Path
) -> None:
    gpu_check.refuse_other(CPU, run)
    with pytest.raises(Incomparable, match=message):
        gpu_check.refuse_other(replace(CPU, **other), run)  # type: ignore[arg-type]


@pytest.mark.processes
def test_the_share_of_the_peak_is_that_of_the_manifest(copy: Path) -> None:
    edit(copy, lambda content: content["speed"].update(share_of_peak=0.25))
    assert gpu_check.share_line(copy) == Line("25.0% of the measured peak", 0.0, 0.0)

    edit(copy, lambda content: content["speed"].pop("share_of_peak"))
    with pytest.raises(Incomparable, match="nan"):
        gpu_check.share_line(copy)


@pytest.mark.processes
def test_a_command_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(Incomparable, match=r"exit status 2\n    error: unknown recipe or sub"):
        Launcher(tmp_path, data=["yepl"]).train(CPU)


def reported(checks: list[Check], gpus: int) -> tuple[int, list[str]]:
    lines: list[str] = []
    launcher = Launcher(Path("nowhere"), [str(number) for number in range(gpus)])
    return gpu_check.report(checks, launcher, lines.append), lines


def test_the_status_is_1_if_a_check_failed() -> None:
    def fail(launcher: Launcher, count: int) -> list[Line]:
        raise Incomparable("other rows")

    good = Check("good", 1, lambda launcher, count: [Line("rows", 0.5, 0.5)])
    bad = Check("bad", 1, lambda launcher, count: [Line("rows", 0.6, 0.5)])
    no_number = Check("no number", 1, lambda launcher, count: [Line("rows", math.nan, 0.5)])

    assert reported([good], 1)[0] == 0
    for check in (bad, no_number, Check("broken", 1, fail)):
        status, lines = reported([check, good], 1)
        assert status == 1
        assert "failed" in lines[1]
        assert lines[2].endswith("verified")


@pytest.mark.parametrize(("gpus", "taken"), [(0, 0), (1, 1), (2, 2), (3, 2), (8, 8)])
def test_checks_that_need_more_gpus_are_listed_as_unverified(gpus: int, taken: int) -> None:
    counts: list[int] = []
    checks = [
        Check(f"on {fewest}", fewest, lambda launcher, count: counts.append(count) or [])
        for fewest in (1, 2)
    ]

    status, lines = reported(checks, gpus)

    assert status == 0
    assert counts == [taken] * min(gpus, 2)
    unverified = [line for line in lines if line.startswith("  on")]
    assert len(unverified) == 2 - min(gpus, 2)


def test_without_a_gpu_every_check_is_listed_by_name() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    title, *names = done.stdout.splitlines()
    assert title == "unverified, on a machine with 0 GPUs:"
    assert [name.strip().rpartition(" (needs ")[0] for name in names] == [
        check.name for check in CHECKS
    ]


def test_readme_names_what_is_unverified() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    named = re.search(r"Unverified on GPUs: ([^.]+)\. `make gpu-check`", text)

    assert named is not None
    assert named[1].split("; ") == [check.name for check in CHECKS]
    assert len({check.name for check in CHECKS}) == len(CHECKS) >= 9
