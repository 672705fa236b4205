"""A run that goes on from a checkpoint is the run that was not stopped, whatever its settings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune import Run
from finetune.training import checkpoint
from tests.faults.conftest import EPOCH, Faulty, assert_same

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


@pytest.mark.parametrize("step", [5, EPOCH])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_clean_resume(
    faulty: Faulty, whole: Callable[..., Path], name: str, step: int, tmp_path: Path
) -> None:
    """From a checkpoint in the middle of an epoch, and from one at its end."""
    flags, run = CONFIGURATIONS[name], tmp_path / "run"
    assert faulty(run, *flags, fault=f"step {step - 1},SIGTERM") == 75
    assert Run.load(run).manifest.status == "interrupted"
    assert checkpoint.number(checkpoint.committed(run)[0]) == step
    assert faulty(run, *flags, "--resume") == 0
    assert_same(run, whole(*flags))
