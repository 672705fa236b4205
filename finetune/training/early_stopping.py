"""Stop a training whose validation metric no longer improves; it goes on counting when resumed."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

from finetune.errors import counted

_COUNTER = "early_stopping_patience_counter"


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
        stored: Any = state.stateful_callbacks  # by now states by the name of their class
        if state.global_step:
            self.early_stopping_patience_counter = _count(stored)
            self._stop_if_due(args, state, control)
        # the library saves only what has a place there, which a run begun without this lacks
        stored.setdefault(type(self).__name__, self.state())

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


def _count(stateful_callbacks: dict[str, Any]) -> int:
    """Return the evaluations without improvement until a checkpoint, by either callback."""
    for name in (EarlyStopping.__name__, EarlyStoppingCallback.__name__):
        stored = stateful_callbacks.get(name)
        if isinstance(stored, list):
            stored = stored[0]
        if stored:
            return int(stored["attributes"][_COUNTER])
    return 0
