"""Test that a resumed run equals an uninterrupted one with various settings."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from finetune import Run
from tests.acceptance.conftest import flags
from tests.acceptance.test_training import (
    EPOCH,
    Train,
    assert_identical,
    checkpoints,
    equal,
    numbers,
)

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.faults]
Whole = Callable[..., Path]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the recipe's": {},
    "accumulation": dict(gradient_accumulation_steps=4),
    "grouped by length": dict(train_sampling_strategy="group_by_length"),
    "a number of tokens": dict(max_tokens_per_batch=256),
    "bf16": dict(precision="bf16"),
    "cosine with warmup": dict(lr_scheduler_type="cosine", warmup_steps=4),
    "on a plateau": dict(lr_scheduler_type="reduce_lr_on_plateau"),
    "adafactor": dict(optim="adafactor"),
    "momentum, clipped": dict(optim="sgd", optim_args="momentum=0.9", max_grad_norm=1),
    "workers": dict(dataloader_num_workers=2),
    "recomputed": dict(gradient_checkpointing=True),
    "the library's kernels": dict(cpu_kernels="off"),
    "the best at the end": dict(save_total_limit=1),
    "smoothed": dict(label_smoothing_factor=0.1, logging_first_step=True),
}
STOPS: dict[str, Any] = dict(learning_rate=1e-5, metric_for_best_model="accuracy")
STOPS |= dict(early_stopping_patience=2, num_train_epochs=4)


def test_a_run_that_stopped_early_and_was_killed_does_not_train_further(
    train: Train, whole: Whole, tmp_path: Path
) -> None:
    run = shutil.copytree(whole(**STOPS), tmp_path / "run")
    assert checkpoints(run)[-1] != f"checkpoint-{4 * EPOCH}"
    Run.load(run).update(status="running", stopped_early=None)
    (run / "metrics.json").unlink()
    assert train(run, *flags(**STOPS), "--resume").status == 0
    assert_identical(run, whole(**STOPS))
    assert Run.load(run).manifest.stopped_early == Run.load(whole(**STOPS)).manifest.stopped_early


def test_a_finished_run_that_stopped_early_and_kept_only_its_best_is_shown(
    train: Train, whole: Whole, tmp_path: Path
) -> None:
    options = STOPS | dict(save_total_limit=1)
    run = shutil.copytree(whole(**options), tmp_path / "run")
    assert checkpoints(run) == ["checkpoint-3"]
    before = (run / "run.json").read_bytes()
    done = train(run, *flags(**options), "--resume")
    assert done.status == 0
    assert "nothing is left to train" in done.stdout
    assert (run / "run.json").read_bytes() == before


def test_a_finished_run_with_more_epochs_is_resumed_where_it_was_stopped_before_it_saved(
    train: Train, whole: Whole, tmp_path: Path
) -> None:
    """The same command is started again, as by a launcher or a queue."""
    run = shutil.copytree(whole(), tmp_path / "run")
    more = ("--num_train_epochs", "3", "--resume")
    assert train(run, *more, fault="start,SIGTERM").status == 75
    assert Run.load(run).manifest.status == "interrupted"
    assert train(run, *more).status == 0
    assert Run.load(run).manifest.steps == 3 * EPOCH


@pytest.mark.parametrize("step", [5, EPOCH])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_clean_resume(train: Train, whole: Whole, name: str, step: int, tmp_path: Path) -> None:
    """A run is resumed from a checkpoint in the middle and one at the end of an epoch."""
    options, run = CONFIGURATIONS[name], tmp_path / "run"
    assert train(run, *flags(**options), fault=f"step {step},SIGTERM").status == 75
    assert Run.load(run).manifest.status == "interrupted"
    assert checkpoints(run)[-1] == f"checkpoint-{step}"
    assert train(run, *flags(**options), "--resume").status == 0
    assert_identical(run, whole(**options))


@pytest.mark.parametrize(
    "options",
    [dict(save_steps=6), dict(save_strategy="no", load_best_model_at_end=False)],
)
def test_an_evaluation_that_was_stopped_and_that_no_save_follows(
    train: Train, whole: Whole, options: dict[str, Any], tmp_path: Path
) -> None:
    """It draws a random number that is in no checkpoint; dropout masks depend on it."""
    run = tmp_path / "run"
    assert train(run, *flags(**options), fault="batch 1,SIGTERM").status == 75
    assert train(run, *flags(**options), "--resume").status == 0
    expected = whole(**options)
    assert equal(*(load_file(path / "model.safetensors") for path in (run, expected)))
    assert numbers(Run.load(run)) == numbers(Run.load(expected))
