"""A full disk: refused before training, told in one sentence, and nothing that was good is lost."""

import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from finetune import Run, cli
from finetune.training import checkpoint

pytestmark = pytest.mark.trains
RECIPE = '''
"""Reviews, good or bad; the disk is filled at a moment that the environment names."""

import os
from pathlib import Path

from transformers import TrainerCallback

from finetune import TextRecipe


def fill(place, left):
    """Leave so many bytes."""
    with open(Path(place) / "filler", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - left))


class Fill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if f"step {state.global_step}" == os.environ.get("FILL"):
            fill(args.output_dir + "/..", int(os.environ["LEFT"]))

    def on_train_end(self, args, state, control, **kwargs):
        if "train end" == os.environ.get("FILL"):
            fill(args.output_dir + "/..", int(os.environ["LEFT"]))

    def on_predict(self, args, state, control, **kwargs):
        if "predict" == os.environ.get("FILL"):
            fill(args.output_dir + "/..", int(os.environ["LEFT"]))


class Filling(TextRecipe):
    """`FILL` is `step N`, `train end` or `predict`, `LEFT` the bytes that stay free."""

    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=3, logging_steps=3,
        precision="fp32", disable_tqdm=True, save_strategy="epoch", save_total_limit=3,
        baseline=False,
    )

    def trainer_kwargs(self, model=None):
        return {**super().trainer_kwargs(model), "callbacks": [Fill()]}
'''
Finetune = Callable[..., int]
EPOCH = 9  # steps
SIZE = 24 << 20  # bytes


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> list[str]:
    """What is typed in every test: recipe, data and model."""
    directory = tmp_path_factory.mktemp("recipe")
    recipe, reviews = directory / "filling.py", directory / "reviews.csv"
    recipe.write_text(RECIPE, encoding="utf-8")
    lines = ["text,label"]
    for number in range(200):
        word, label = (("dull", "bad"), ("fine", "good"))[number % 2]
        lines.append(f"the food of place {number} was {word},{label}")
    reviews.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(recipe), "--dataset", str(reviews), "--model", tiny_model]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def finetune(
    words: list[str], monkeypatch: pytest.MonkeyPatch, one_thread: None, without_report: None
) -> Finetune:
    """The command line in this process; the disk is filled when it says, but for `left` bytes."""

    def run(output_dir: Path, *flags: str, fill: str = "", left: int = 0) -> int:
        monkeypatch.setenv("FILL", fill)
        monkeypatch.setenv("LEFT", str(left))
        return cli.main([*words, "--output_dir", str(output_dir), *flags])

    return run


def same_weights(one: Path, other: Path) -> bool:
    left, right = (load_file(each / "model.safetensors") for each in (one, other))
    return all(torch.equal(left[name], right[name]) for name in left)


def only_sentence(capfd: pytest.CaptureFixture[str]) -> str:
    """The only line on the standard error."""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def test_a_run_that_cannot_fit_is_refused_before_it_starts(
    finetune: Finetune, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"x" * (free - (1 << 20)))
    run = small_disk / "run"
    assert finetune(run) == 2
    told = only_sentence(capfd)
    expected = (
        rf"--output_dir {run}: about [\d.]+ MB are needed \(3 checkpoints of [\d.]+ kB at once "
        r"and the model\), 1\.0 MB are free; free some, or use "
        r".*--save_only_model true \([\d.]+ kB, not resumable\) or an --output_dir on a larger disk"
    )
    assert re.fullmatch(expected, told), told
    assert not run.exists()
    (small_disk / "filler").unlink()
    assert finetune(run) == 0


@pytest.mark.parametrize("left", [0, 4096, 300_000])
def test_a_disk_that_fills_in_a_save_takes_nothing_with_it(
    finetune: Finetune,
    small_disk: Path,
    tmp_path: Path,
    left: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = small_disk / "run"
    assert finetune(run, fill=f"step {2 * EPOCH}", left=left) == 1
    assert re.fullmatch(
        rf"the disk of {run} is full: writing checkpoint-18 takes [\d.]+ [kM]B, [\d.]+ \w+ are free"
        r"; checkpoint-9 and those before it are whole\. Free some space, then add --resume; "
        r"smaller: --save_total_limit 1, or --save_only_model true",
        only_sentence(capfd),
    )
    assert [path.name for path in checkpoint.committed(run)] == ["checkpoint-9"]
    assert checkpoint.problem(run / "checkpoint-9") is None
    assert not (run / ".uncommitted").exists()
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.failure is None) == ("failed", False)
    (small_disk / "filler").unlink()
    assert finetune(run, "--resume") == 0
    assert finetune(tmp_path / "whole") == 0
    assert same_weights(run, tmp_path / "whole")
    assert not list(run.glob(".reserve"))


@pytest.mark.faults
@pytest.mark.parametrize("left", [0, 100_000])
def test_a_disk_that_fills_before_the_model_is_saved_is_told(
    finetune: Finetune, small_disk: Path, left: int, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    assert finetune(run, fill="train end", left=left) == 1
    expected = (
        rf"the disk of {run} is full: writing the model takes [\d.]+ [kM]B, [\d.]+ \w+ are free"
    )
    assert re.match(expected, only_sentence(capfd))
    assert Run.load(run).manifest.status == "failed"
    (small_disk / "filler").unlink()
    assert finetune(run, "--resume") == 0
    assert Run.load(run).manifest.status == "finished"


@pytest.mark.faults
def test_a_limit_on_the_size_of_a_file_is_not_called_a_full_disk(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert finetune(tmp_path / "run") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "more than the size that one file may have (ulimit -f)" in only_sentence(capfd)


def test_a_disk_that_fills_at_the_end_is_told(
    finetune: Finetune, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    assert finetune(run, fill="predict") == 1
    assert f"the disk of {run} is full: writing the results failed" in only_sentence(capfd)
    assert Run.load(run).manifest.status == "failed"
    assert not (run / "predictions.parquet").exists()
    assert checkpoint.problem(checkpoint.committed(run)[0]) is None
    (small_disk / "filler").unlink()
    assert finetune(run, "--resume") == 0
    assert Run.load(run).manifest.status == "finished"
    assert len(Run.load(run).predictions) > 10


def test_a_run_is_finished_where_only_its_report_does_not_fit(
    finetune: Finetune,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from finetune.reporting import page

    def write(run: Run) -> Path:
        (run.path / "report.html").write_bytes(b"x" * SIZE)
        raise AssertionError("it fitted")

    monkeypatch.setattr(page, "write", write)
    run = small_disk / "run"
    assert finetune(run) == 1
    assert only_sentence(capfd) == (
        f"the disk of {run} is full: the run is finished and saved, but not its report. Free some "
        f"space, then: python -m finetune report {run}"
    )
    assert Run.load(run).manifest.status == "finished"


def test_a_disk_without_a_byte_at_the_start(
    finetune: Finetune, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    assert finetune(run) == 0
    capfd.readouterr()
    with (small_disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    before = (run / "run.json").read_bytes()
    assert finetune(run) == 2
    assert "are needed" in only_sentence(capfd)
    assert (run / "run.json").read_bytes() == before
