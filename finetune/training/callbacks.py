"""Callbacks: when a training saves and stops, and how fast it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile, schedule
from transformers import ProgressCallback, TrainerCallback, TrainerState
from transformers.trainer_utils import SaveStrategy

from finetune.errors import counted
from finetune.runtime import activity, distributed, stopping
from finetune.runtime.files import replacing, write_whole
from finetune.runtime.stopping import Stopped
from finetune.training.steps import GlobalBatchSampler


class StopRequests(TrainerCallback):
    """Stop all processes at the same step, or batch of an evaluation, after one got a signal.

    ``begin`` is called when the training begins, after the other callbacks.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """Call ``begin``."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save this step, if a process is to stop; :meth:`on_save` stops then."""
        if self._is_requested():
            control.should_evaluate = False
            control.should_save = True

    def on_save(self, *_: Any, **kwargs: Any) -> None:
        """Stop after a checkpoint, or after a batch of an evaluation.

        Raises:
            Stopped: On every process, if one of them got a signal.
        """
        if self._is_requested():
            raise Stopped(stopping.requested() or "a signal to another process")

    on_prediction_step = on_save

    def _is_requested(self) -> bool:
        flag = torch.tensor(int(stopping.requested() is not None))
        if distributed.ranks().world_size > 1 and dist.is_initialized():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


class ModelSelection(TrainerCallback):
    """Saves every n-th epoch, the last and the best, and stops where no better one comes.

    The best is saved too because ``load_best_model_at_end`` can only load what was saved.
    Evaluations are counted in the history, so that the count survives an interruption.

    Attributes:
        stop_reason: Why the training stopped before its end, a sentence; empty if it did not.
    """

    stop_reason = ""

    def __init__(self, save_every: int, patience: int | None) -> None:
        self.save_every = save_every
        self.patience = patience

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save if this is an n-th epoch; the library saves the last one."""
        if args.save_strategy == SaveStrategy.EPOCH and state.global_step < state.max_steps:
            control.should_save = round(state.epoch or 0) % self.save_every == 0

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save an epoch that is the best so far, and stop if none has been for too long."""
        metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
        name = f"eval_{metric}"
        sign = 1 if args.greater_is_better else -1
        evaluations = [entry for entry in state.log_history if name in entry]
        if not evaluations:
            return
        # NaN is worse than every number
        best = max(evaluations, key=lambda entry: (not math.isnan(entry[name]), sign * entry[name]))
        count = len(evaluations) - 1 - evaluations.index(best)
        if count == 0 and args.save_strategy == SaveStrategy.EPOCH and args.load_best_model_at_end:
            control.should_save = True
        if self.patience is not None and count >= self.patience:
            control.should_training_stop = True
            if state.global_step < state.max_steps:
                self.stop_reason = (
                    f"stopped early at step {state.global_step:,} of {state.max_steps:,}: "
                    f"validation {metric} has not improved on {best[name]:.4f} (step "
                    f"{best['step']:,}) for {counted(count, 'evaluation')}"
                )


class Throughput(TrainerCallback):
    """Adds samples/s of all processes to each logged loss, and reports steps and batches as an
    activity. Evaluations and saving do not count.

    Attributes:
        sampler: That of the training.
        take: Called with the state and each entry of the history, on rank 0.
        profiler: Told of each step.
    """

    sampler: GlobalBatchSampler
    take: Callable[[TrainerState, Mapping[str, Any]], object] | None = None
    profiler: profile | None = None
    _batches = 0

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """Begin at zero."""
        self._rows = self._tokens = self._logged_rows = 0
        self._seconds = self._logged_seconds = 0.0
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count the step; wait for an accelerator where something else comes next."""
        is_pause = control.should_log or control.should_evaluate or control.should_save
        if args.device.type != "cpu" and (is_pause or state.global_step >= state.max_steps):
            torch.accelerator.synchronize(args.device)
        rows = self.sampler.rows_of_step(state.global_step - 1)
        self._rows += len(rows)
        lengths = self.sampler.lengths
        self._tokens += 0 if lengths is None else int(lengths[rows].sum())
        end = time.perf_counter()
        self._seconds += end - self._began
        self._began = end
        if self.profiler is not None:
            self.profiler.step()
        if state.is_world_process_zero:
            activity.advance("training", state.global_step, state.max_steps, "steps")

    def on_evaluate(self, *_: Any, **kwargs: Any) -> None:
        """Leave evaluations and saving out."""
        self._began = time.perf_counter()

    on_save = on_evaluate

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the batches of an evaluation."""
        total = len(kwargs["eval_dataloader"])
        self._batches = self._batches % total + 1
        if state.is_world_process_zero:
            activity.advance("evaluating", self._batches, total, "batches")

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Put the speed into the history, and hand a copy of it over."""
        entry = state.log_history[-1]
        if "loss" in entry and self._seconds > self._logged_seconds:
            seconds = self._seconds - self._logged_seconds
            entry["rows_per_second"] = (self._rows - self._logged_rows) / seconds
            self._logged_rows, self._logged_seconds = self._rows, self._seconds
        if self.take is not None and state.is_world_process_zero:
            self.take(state, {n: v for n, v in entry.items() if n not in ("total_flos", "step")})

    def summary(self) -> dict[str, float]:
        """Return samples/s and tokens/s since the training was started or resumed."""
        counts = {"rows_per_second": self._rows, "tokens_per_second": self._tokens}
        return {name: count / self._seconds for name, count in counts.items() if count}


def make_profiler(steps: int, directory: Path) -> profile:
    """Return a profiler of ``steps`` steps after the first two, in which memory is allocated and
    kernels are chosen; of these alone nothing is written.

    ``trace.json`` is for ``chrome://tracing`` or Perfetto, ``operators.txt`` has the slowest.
    """

    def write(result: profile) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / "trace.json") as new:
            result.export_chrome_trace(str(new))
        order = f"self_{'cuda' if torch.cuda.is_available() else 'cpu'}_time_total"
        table = result.key_averages().table(sort_by=order, row_limit=20)
        write_whole(directory / "operators.txt", f"{table}\n")

    plan = schedule(wait=1, warmup=1, active=steps, repeat=1)
    return profile(schedule=plan, on_trace_ready=write)


class Bar(ProgressCallback):
    """The library's progress bar, without the dictionaries that it writes above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Leave them to :class:`Throughput`."""
