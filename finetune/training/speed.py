"""How fast a run trains, and where its time goes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import torch
from torch.profiler import record_function
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from finetune import job
from finetune.training import flops

Batch = dict[str, torch.Tensor]
#: Of the names that a profiler sees.
PREFIX = "finetune::"


class Meter(TrainerCallback):
    """Counts rows and tokens, times the phases of every step, and adds to each logged loss how fast
    the steps since the last one were, and how much memory this process has had.

    ``rows_per_second`` counts the rows of all processes; an evaluation in between is not counted.
    ``memory_mib`` is that of the GPU at its peak, or else the resident memory at the moment.

    Args:
        device: Of this process.
        dtype: Of the matrix products.

    Attributes:
        waits: Whether an accelerator is waited for after each phase, to tell one from another.
        seconds: Of this process in each phase so far: data, communication (the count of the rows;
            that of the gradients is a part of backward), forward, backward, optimizer, and step,
            which is all of them and what lies between. On an accelerator, which works behind the
            process, only the last one says how long something took.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.waits = False
        self._counts = torch.zeros(4, dtype=torch.int64)  # of this process: see `fetched`
        self._rows = torch.zeros(())  # of all processes, since the last log
        self._since_log, self._step_began = 0.0, 0.0
        self._nested: list[float] = []
        self._optimizer: tuple[record_function, float] | None = None
        self._row: Batch = {}

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count what happens inside as ``phase``, but for another phase in it, and name it for a
        profiler.
        """
        self._end_optimizer(counts=False)
        self._nested.append(0.0)
        began = time.perf_counter()
        with record_function(PREFIX + phase):
            yield
            self._wait()
        took = time.perf_counter() - began
        self.seconds[phase] += took - self._nested.pop()
        if self._nested:
            self._nested[-1] += took

    def step_begins(self) -> None:
        """Before its rows are fetched."""
        self._step_began = time.perf_counter()

    def fetched(self, batches: Sequence[Batch], rows: torch.Tensor) -> None:
        """The micro-batches of a step have come.

        Args:
            batches: Of this process.
            rows: Those of the step in all processes, a scalar.
        """
        if not self._row and batches:
            self._row = flops.first_row(batches[0])
        self._rows = self._rows.to(rows.device) + rows
        for batch in batches:
            mask = batch.get("attention_mask")
            if mask is None:
                found = torch.tensor([len(batch["labels"]), 0, 0, 0])
            else:
                tokens = mask.sum(dim=1)
                found = torch.stack(
                    [
                        torch.full_like(tokens[0], len(mask)),
                        tokens.sum(),
                        (tokens**2).sum(),
                        torch.full_like(tokens[0], mask.numel()),
                    ]
                )
            self._counts = self._counts.to(found.device) + found

    def optimizer_begins(self) -> None:
        """After the last backward pass of a step, or of a micro-batch."""
        name = record_function(f"{PREFIX}optimizer")
        name.__enter__()  # type: ignore[no-untyped-call]
        self._optimizer = name, time.perf_counter()

    def _end_optimizer(self, *, counts: bool) -> None:
        if self._optimizer is None:
            return
        name, began = self._optimizer
        self._wait()
        name.__exit__(None, None, None)
        if counts:
            self.seconds["optimizer"] += time.perf_counter() - began
        self._optimizer = None

    def _wait(self) -> None:
        if self.waits and self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def start_again(self, *, waits: bool) -> None:
        """Forget what was counted so far."""
        self.seconds.clear()
        self._counts.zero_()
        self.waits = waits

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Stop the clock."""
        self._end_optimizer(counts=True)
        took = time.perf_counter() - self._step_began
        self.seconds["step"] += took
        self._since_log += took

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Put speed and memory into the history."""
        if "loss" not in state.log_history[-1] or not self._since_log:
            return
        state.log_history[-1] |= {
            "rows_per_second": float(self._rows) / self._since_log,
            "memory_mib": _memory() / 2**20,
        }
        self._rows, self._since_log = torch.zeros(()), 0.0

    def summary(self, model: torch.nn.Module | None, devices: int) -> dict[str, Any]:
        """What stands in ``run.json``; every process calls it, when training has ended.

        Args:
            model: That was trained, not wrapped; None if it cannot be called, as it is sharded.
            devices: Of this process.

        Returns:
            Rows, tokens without padding, and model FLOPs a second of all processes; what share of
            the tokens was padding; the peak of the devices in matrix products, measured now, and
            how much of it was used; seconds of this process in each phase. Nothing before the first
            step; why the FLOPs were not counted, if the model could not be asked.
        """
        rows, tokens, pairs, cells = np.sum(job.gather(self._counts.tolist()), axis=0).tolist()
        if not rows:
            return {}
        seconds = self.seconds["step"]
        found = {
            "rows_per_second": rows / seconds,
            "tokens_per_second": tokens / seconds if cells else None,
            "padding": 1 - tokens / cells if cells else None,
            "seconds": {name: round(each, 3) for name, each in self.seconds.items()},
        }
        if model is None:
            return found
        peak = sum(job.gather(devices * flops.peak(self.device, self.dtype)))
        row = {name: value for name, value in self._row.items() if name != "labels"}
        try:
            counted = flops.of_model(model, row)
        except Exception as error:  # a model may want more of its input; the run is worth more
            return found | {"model_flops_not_counted": f"{type(error).__name__}: {error}"}
        asked = flops.TRAINING * counted.of(rows, tokens, pairs) / seconds
        return found | {
            "model_flops_per_second": asked,
            "peak_flops_per_second": peak,
            "share_of_peak": asked / peak,
        }


def _memory() -> int:
    if torch.cuda.is_available():
        return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return int(psutil.Process().memory_info().rss)
