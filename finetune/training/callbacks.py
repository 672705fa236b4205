"""When a training saves and stops, how fast it is, and errors about memory and disk explained."""

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.profiler import profile, schedule, tensorboard_trace_handler
from transformers import ProgressCallback, TrainerCallback, TrainerState
from transformers.utils import logging as library_logging

from finetune.errors import RunError, UserError, counted
from finetune.rules.devices import RECOMPUTATION
from finetune.runtime import activity, distributed, stopping
from finetune.runtime.stopping import Stopped
from finetune.training.arguments import FinetuneArguments
from finetune.training.steps import GlobalBatchSampler

#: Parts of error messages: the system and the libraries have no exception types for these.
_DISK = ("No space left", "quota exceeded", "File too large", "StreamWriter", "unexpected pos")
_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Cannot allocate")


#: What needs less memory in training and evaluation.
_LESS_MEMORY = (
    f"a larger --gradient_accumulation_steps (the same global batch), --{RECOMPUTATION} true, "
    "--precision bf16, a smaller --max_length, --global_batch_size or --per_device_eval_batch_size"
)


class TrainingCallback(TrainerCallback):
    """Saves and stops a training, and measures the speed of its steps, without evaluations.

    When one process gets a signal, all stop at the same step, or batch of an evaluation.
    Evaluations without improvement are counted in the history, as a checkpoint holds it.

    Attributes:
        sampler: The sampler of the training.
        on_entry: Called on rank 0 with the state and each entry of the history.
        profiler: Its ``step()`` is called after each step.
        stop_reason: A sentence why the training stopped early; None if it did not.
    """

    sampler: GlobalBatchSampler
    on_entry: Callable[[TrainerState, Mapping[str, Any]], object] | None = None
    profiler: profile | None = None
    stop_reason: str | None = None
    _batches = 0

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer  # that of this package

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """Reset the counts, and let the trainer begin, after the other callbacks."""
        self._counts = np.zeros(3)  # rows, tokens and seconds of the steps
        self._logged_counts = np.zeros(3)
        self._clock = time.perf_counter()
        self._trainer.begin_training()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch of the sampler, which transformers 5.16 does not do after a resume.

        If no step is left, the library is kept silent about an epoch without batches.
        """
        self.sampler.set_epoch(math.floor(state.epoch or 0))  # of a resumed one it is a fraction
        self._verbosity = library_logging.get_verbosity()
        if control.should_training_stop:
            library_logging.set_verbosity(logging.ERROR)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do nothing after an epoch without batches, which :meth:`on_train_begin` has completed."""
        if not self._counts.any():
            control.should_log = control.should_evaluate = control.should_save = False
        library_logging.set_verbosity(self._verbosity)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count the step; if a process got a signal, save it, after which :meth:`on_save` stops."""
        is_pause = control.should_log or control.should_evaluate or control.should_save
        if args.device.type != "cpu" and (is_pause or state.global_step >= state.max_steps):
            torch.accelerator.synchronize(args.device)  # or their time would count elsewhere
        rows = self.sampler.rows_of_step(state.global_step - 1)
        lengths = self.sampler.lengths
        tokens = 0 if lengths is None else lengths[rows].sum()
        end = time.perf_counter()
        self._counts += len(rows), tokens, end - self._clock
        self._clock = end
        if self.profiler is not None:
            self.profiler.step()
        if state.is_world_process_zero:
            activity.advance("training", state.global_step, state.max_steps, "steps")
        if _stop_is_requested():
            control.should_evaluate = False
            control.should_save = True

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Stop early after too many evaluations without improvement."""
        self._clock = time.perf_counter()
        metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
        name = f"eval_{metric}"
        sign = 1 if args.greater_is_better else -1
        evaluations = [entry for entry in state.log_history if name in entry]
        numbers = [entry for entry in evaluations if not math.isnan(entry[name])]
        if not numbers:
            return
        best = max(numbers, key=lambda entry: sign * entry[name])
        count = len(evaluations) - 1 - evaluations.index(best)
        if args.early_stopping_patience is not None and count >= args.early_stopping_patience:
            control.should_training_stop = True
            if state.global_step < state.max_steps:
                self.stop_reason = (
                    f"stopped early at step {state.global_step:,} of {state.max_steps:,}: {metric} "
                    f"is best at step {best['step']:,}, {counted(count, 'evaluation')} ago"
                )

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the progress of an evaluation, and stop it if a process got a signal."""
        total = len(kwargs["eval_dataloader"])
        self._batches = self._batches % total + 1
        if state.is_world_process_zero:
            activity.advance("evaluating", self._batches, total, "batches")
        _stop_if_requested()

    def on_save(self, *_: Any, **kwargs: Any) -> None:
        """Complete the checkpoint, and stop if a process got a signal."""
        self._trainer.complete_checkpoint()
        self._clock = time.perf_counter()
        _stop_if_requested()

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Add samples/s of all processes to each logged loss, and call ``on_entry`` with it."""
        entry = state.log_history[-1]
        if "loss" in entry and (self._counts > self._logged_counts).any():
            rows, _, seconds = (self._counts - self._logged_counts).tolist()
            entry["rows_per_second"] = rows / seconds
            self._logged_counts = self._counts.copy()
        if self.on_entry is not None and state.is_world_process_zero:
            self.on_entry(
                state, {n: v for n, v in entry.items() if n not in ("total_flos", "step")}
            )

    def summary(self) -> dict[str, float]:
        """Return samples/s and tokens/s since the training was started or resumed."""
        rows, tokens, seconds = self._counts.tolist()
        counts = {"rows_per_second": rows, "tokens_per_second": tokens}
        return {name: count / seconds for name, count in counts.items() if count}


def _stop_is_requested() -> bool:
    flag = torch.tensor(int(stopping.requested() is not None))
    if distributed.ranks().world_size > 1 and dist.is_initialized():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _stop_if_requested() -> None:
    """Raise ``Stopped`` on every process if one of them got a signal."""
    if _stop_is_requested():
        raise Stopped(stopping.requested() or "a signal to another process")


def make_profiler(steps: int, directory: Path) -> profile:
    """Return a profiler that writes a trace of some steps for ``chrome://tracing`` or Perfetto.
    It skips the first two, in which memory is allocated and kernels are chosen.
    """
    if directory.is_symlink():  # nothing is written where it points
        raise UserError(f"{directory} is a link to {directory.readlink()}: remove the link")
    plan = schedule(wait=1, warmup=1, active=steps, repeat=1)
    return profile(schedule=plan, on_trace_ready=tensorboard_trace_handler(str(directory)))


class Bar(ProgressCallback):
    """The progress bar of the library, without the dictionaries that it prints above the bar."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print nothing: :class:`TrainingCallback` reports the logs."""


@contextmanager
def explained(
    arguments: FinetuneArguments, work: str | Callable[[], str], advice: str = _LESS_MEMORY
) -> Iterator[None]:
    """Raise a ``RunError`` that says what helps if the disk is full or an allocation fails in the
    block. On a CPU Linux may kill the process instead.

    Args:
        arguments: Those of the training.
        work: What the block does, e.g. ``writing checkpoint-9``, or returns it.
        advice: What needs less memory.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError, SafetensorError) as error:
        work = work if isinstance(work, str) else work()
        texts = "".join(traceback.format_exception(error, limit=0))  # also of what it came from
        if any(text in texts for text in _DISK):
            raise RunError(
                f"the disk of {arguments.output_dir} is full: {work} failed. Free some space, then "
                "add --resume; smaller: --save_total_limit 1, or --save_only_model true"
            ) from error
        if isinstance(error, MemoryError) or any(text in texts for text in _MEMORY):
            place = f"out of memory on {arguments.device} in {work}"
            raise RunError(f"{place}: try {advice}") from error
        raise
