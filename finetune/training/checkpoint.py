"""Which epochs keep a checkpoint, and which checkpoint a run goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SaveStrategy, get_last_checkpoint

from finetune.errors import UserError


class KeepEpochs(TrainerCallback):
    """With ``save_strategy="epoch"``: a checkpoint every ``every`` epochs, and of the last and the
    best.

    The best is kept too because ``load_best_model_at_end`` can only load what was saved.

    Args:
        every: Epochs between two checkpoints.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """In a run that is resumed: the best checkpoint is the one here, wherever it was saved.

        The state remembers a path. If the run was moved since, another may lie there now.
        """
        if state.best_global_step:
            here = Path(args.output_dir or "") / f"checkpoint-{state.best_global_step}"
            state.best_model_checkpoint = str(here) if here.is_dir() else None

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Not this one, unless it is its turn or the last."""
        if args.save_strategy == SaveStrategy.EPOCH and state.global_step < state.max_steps:
            epoch = round(state.epoch or 0)
            control.should_save = epoch % self.every == 0

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The best so far after all."""
        metrics: dict[str, float] = kwargs["metrics"]
        if args.save_strategy != SaveStrategy.EPOCH or not args.load_best_model_at_end:
            return
        name = args.metric_for_best_model or "loss"
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
        if value is None:
            return
        best = state.best_metric
        if best is None or (value > best if args.greater_is_better else value < best):
            control.should_save = True


def to_resume(resume_from_checkpoint: str | None, output_dir: str | None) -> str | None:
    """The checkpoint that ``--resume_from_checkpoint`` means.

    Args:
        resume_from_checkpoint: ``last`` for the newest in ``output_dir``, or a path.
        output_dir: Directory of the run.

    Raises:
        UserError: if there is none.
    """
    if resume_from_checkpoint is None:
        return None
    if resume_from_checkpoint in ("last", "true", "True"):
        found = (
            get_last_checkpoint(output_dir)  # type: ignore[no-untyped-call]
            if Path(output_dir or "").is_dir()
            else None
        )
        if found is None:
            raise UserError(
                f"--resume_from_checkpoint last: no checkpoint in {output_dir}; "
                "leave the flag out to start anew"
            )
        return str(found)
    if not (Path(resume_from_checkpoint) / "trainer_state.json").exists():
        raise UserError(
            f"--resume_from_checkpoint {resume_from_checkpoint}: expected 'last' or a directory "
            "that holds a trainer_state.json"
        )
    return resume_from_checkpoint
