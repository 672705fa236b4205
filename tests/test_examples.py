"""The loops in `examples/`: the losses of `Trainer`, each row counted once, and exact resumption.

All that two processes do is done by one pair of workers, see `work_in_a_rank`.
"""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import transformers

from examples import accelerate_loop, native_ddp
from finetune.config.settings import Settings
from finetune.runtime import distributed
from tests.conftest import HANGS
from tests.warm import Servers, in_warm_processes

pytestmark = [pytest.mark.trains, pytest.mark.usefixtures("one_thread")]
EXAMPLES = Path(native_ddp.__file__).parent
LOOPS = {"native": native_ddp, "accelerate": accelerate_loop}
Losses = list[float]
Result = tuple[Losses, dict[str, float]]  # the loss of each step, and the last evaluation

# 144 rows are seven steps and four rows that are left out: twenty steps see two ends of an epoch
STEPS: dict[str, Any] = dict(global_batch_size=20, max_steps=20, warmup_steps=4, hidden_dropout=0.0)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    # some steps are clipped and some are not: if all were, that would hide a factor
    "adamw": dict(optim="adamw_torch", learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.3),
    # and here nothing hides one
    "sgd": dict(optim="sgd", learning_rate=0.3, max_grad_norm=0),
}
IN_TWO = [("adamw", 1), ("sgd", 2)]  # optimizer and accumulation, in two processes
EVALUATED = 13  # rows; neither a batch of 3 nor two processes divide them
EPOCHS: dict[str, Any] = dict(global_batch_size=20, num_train_epochs=2)  # with dropout
PER_EPOCH = 7


def choose(source: dict[str, str], output_dir: Path | str, **options: Any) -> Settings:
    """The settings of one training; they are the same for `Trainer` and for a loop."""
    given = dict(
        eval_samples=EVALUATED,
        per_device_eval_batch_size=3,
        eval_strategy="no",
        precision="fp32",
        train_sampling_strategy="random",
        logging_steps=1,
        disable_tqdm=True,
        output_dir=str(output_dir),
    )
    return Settings.from_keywords("yelp", {**source, **given, **options})


def train_with_trainer(chosen: Settings) -> Result:
    trainer = chosen.recipe.trainer(**chosen.training)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = trainer.evaluate()
    scores = {name: found[f"eval_{name}"] for name in ("loss", "accuracy")}
    return losses, {"rows": EVALUATED, **scores}


WAYS: dict[str, Callable[[Settings], Result]] = {
    "Trainer": train_with_trainer,
    **{name: loop.train for name, loop in LOOPS.items()},
}


class Stopped(Exception):
    pass


def resume_and_not(
    loop: ModuleType, source: dict[str, str], directory: Path
) -> tuple[Losses, Losses]:
    """The losses after the first epoch: of a training that was stopped in the second, and not."""
    whole, _ = loop.train(choose(source, directory / "whole", **EPOCHS))
    assert len(whole) == 2 * PER_EPOCH
    evaluations = iter([loop.evaluate])

    def evaluate(*arguments: Any) -> dict[str, float]:
        for real in evaluations:
            return real(*arguments)
        raise Stopped

    with mock.patch.object(loop, "evaluate", evaluate), pytest.raises(Stopped):
        loop.train(choose(source, directory / "stopped", **EPOCHS))
    chosen = choose(source, directory / "stopped", **EPOCHS, resume_from_checkpoint="last")
    return loop.train(chosen)[0], whole[PER_EPOCH:]


@dataclass
class InRank:
    """What one of two ranks found."""

    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    resumed: dict[str, tuple[Losses, Losses]] = field(default_factory=dict)


def work_in_a_rank(source: dict[str, str], directory: Path) -> InRank:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    distributed.join_process_group(None, 60, use_cpu=True)
    found = InRank()
    for optimizer, accumulation in IN_TWO:
        options = dict(OPTIMIZERS[optimizer], gradient_accumulation_steps=accumulation)
        chosen = choose(source, directory / optimizer, **STEPS, **options)
        for way, train in WAYS.items():
            found.results[way, optimizer] = train(chosen)
    for name, loop in LOOPS.items():
        found.resumed[name] = resume_and_not(loop, source, directory / name)
    distributed.leave()
    return found


@pytest.fixture(scope="module")
def source(uneven_reviews: Path, tiny_model: str) -> dict[str, str]:
    return {"dataset": str(uneven_reviews), "model": tiny_model}


@pytest.fixture(scope="module")
def of_trainer(
    source: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """What `Trainer` does in one process, by optimizer."""
    directory = tmp_path_factory.mktemp("trainer")
    return {
        optimizer: train_with_trainer(choose(source, directory, **STEPS, **options))
        for optimizer, options in OPTIMIZERS.items()
    }


@pytest.fixture(scope="module")
def in_two(
    source: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[InRank], Path]:
    """What two processes find, by rank, and where their snapshots are."""
    _ = choose(source, "runs").recipe.prepared  # so that both ranks find it in the cache
    directory = tmp_path_factory.mktemp("two")
    return in_warm_processes(2, work_in_a_rank, source, directory), directory


def assert_same(found: Result, expected: Result) -> None:
    (losses, scores), (expected_losses, expected_scores) = found, expected
    assert len(losses) == len(expected_losses) == STEPS["max_steps"]
    assert max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) < 1e-5
    assert scores == pytest.approx(expected_scores, rel=1e-5)
    assert scores["rows"] == EVALUATED


# ---- the losses, and the evaluation, of `Trainer` ------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_and_trainer_have_the_same_losses(
    name: str,
    optimizer: str,
    accumulation: int,
    source: dict[str, str],
    of_trainer: dict[str, Result],
    tmp_path: Path,
) -> None:
    losses, _ = of_trainer[optimizer]
    assert max(losses) - min(losses) > 0.01  # something was trained
    options = dict(OPTIMIZERS[optimizer], gradient_accumulation_steps=accumulation)
    found = LOOPS[name].train(choose(source, tmp_path, **STEPS, **options))
    assert_same(found, of_trainer[optimizer])


@pytest.mark.processes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_have_the_losses_of_trainer_in_one(
    way: str,
    optimizer: str,
    in_two: tuple[list[InRank], Path],
    of_trainer: dict[str, Result],
) -> None:
    for rank in in_two[0]:
        assert_same(rank.results[way, optimizer], of_trainer[optimizer])


# ---- snapshots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_that_is_resumed_ends_like_one_that_was_not_stopped(
    name: str, source: dict[str, str], tmp_path: Path
) -> None:
    resumed, whole = resume_and_not(LOOPS[name], source, tmp_path)
    assert resumed == whole
    ends = [torch.load(tmp_path / each / "snapshot.pt") for each in ("stopped", "whole")]
    assert ends[0].keys() == {"model", "optimizer", "schedule", "rng", "next_epoch"}
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.processes
@pytest.mark.parametrize("name", LOOPS)
def test_two_processes_resume_with_the_losses_of_an_uninterrupted_run(
    name: str, in_two: tuple[list[InRank], Path]
) -> None:
    for rank in in_two[0]:
        resumed, whole = rank.resumed[name]
        assert resumed == pytest.approx(whole, abs=1e-6)
    snapshot = torch.load(in_two[1] / name / "stopped" / "snapshot.pt")
    assert not torch.equal(snapshot["rng"][0][0], snapshot["rng"][1][0])
    assert "classifier.weight" in snapshot["model"]  # of the module, not of its wrapper
    assert snapshot["next_epoch"] == 2


@pytest.mark.parametrize("name", LOOPS)
def test_a_snapshot_is_resumed_by_its_path(
    name: str, source: dict[str, str], tmp_path: Path
) -> None:
    LOOPS[name].train(choose(source, tmp_path / "first", **{**EPOCHS, "num_train_epochs": 1}))
    path = tmp_path / "first" / "snapshot.pt"
    losses, _ = LOOPS[name].train(
        choose(source, tmp_path / "second", **EPOCHS, resume_from_checkpoint=str(path))
    )
    assert len(losses) == PER_EPOCH
    assert torch.load(tmp_path / "second" / "snapshot.pt")["next_epoch"] == 2


# ---- the command line ----------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["native_ddp", "accelerate_loop"])
def test_a_loop_has_fewer_than_155_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 155


@pytest.mark.parametrize("name", LOOPS)
def test_pictures_have_a_collator_and_a_loss_of_their_own(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mnist", "--embedded", "--train_samples", "130", "--eval_samples", "9"]
    assert LOOPS[name].main(*words) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["step 1 of 2", "step 2 of 2", "epoch 1"]
    assert said[-1].startswith("epoch 1: rows 9, loss ")
    assert (here / "runs" / f"mnist-{name}" / "snapshot.pt").exists()
    assert not (here / "runs" / "mnist").exists()


@pytest.mark.parametrize("name", LOOPS)
def test_a_regression_has_no_accuracy(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(EXAMPLES / "regression.py"), "--rows", "100", "--num_train_epochs", "1"]
    assert LOOPS[name].main(*words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("epoch 1: rows ")
    assert "loss" in last
    assert "accuracy" not in last


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["yelp", "--lerning_rate", "1"], "unknown option --lerning_rate; did you mean"),
        (["yelpp"], "unknown recipe 'yelpp'; did you mean 'yelp'?"),
        ([], "unknown recipe ''"),
        (["mnist", "--embedded", "--train_samples", "50"], "fewer training rows than"),
        (
            ["mnist", "--embedded", "--train_samples", "90", "--resume_from_checkpoint", "last"],
            "snapshot.pt is not a snapshot of world size 1",
        ),
    ],
)
def test_a_mistake_is_one_line(
    name: str, words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LOOPS[name].main(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert said in output.err
    assert output.err.count("\n") == 1


@pytest.mark.processes
def test_torchrun_starts_a_loop(source: dict[str, str], tmp_path: Path, warm: Servers) -> None:
    flags = [word for name, value in source.items() for word in (f"--{name}", value)]
    flags += ["--train_sampling_strategy", "group_by_length", "--max_steps", "2"]
    finished = subprocess.run(
        warm.torchrun(["yelp", *flags], os.environ, module="examples.native_ddp"),
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    grouped, first, second, evaluated = finished.stdout.splitlines()  # once, from rank 0
    assert grouped.endswith("this loop does not group them by length")
    assert first.startswith("step 1 of 2: loss ")
    assert second.startswith("step 2 of 2: loss ")
    assert evaluated.startswith("epoch 1: rows 16, loss ")
    assert (tmp_path / "runs" / "yelp-native" / "snapshot.pt").exists()
