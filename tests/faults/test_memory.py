"""Memory that runs out: the batch and what helps are told, and what cannot fit is refused."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file

from finetune import Run, cli

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
RECIPE = '''
"""Reviews, good or bad; an allocation fails where the environment says."""

import os

import torch

from finetune import TextRecipe


class Large(TextRecipe):
    """`FAILS` is what allocates: torch or python; `IN` train or eval; `AT` the micro-batch."""

    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=1, logging_steps=3,
        precision="fp32", disable_tqdm=True, baseline=False,
    )

    def adapt(self, model, arguments):
        self.calls = 0
        model.register_forward_pre_hook(self.allocate, with_kwargs=True)
        return model

    def allocate(self, model, args, inputs):
        here = os.environ.get("RANK", "0") == os.environ.get("SMALL_RANK", "0")
        rows = len(inputs["input_ids"])
        if here and model.training and rows > int(os.environ.get("MOST_ROWS", 99)):
            torch.empty(1 << 50)
        self.calls += model.training
        phase = "train" if model.training else "eval"
        if phase == os.environ.get("IN") and self.calls >= int(os.environ["AT"]):
            if os.environ["FAILS"] == "torch":
                torch.empty(1 << 50)
            bytearray(1 << 60)
'''
Finetune = Callable[..., int]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> list[str]:
    """What is typed in every test: recipe, data and model."""
    directory = tmp_path_factory.mktemp("recipe")
    recipe, reviews = directory / "large.py", directory / "reviews.csv"
    recipe.write_text(RECIPE, encoding="utf-8")
    lines = ["text,label"]
    for number in range(200):
        word, label = (("dull", "bad"), ("fine", "good"))[number % 2]
        lines.append(f"the food of place {number} was {' '.join([word] * (1 + number))},{label}")
    reviews.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(recipe), "--dataset", str(reviews), "--model", tiny_model, "--max_length", "60"]


@pytest.fixture
def finetune(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Finetune:
    """The command line in this process; an allocation fails in a phase."""

    def run(
        output_dir: Path, *flags: str, fails: str = "torch", phase: str = "", at: int = 1
    ) -> int:
        for name, value in {"FAILS": fails, "IN": phase, "AT": str(at)}.items():
            monkeypatch.setenv(name, value)
        return cli.main([*words, "--output_dir", str(output_dir), *flags])

    return run


def only_sentence(capfd: pytest.CaptureFixture[str]) -> str:
    """The only line on the standard error."""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize("fails", ["torch", "python"])
def test_a_failed_allocation_names_the_batch_and_what_helps(
    finetune: Finetune, tmp_path: Path, fails: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    accumulated = ("--gradient_accumulation_steps", "2")
    assert finetune(run, *accumulated, fails=fails, phase="train", at=6) == 1
    told = only_sentence(capfd)
    match = re.fullmatch(
        r"out of memory on the CPU at step 3: a micro-batch of 8 x (\d+) \(rows x padded length, "
        r"the longest of them row \d+ with (\d+) tokens\)\. Try --gradient_accumulation_steps 4 "
        r"\(the same global batch\), --gradient_checkpointing true, --precision bf16, a smaller "
        r"--max_length, or a smaller --global_batch_size",
        told,
    )
    assert match is not None, told
    padded, longest = map(int, match.groups())
    assert 8 < longest <= padded <= 64
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.failure) == ("failed", told)


def test_in_an_evaluation_its_batch_is_named(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(tmp_path / "run", phase="eval") == 1
    assert only_sentence(capfd) == (
        "out of memory on the CPU in an evaluation, with batches of 32 rows: try "
        "--per_device_eval_batch_size 16"
    )


def test_what_cannot_fit_is_refused(
    finetune: Finetune,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    small = SimpleNamespace(total=1 << 18, available=1 << 17, percent=50.0)
    with monkeypatch.context() as machine:
        machine.setattr(psutil, "virtual_memory", lambda: small)
        machine.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=0))
        assert finetune(run) == 2
    assert re.fullmatch(
        r"the training needs at least 0\.\d MiB of memory on the CPU \(weights, gradients, "
        r"optimizer and a micro-batch of [\d,]+ tokens\), and there are 0\.2 MiB: try "
        r"--gradient_accumulation_steps 2 \(the same global batch\), --gradient_checkpointing "
        r"true, --precision bf16, a smaller --max_length, or a smaller --global_batch_size, or a "
        r"smaller --model",
        told := only_sentence(capfd),
    ), told
    assert not run.exists()
    assert finetune(run) == 0


# ---- --auto_find_batch_size ----------------------------------------------------------------------


def learned(run: Path) -> list[object]:
    """What was logged and measured, without the speed."""
    speed = ("runtime", "per_second", "flos", "memory_mib")
    history = [
        {name: value for name, value in entry.items() if not name.endswith(speed)}
        for entry in Run.load(run).manifest.history
    ]
    return [history, Run.load(run).metrics.test, Run.load(run).predictions.to_dict()]


def assert_same_training(one: Path, other: Path) -> None:
    left, right = (load_file(each / "model.safetensors") for each in (one, other))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert learned(one) == learned(other)
    arguments = [Run.load(each).manifest.arguments for each in (one, other)]
    for name in ("global_batch_size", "gradient_accumulation_steps", "per_device_train_batch_size"):
        assert arguments[0][name] == arguments[1][name]


@pytest.mark.parametrize("batch", ["--global_batch_size", "--per_device_train_batch_size"])
def test_the_accumulation_that_fits_is_found(
    finetune: Finetune,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found, expected = tmp_path / "found", tmp_path / "expected"
    monkeypatch.setenv("MOST_ROWS", "4")
    assert finetune(found, batch, "16", "--auto_find_batch_size") == 0
    assert (
        "--auto_find_batch_size: 4 accumulation steps instead of 1, as the micro-batches do not fit"
        " in memory; the global batch is the same" in capfd.readouterr().out
    )
    chosen = ("--global_batch_size", "16", "--gradient_accumulation_steps", "4")
    assert finetune(expected, *chosen) == 0
    assert_same_training(found, expected)


def test_where_all_fits_nothing_is_changed(finetune: Finetune, tmp_path: Path) -> None:
    assert finetune(tmp_path / "found", "--auto_find_batch_size") == 0
    assert finetune(tmp_path / "expected") == 0
    assert_same_training(tmp_path / "found", tmp_path / "expected")


def test_not_even_a_row_may_fit(
    finetune: Finetune,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MOST_ROWS", "0")
    assert finetune(tmp_path / "run", "--auto_find_batch_size") == 1
    assert "not even a micro-batch of one row fits" in only_sentence(capfd)
    assert not (tmp_path / "run").exists()


@pytest.mark.faults
@pytest.mark.processes
def test_the_processes_find_the_same_accumulation(
    command: Callable[..., "subprocess.CompletedProcess[str]"],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which one has less memory than the other."""
    found, expected = tmp_path / "found", tmp_path / "expected"
    monkeypatch.setenv("MOST_ROWS", "4")
    monkeypatch.setenv("SMALL_RANK", "1")
    for run, flags in (
        (found, ("--auto_find_batch_size",)),
        (expected, ("--gradient_accumulation_steps", "2")),
    ):
        done = command(*words, "--output_dir", run, *flags, launcher="torchrun")
        assert done.returncode == 0, done.stderr
    assert_same_training(found, expected)
