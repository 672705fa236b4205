"""Throughput and memory in the log, progress for the pipeline, and profiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from transformers import ProgressCallback, TrainerCallback, TrainerState

from finetune.runtime import activity, distributed
from finetune.runtime.files import refuse_link, replacing, write_whole

if TYPE_CHECKING:
    from finetune.training.sampler import GlobalBatchSampler

DIRECTORY, TABLE, TRACE = "profile", "operators.txt", "trace.json"
#: Steps that are not profiled: memory is allocated in them, kernels are chosen.
WARMUP_STEPS = 2
_OPERATORS = 20


class Throughput(TrainerCallback):
    """Adds samples/s and memory to each logged loss; evaluations and saving do not count.

    ``rows_per_second`` is that of all processes. ``memory_mib`` is that of the GPU at its peak, or
    else the resident memory at the moment.

    Attributes:
        sampler: That of the training, which knows the rows of each step.
        seconds: Of the steps, evaluations and saving left out.
        lengths: Tokens of each row, shape ``(rows,)``; None where rows have no length.
    """

    sampler: GlobalBatchSampler
    lengths: np.ndarray | None = None

    def __init__(self) -> None:
        self._rows = self._tokens = self._logged_rows = 0
        self.seconds = self._logged_seconds = self._began = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin at zero."""
        self._rows = self._tokens = self._logged_rows = 0
        self.seconds = self._logged_seconds = 0.0
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count the step; wait for an accelerator where something else comes next."""
        is_pause = control.should_log or control.should_evaluate or control.should_save
        if args.device.type != "cpu" and (is_pause or state.global_step >= state.max_steps):
            torch.accelerator.synchronize(args.device)
        rows = self.sampler.rows_of_step(state.global_step - 1)
        self._rows += len(rows)
        if self.lengths is not None:
            self._tokens += int(self.lengths[rows].sum())
        end = time.perf_counter()
        self.seconds, self._began = self.seconds + end - self._began, end

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the evaluation out."""
        self._began = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave saving out."""
        self._began = time.perf_counter()

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Put speed and memory into the history."""
        seconds = self.seconds - self._logged_seconds
        if "loss" in state.log_history[-1] and seconds:
            state.log_history[-1] |= {
                "rows_per_second": (self._rows - self._logged_rows) / seconds,
                "memory_mib": _memory() / 2**20,
            }
            self._logged_rows, self._logged_seconds = self._rows, self.seconds

    def summary(self) -> dict[str, float]:
        """Return samples/s and tokens/s since the training was started or resumed."""
        if not self._rows or not self.seconds:
            return {}
        rates = {"rows_per_second": self._rows / self.seconds}
        if self._tokens:
            rates["tokens_per_second"] = self._tokens / self.seconds
        return rates


class Profile(TrainerCallback):
    """Profile ``steps`` steps after the first two, and write ``profile/`` into the run directory.

    ``trace.json`` is rank 0's, for ``chrome://tracing`` or Perfetto; ``operators.txt`` lists the
    slowest operators.

    Attributes:
        is_written: Whether there were enough steps.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.is_written = steps, False
        self._profiler: profile | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start, if there are steps enough; of a run that is resumed there may not be."""
        if state.max_steps - state.global_step < self.steps + WARMUP_STEPS:
            return
        on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *on_gpu],
            schedule=schedule(wait=WARMUP_STEPS - 1, warmup=1, active=self.steps, repeat=1),
            on_trace_ready=lambda result: self._write(result, Path(args.output_dir or "")),
        )
        self._profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after the last of them."""
        if self._profiler is not None:
            self._profiler.step()
            if self._profiler.step_num == WARMUP_STEPS + self.steps:
                self._profiler.stop()
                self._profiler = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop a profile whose training has ended early."""
        if self._profiler is not None:
            self._profiler.stop()
        self._profiler = None

    def _write(self, result: profile, output_dir: Path) -> None:
        self.is_written = True
        if distributed.ranks().rank:
            return
        directory = output_dir / DIRECTORY
        refuse_link(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / TRACE) as new:
            result.export_chrome_trace(str(new))
        order = f"self_{'cuda' if torch.cuda.is_available() else 'cpu'}_time_total"
        table = result.key_averages().table(sort_by=order, row_limit=_OPERATORS)
        write_whole(directory / TABLE, f"{self.steps} steps\n{table}\n")


class Logs(TrainerCallback):
    """Hands what the trainer logs to ``take``: the state and the values, on rank 0.

    The values are those of the history, with what :class:`Throughput` adds.
    """

    def __init__(self, take: Callable[[TrainerState, Mapping[str, Any]], object]) -> None:
        self.take = take

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Hand over a copy."""
        if state.is_world_process_zero:
            logs: dict[str, Any] = state.log_history[-1]
            left_out = ("total_flos", "step")
            self.take(state, {name: logs[name] for name in logs if name not in left_out})


class Bar(ProgressCallback):
    """The library's progress bar, without the dictionaries that it writes above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Leave them to :class:`Logs`."""


class Progress(TrainerCallback):
    """Reports the steps and the batches that are done as an activity, on rank 0."""

    def __init__(self) -> None:
        self._batches = 0

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Report the steps."""
        if state.is_world_process_zero:
            activity.advance("training", state.global_step, state.max_steps, "steps")

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Report the batches of an evaluation."""
        self._batches += 1
        if state.is_world_process_zero:
            total = len(kwargs["eval_dataloader"])
            activity.advance("evaluating", self._batches, total, "batches")
            self._batches %= total


def _memory() -> int:
    if torch.cuda.is_available():
        return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return int(psutil.Process().memory_info().rss)
