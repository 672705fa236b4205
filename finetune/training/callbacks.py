"""Callbacks that decide when a training saves and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

from finetune.errors import counted
from finetune.runtime import distributed, signals
from finetune.runtime.signals import Stopped
from finetune.training import checkpoint

_PATIENCE_COUNTER = "early_stopping_patience_counter"


class StopRequests(TrainerCallback):
    """Stop all processes at the same step, or batch of an evaluation, after one got a signal.

    The processes exchange one number a step. It is sent before the optimizer steps and read after,
    so that nothing waits for it.

    Attributes:
        pending_evaluation: Whether the step that is saved still has to be evaluated.
        pending_save: Whether the checkpoint of that evaluation still has to be saved.
        is_epoch_ended: Whether the epoch of the last step has ended; what is due then was done.
    """

    def __init__(self) -> None:
        self.pending_evaluation = self.pending_save = self.is_epoch_ended = False
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._exchange: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take intervals of logging, evaluating and saving from the arguments of this start."""
        state.compute_steps(args, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget what the step before had to do."""
        self.pending_evaluation = self.pending_save = self.is_epoch_ended = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the epoch has ended; it is saved after this."""
        self.is_epoch_ended = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send the request of this process to the others."""
        self._send()

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save this step, if a process is to stop; :meth:`on_save` stops then."""
        if self._receive():
            self.pending_evaluation = control.should_evaluate
            self.pending_save = control.should_save
            control.should_evaluate, control.should_save = False, True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after a checkpoint.

        Raises:
            Stopped: On every process, if one of them got a signal.
        """
        self._send()
        self.stop_if_requested()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop an evaluation.

        Raises:
            Stopped: On every process after the same batch.
        """
        self._send()
        self.stop_if_requested()

    def stop_if_requested(self) -> None:
        """Raise ``Stopped`` on every process if one of them got a signal."""
        if self._receive():
            raise Stopped(signals.requested() or "a signal to another process")

    def _send(self) -> None:
        self._flag.fill_(signals.requested() is not None)
        if distributed.ranks().world_size > 1 and dist.is_initialized():
            self._exchange = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)

    def _receive(self) -> bool:
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None
        elif distributed.ranks().world_size == 1:
            return signals.requested() is not None
        return bool(self._flag.item())


class EarlyStopping(EarlyStoppingCallback):
    """The library's, whose count of evaluations without improvement survives an interruption.

    Attributes:
        reason: Why the training stopped before its end, a sentence; empty if it did not.
    """

    reason = ""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the count from the checkpoint; the library would begin at zero again."""
        super().on_train_begin(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        self.reason, self.early_stopping_patience_counter = "", 0
        states: Any = state.stateful_callbacks  # by now states by the name of their class
        if state.global_step:
            for name in (type(self).__name__, EarlyStoppingCallback.__name__):
                stored = states.get(name)
                stored = stored[0] if isinstance(stored, list) else stored
                if stored:
                    count = int(stored["attributes"][_PATIENCE_COUNTER])
                    self.early_stopping_patience_counter = count
                    break
            self._stop_if_due(args, state, control)
        # the library saves only what has a place there, which a run begun without this lacks
        states.setdefault(type(self).__name__, self.state())

    def on_evaluate(  # type: ignore[override]
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        """Stop if this was one evaluation without improvement too many."""
        super().on_evaluate(args, state, control, metrics, **kwargs)  # type: ignore[no-untyped-call]
        self._stop_if_due(args, state, control)

    def _stop_if_due(self, args: Any, state: TrainerState, control: TrainerControl) -> None:
        if self.early_stopping_patience_counter < self.early_stopping_patience:
            return
        control.should_training_stop = True
        if state.global_step < state.max_steps:
            metric = args.metric_for_best_model.removeprefix("eval_")
            evaluations = counted(self.early_stopping_patience_counter, "evaluation")
            self.reason = (
                f"stopped early at step {state.global_step:,} of {state.max_steps:,}: validation "
                f"{metric} has not improved on {state.best_metric:.4f} (step "
                f"{state.best_global_step or 0:,}) for {evaluations}"
            )


class SaveEpochs(TrainerCallback):
    """Save every n-th epoch, the last and the best, if ``save_strategy`` is epoch.

    The best is saved too because ``load_best_model_at_end`` can only load what was saved.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Look for the best checkpoint of a resumed run in its directory, which may have moved."""
        if state.best_global_step:
            in_this_directory = Path(args.output_dir or "") / f"checkpoint-{state.best_global_step}"
            places = (in_this_directory, Path(state.best_model_checkpoint or in_this_directory))
            complete = [path for path in places if (path / checkpoint.Checkpoint.NAME).exists()]
            state.best_model_checkpoint = str(complete[0]) if complete else None

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save if this is an n-th epoch; the library saves the last one."""
        if args.save_strategy == SaveStrategy.EPOCH and state.global_step < state.max_steps:
            control.should_save = round(state.epoch or 0) % self.interval == 0

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save an epoch that is the best so far."""
        if args.save_strategy != SaveStrategy.EPOCH or not args.load_best_model_at_end:
            return
        name = args.metric_for_best_model or "loss"
        value = kwargs["metrics"].get(name if name.startswith("eval_") else f"eval_{name}")
        best, sign = state.best_metric, 1 if args.greater_is_better else -1
        if value is not None and (best is None or sign * value > sign * best):
            control.should_save = True
