"""Choose the epochs that keep a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

from finetune.training import checkpoint


class KeepEpochs(TrainerCallback):
    """Keep a checkpoint of every n-th epoch, the last and the best, if ``save_strategy`` is epoch.

    The best is kept too because ``load_best_model_at_end`` can only load what was saved.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Look for the best checkpoint of a resumed run here first: the run may have been moved."""
        if state.best_global_step:
            here = Path(args.output_dir or "") / f"checkpoint-{state.best_global_step}"
            places = [here, Path(state.best_model_checkpoint or here)]
            whole = (str(path) for path in places if checkpoint.problem(path) is None)
            state.best_model_checkpoint = next(whole, None)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save if this is an n-th epoch; the library saves the last one."""
        if args.save_strategy == SaveStrategy.EPOCH and state.global_step < state.max_steps:
            epoch = round(state.epoch or 0)
            control.should_save = epoch % self.every == 0

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
