"""What is watched while a run trains."""

from __future__ import annotations

import time
from typing import Any

import psutil
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Meter(TrainerCallback):
    """Adds to each logged loss how fast the steps since the last one were, and how much memory this
    process has had.

    ``rows_per_second`` counts the rows of all processes; an evaluation in between is not counted.
    ``memory_mib`` is that of the GPU at its peak, or else the resident memory at the moment.

    Args:
        global_batch_size: Rows of a step.
    """

    def __init__(self, global_batch_size: int) -> None:
        self._rows = global_batch_size
        self._seconds, self._steps, self._began = 0.0, 0, time.perf_counter()

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Stop the clock."""
        self._seconds += time.perf_counter() - self._began
        self._steps += 1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Put both into the history."""
        if "loss" not in state.log_history[-1] or not self._steps:
            return
        state.log_history[-1] |= {
            "rows_per_second": self._rows * self._steps / self._seconds,
            "memory_mib": _memory() / 2**20,
        }
        self._seconds, self._steps = 0.0, 0


def _memory() -> int:
    if torch.cuda.is_available():
        return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return int(psutil.Process().memory_info().rss)
