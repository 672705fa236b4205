"""A few steps of a training, to know what all of them take: seconds, and memory at its peak."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
import psutil
import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from finetune.errors import RunError
from finetune.training.memory import failed_to_allocate

if TYPE_CHECKING:
    from finetune.training.trainer import Trainer

#: Optimizer steps that are timed, after one that is not.
TIMED = 3
_LOOKS = 0.002  # seconds between looks at the memory of the process


@dataclass(frozen=True)
class Rehearsed:
    """What was measured.

    Attributes:
        step: Seconds of a step, the mean.
        forward: Seconds of the forward pass of a row, the mean.
        memory: Bytes at the peak: of an accelerator those allocated, else those of the process.
    """

    step: float
    forward: float
    memory: int


class _Clock(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note it."""
        if args.device.type != "cpu":
            torch.accelerator.synchronize(args.device)
        self.ends.append(time.perf_counter())


def rehearse(trainer: Trainer, longest: datasets.Dataset) -> Rehearsed:
    """Train the steps of a trainer, then a forward and backward pass over a batch.

    Args:
        trainer: Of one step more than :data:`TIMED`, which neither evaluates nor saves; not to be
            used afterwards.
        longest: The prepared rows of the batch.

    Raises:
        RunError: if memory runs out.
    """
    clock = _Clock()
    trainer.add_callback(clock)
    for shown in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown)

    def work() -> None:
        trainer.train()
        _both_passes(trainer, longest)

    memory = _peak(work, trainer.args.device)
    rows = int(trainer.meter.mark().counts[0])
    return Rehearsed(
        step=(clock.ends[-1] - clock.ends[0]) / (len(clock.ends) - 1),
        forward=trainer.meter.seconds["forward"] / rows,
        memory=memory,
    )


def _both_passes(trainer: Trainer, rows: datasets.Dataset) -> None:
    """Train on a micro-batch of these rows, with what the optimizer holds in memory."""
    model = trainer.model
    assert model is not None
    rows = trainer._remove_unused_columns(rows, description="training")
    batch = trainer.data_collator([rows[number] for number in range(len(rows))])
    try:
        inputs = trainer._prepare_inputs(batch)
        with trainer.accelerator.autocast():
            loss = trainer.compute_loss(model.train(), inputs, num_items_in_batch=len(rows))
        loss.backward()
    except (RuntimeError, MemoryError) as error:
        if not failed_to_allocate(error):
            raise
        raise RunError(
            f"out of memory in the forward and backward pass over the {len(rows)} longest rows"
        ) from error


def _peak(work: Callable[[], None], device: torch.device) -> int:
    """Do the work and return the most bytes of memory that there were in use meanwhile."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return int(torch.cuda.max_memory_allocated(device))
    process, most, done = psutil.Process(), [0], threading.Event()

    def look() -> None:
        while not done.wait(_LOOKS):
            most[0] = max(most[0], process.memory_info().rss)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return int(max(most[0], process.memory_info().rss))
