"""How fast a run trains, and where its time goes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch.profiler import record_function
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState

from finetune.runtime import activity, distributed
from finetune.training import flops
from finetune.training.flops import Flops

Batch = dict[str, torch.Tensor]
#: Of the names that a profiler sees.
PREFIX = "finetune::"


class Mark(NamedTuple):
    """What a meter had counted at a moment: seconds by phase; rows, tokens, pairs, cells."""

    seconds: dict[str, float]
    counts: list[int]


class Meter(TrainerCallback):
    """Counts rows and tokens, times the phases of every step, and adds speed and memory to the log.

    ``rows_per_second`` of a logged loss is that of all processes in the steps since the last one;
    an evaluation in between is not counted. ``memory_mib`` is that of the GPU at its peak, or else
    the resident memory at the moment.

    Args:
        device: Of this process.
        dtype: Of the matrix products.
        computed: The tokens that are computed of rows of some lengths padded to another; all if it
            is None.

    Attributes:
        waits: Whether an accelerator is waited for after each phase, to tell one from another.
        seconds: Of this process in each phase of this training: data, communication (the count of
            the rows, and of the gradients what a machine exchanges in memory; elsewhere that is a
            part of backward), forward, backward, optimizer, and step, which is all of them and
            what lies between. An accelerator works behind the process: there only the sum of the
            steps until it was waited for says how long they took.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        computed: Callable[[np.ndarray, int], int] | None = None,
    ) -> None:
        self.device, self.dtype, self.computed = device, dtype, computed
        self.waits = False
        self._forget()

    def _forget(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._counts = torch.zeros(4, dtype=torch.int64)  # of this process: see `fetched`
        self._rows = torch.zeros(())  # of all processes, since the last log
        self._since_log = 0.0
        self._nested: list[float] = []
        self._open: dict[str, tuple[record_function, float]] = {}
        self._row: Batch = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin at zero."""
        self._forget()

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count and name what happens inside as ``phase``, but for another phase in it.

        Outside of a step, as in an evaluation, nothing is counted.
        """
        if "step" not in self._open:
            yield
            return
        self._end("optimizer")  # which it was not, but the end of a micro-batch
        self._nested.append(0.0)
        self._begin(phase)
        try:
            yield
        finally:
            took = self._end(phase)
            self.seconds[phase] += took - self._nested.pop()
            if self._nested:
                self._nested[-1] += took

    def step_begins(self) -> None:
        """Start the clock, before the rows of a step are fetched."""
        self._begin("step")

    def fetched(self, batches: Sequence[Batch], rows: torch.Tensor) -> None:
        """Count the micro-batches of a step; ``rows``, a scalar, are those of all processes."""
        if not self._row and batches:
            self._row = flops.first_row(batches[0])
        self._rows = self._rows.to(rows.device) + rows
        for batch in batches:
            found = self._counted(batch)
            self._counts = self._counts.to(found.device) + found

    def _counted(self, batch: Batch) -> torch.Tensor:
        """Rows, tokens, pairs of tokens within a row, and tokens computed, shape ``(4,)``."""
        mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
        if tokens is None:
            return torch.tensor([len(batch["labels"]), 0, 0, 0])
        if mask is None or mask.shape != tokens.shape:
            mask = torch.ones_like(tokens)
        lengths, computed = mask.sum(dim=1), mask.numel()
        if self.computed is not None:
            computed = self.computed(lengths.numpy(), mask.shape[1])
        rows, cells = (torch.full_like(lengths[0], each) for each in (len(mask), computed))
        return torch.stack([rows, lengths.sum(), (lengths**2).sum(), cells])

    def optimizer_begins(self) -> None:
        """Start its clock, after the last backward pass of a step, or of a micro-batch."""
        self._begin("optimizer")

    def _begin(self, phase: str) -> None:
        name = record_function(PREFIX + phase)
        name.__enter__()  # type: ignore[no-untyped-call]
        self._open[phase] = name, time.perf_counter()

    def _end(self, phase: str, *, waits: bool = False) -> float:
        """Return the seconds that it took, none if it had not begun."""
        if phase not in self._open:
            return 0.0
        name, began = self._open.pop(phase)
        if (waits or self.waits) and self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        name.__exit__(None, None, None)
        return time.perf_counter() - began

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop the clock, when an accelerator is done too where something else comes next."""
        self.seconds["optimizer"] += self._end("optimizer")
        others = ("log", "evaluate", "save", "training_stop", "epoch_stop")
        ends = state.global_step >= state.max_steps
        took = self._end(
            "step", waits=ends or any(getattr(control, f"should_{name}") for name in others)
        )
        self.seconds["step"] += took
        self._since_log += took

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Put speed and memory into the history."""
        if "loss" not in state.log_history[-1] or not self._since_log:
            return
        state.log_history[-1] |= {
            "rows_per_second": float(self._rows) / self._since_log,
            "memory_mib": _memory() / 2**20,
        }
        self._rows, self._since_log = torch.zeros(()), 0.0

    def mark(self) -> Mark:
        """Return what was counted until now."""
        return Mark(dict(self.seconds), self._counts.tolist())

    def summary(
        self, model: torch.nn.Module | None, devices: int, since: Mark | None = None
    ) -> dict[str, Any]:
        """Return what stands in ``run.json``; every process calls it, when training has ended.

        Args:
            model: That was trained, not wrapped; None if it cannot be called, as it is sharded.
            devices: Of this process.
            since: Leave out what was before.

        Returns:
            Rows, tokens without padding, and model FLOPs a second of all processes, or why they
            were not counted; the share of padding; the matmul peak of the devices,
            measured now, and the share of it that was used; seconds of this process in each phase.
            Nothing before the first step.
        """
        before = since or Mark({}, [0, 0, 0, 0])
        mine = np.subtract(self._counts.tolist(), before.counts)
        rows, tokens, pairs, cells = np.sum(distributed.gather(mine), axis=0).tolist()
        if not rows:
            return {}
        spent = {name: each - before.seconds.get(name, 0) for name, each in self.seconds.items()}
        seconds = spent["step"]
        found = {
            "rows_per_second": rows / seconds,
            "tokens_per_second": tokens / seconds if cells else None,
            "padding": 1 - tokens / cells if cells else None,
            "seconds": {name: round(each, 3) for name, each in spent.items()},
        }
        if model is None:
            return found
        row = {name: value for name, value in self._row.items() if name != "labels"}
        counted, mine_at_most, failure = Flops(0), 0.0, None
        try:
            counted = flops.of_model(model, row)
            mine_at_most = devices * flops.peak(self.device, self.dtype)
        except Exception as error:  # a model may want more of its input; the run is worth more
            failure = f"{type(error).__name__}: {error}"
        everyone = distributed.gather((failure, mine_at_most))
        if failures := [each for each, _ in everyone if each]:
            return found | {"model_flops_not_counted": failures[0]}
        peak = sum(each for _, each in everyone)
        asked = counted.of(rows, tokens, pairs) / seconds
        return found | {
            "model_flops_per_second": asked,
            "peak_flops_per_second": peak,
            "share_of_peak": asked / peak,
        }


class Logs(TrainerCallback):
    """Hands what the trainer logs to ``take``: the state and the values, on rank 0.

    The values are those of the history, with the throughput that :class:`Meter` adds.
    """

    def __init__(self, take: Callable[[TrainerState, Mapping[str, Any]], object]) -> None:
        self.take = take

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Hand over a copy."""
        if state.is_world_process_zero:
            left_out = ("total_flos", "step")
            logs: dict[str, Any] = state.log_history[-1]
            self.take(state, {name: logs[name] for name in logs if name not in left_out})


class Bar(ProgressCallback):
    """The library's progress bar, without the dictionaries that it writes above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Leave them to :class:`Logs`."""


class Progress(TrainerCallback):
    """Tells :mod:`finetune.runtime.activity` the steps and the batches that are done, on rank 0."""

    def __init__(self) -> None:
        self._evaluated = 0

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Tell the steps."""
        if state.is_world_process_zero:
            activity.advance("training", state.global_step, state.max_steps, "steps")

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Tell the batches of an evaluation."""
        self._evaluated += 1
        if state.is_world_process_zero:
            batches = len(kwargs["eval_dataloader"])
            activity.advance("evaluating", self._evaluated, batches, "batches")

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin at zero."""
        self._evaluated = 0

    def on_predict(
        self, args: Any, state: TrainerState, control: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Begin at zero."""
        self._evaluated = 0


def _memory() -> int:
    if torch.cuda.is_available():
        return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return int(psutil.Process().memory_info().rss)
