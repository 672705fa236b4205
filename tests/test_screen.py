"""What the start block says of the devices; several GPUs are told, not had, on this machine."""

from types import SimpleNamespace

import pytest

from finetune.cli import screen
from finetune.runtime import distributed
from finetune.training.arguments import ArgumentValues, FinetuneArguments, resolved


def draft(**given: object) -> ArgumentValues:
    return resolved({"output_dir": "unused", **given})


def test_several_gpus_and_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "devices_in_training", lambda use_cpu: 4)
    arguments = draft(global_batch_size=32)
    arguments.use_cpu = False
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: SimpleNamespace(type="x"))
    lines = screen._device(arguments, "python -m finetune yelp --seed 1")
    assert "DataParallel on 4 GPUs, 1 process" in lines[0]
    assert lines[1:] == [
        "faster: torchrun --nproc_per_node=4 -m finetune yelp --seed 1",
        "on one GPU only: CUDA_VISIBLE_DEVICES=0",
    ]
    assert screen._batch_sizes(arguments) == (
        "8 per device x 1 accumulation x 4 GPUs = 32 rows a step"
    )


def test_one_cpu_process() -> None:
    (line,) = screen._device(draft(), "python -m finetune yelp")
    assert line.startswith("cpu, one device, 1 process, ")


@pytest.mark.parametrize(
    ("terminal", "rank", "bar"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
def test_a_progress_bar_where_somebody_watches(
    terminal: bool, rank: int, bar: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(distributed, "ranks", lambda: distributed.Ranks(rank=rank))
    assert FinetuneArguments(output_dir=str(tmp_path)).disable_tqdm is not bar
