"""A run that goes on from a checkpoint is the run that was not stopped, whatever its settings."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from finetune import Run
from finetune.training import checkpoint
from tests.faults.conftest import EPOCH, Faulty, assert_same, equal, history

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.faults]
CONFIGURATIONS = {
    "the recipe's": (),
    "accumulation": ("--gradient_accumulation_steps", "4"),
    "grouped by length": ("--train_sampling_strategy", "group_by_length"),
    "a number of tokens": ("--max_tokens_per_batch", "256"),
    "bf16": ("--precision", "bf16"),
    "cosine with warmup": ("--lr_scheduler_type", "cosine", "--warmup_steps", "4"),
    "on a plateau": ("--lr_scheduler_type", "reduce_lr_on_plateau"),
    "adafactor": ("--optim", "adafactor"),
    "momentum, clipped": ("--optim", "sgd", "--optim_args", "momentum=0.9", "--max_grad_norm", "1"),
    "workers": ("--dataloader_num_workers", "2"),
    "recomputed": ("--gradient_checkpointing", "true"),
    "the library's kernels": ("--cpu_kernels", "off"),
    "the best at the end": ("--save_total_limit", "1"),
    "smoothed": ("--label_smoothing_factor", "0.1", "--logging_first_step", "true"),
}


STOPS = (*("--learning_rate", "1e-5", "--metric_for_best_model", "accuracy"),)
STOPS += ("--early_stopping_patience", "2", "--num_train_epochs", "4")


def test_a_run_that_stopped_early_and_was_killed_at_its_end_trains_no_further(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(whole(*STOPS), tmp_path / "run")
    assert 0 < checkpoint.number(checkpoint.list_checkpoints(run)[0]) < 4 * EPOCH
    Run.load(run).update(status="running", stopped_early=None)
    (run / "metrics.json").unlink()
    assert faulty(run, *STOPS, "--resume") == 0
    assert_same(run, whole(*STOPS))
    assert Run.load(run).manifest.stopped_early == Run.load(whole(*STOPS)).manifest.stopped_early


def test_a_finished_run_that_stopped_early_and_kept_only_its_best_is_shown(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = (*STOPS, "--save_total_limit", "1")
    run = shutil.copytree(whole(*flags), tmp_path / "run")
    assert [path.name for path in checkpoint.list_checkpoints(run)] == ["checkpoint-3"]
    before = (run / "run.json").read_bytes()
    assert faulty(run, *flags, "--resume") == 0
    assert "nothing is left to train" in capfd.readouterr().out
    assert (run / "run.json").read_bytes() == before


def test_a_finished_run_with_more_epochs_is_resumed_where_it_was_stopped_before_it_saved(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """By the same command, as a launcher or a queue starts it again."""
    run = shutil.copytree(whole(), tmp_path / "run")
    more = ("--num_train_epochs", "3", "--resume")
    assert faulty(run, *more, fault="start,SIGTERM") == 75
    assert Run.load(run).manifest.status == "interrupted"
    assert faulty(run, *more) == 0
    assert Run.load(run).manifest.steps == 3 * EPOCH


@pytest.mark.parametrize("step", [5, EPOCH])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_clean_resume(
    faulty: Faulty, whole: Callable[..., Path], name: str, step: int, tmp_path: Path
) -> None:
    """From a checkpoint in the middle of an epoch, and from one at its end."""
    flags, run = CONFIGURATIONS[name], tmp_path / "run"
    assert faulty(run, *flags, fault=f"step {step - 1},SIGTERM") == 75
    assert Run.load(run).manifest.status == "interrupted"
    assert checkpoint.number(checkpoint.list_checkpoints(run)[0]) == step
    assert faulty(run, *flags, "--resume") == 0
    assert_same(run, whole(*flags))


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--save_steps", "6"), "batch 1,SIGTERM"),
        (("--save_strategy", "no", "--load_best_model_at_end", "false"), "batch 1,SIGTERM"),
    ],
)
def test_an_evaluation_that_was_stopped_and_that_no_save_follows(
    faulty: Faulty, whole: Callable[..., Path], flags: Sequence[str], fault: str, tmp_path: Path
) -> None:
    """It draws a random number, which no later checkpoint has; the masks of dropout follow."""
    run = tmp_path / "run"
    assert faulty(run, *flags, fault=fault) == 75
    assert faulty(run, *flags, "--resume") == 0
    weights = [load_file(each / "model.safetensors") for each in (run, whole(*flags))]
    assert equal(*weights)
    assert history(run)[:-1] == history(whole(*flags))[:-1]
