"""Saving and loading: checkpoints that are whole or not there, also of sharded models."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_model
from transformers import PreTrainedModel, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.errors import UserError
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments

#: In a checkpoint: the loss since the last log, which the library forgets.
_LOSS = "loss_since_log.json"


class Saving(transformers.Trainer):
    """The saving half of :class:`~finetune.training.trainer.Trainer`.

    Attributes:
        configuration: What a checkpoint has to share with the training that resumes from it; see
            :class:`~finetune.training.checkpoint.Checkpoint`.
    """

    args: FinetuneArguments

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.configuration: Mapping[str, Any] = {}
        self._staging: Path | None = None

    def _get_output_dir(self, trial: Any) -> str:
        """Return where the library writes checkpoints, and looks for old ones to delete."""
        return str(self._staging or super()._get_output_dir(trial))

    @contextlib.contextmanager
    def _staged(self, directory: Path) -> Iterator[Path]:
        self._staging = directory / checkpoint.UNCOMMITTED
        try:
            yield self._staging
        finally:
            self._staging = None

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save as the library does, then commit the checkpoint and delete the surplus ones."""
        state, directory = self.state, Path(self._get_output_dir(trial))
        final = directory / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        with self._staged(directory) as staging:
            super()._save_checkpoint(model, trial)
        if state.best_model_checkpoint and Path(state.best_model_checkpoint).parent == staging:
            state.best_model_checkpoint = str(final)
        losses = distributed.gather(self._tr_loss.item())  # every process has written its part
        if self.args.should_save:
            staged = staging / final.name
            state.save_to_json(str(staged / checkpoint.STATE))  # with the path of the best
            since = {"step": self._globalstep_last_logged, "loss_by_rank": losses}
            (staged / _LOSS).write_text(json.dumps(since) + "\n", encoding="utf-8")
            checkpoint.commit(staged, final, self.args.world_size, self.configuration)
            best = state.best_model_checkpoint
            checkpoint.rotate(directory, self.args.save_total_limit, Path(best) if best else None)
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(final))
        distributed.gather(None)  # no process looks for it before it is there

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is None:  # else it is pushed once it is committed
            super()._push_from_checkpoint(checkpoint_folder)  # type: ignore[no-untyped-call]

    def _finalize_training(self, *args: Any) -> TrainOutput:
        directory = Path(self._get_output_dir(None))
        with self._staged(directory):  # where there is nothing that the library could delete
            output: TrainOutput = super()._finalize_training(*args)  # type: ignore[no-untyped-call]
        best = self.state.best_model_checkpoint
        if self.args.should_save and self.args.save_total_limit == 1 and best:
            for path in checkpoint.committed(directory):
                if (
                    path.resolve() != Path(best).resolve()
                    and checkpoint.problem(Path(best)) is None
                ):
                    checkpoint.remove(path)
        return output

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "optimizer or scheduler state"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "loss scaler"):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore random states, and the loss since the last log, before the first step."""
        if checkpoint is None:
            return
        since = json.loads(Path(checkpoint, _LOSS).read_text(encoding="utf-8"))
        losses, rank = since["loss_by_rank"], self.args.process_index
        if same := len(losses) == self.args.world_size:
            with _named(checkpoint, "random state"):
                super()._load_rng_state(checkpoint)
        else:  # masks that were not drawn before
            set_seed(self.args.seed + self.state.global_step * self.args.world_size + rank)
        carried = losses[rank] if same else sum(losses) / len(losses)
        self._tr_loss += carried
        self._total_loss_scalar -= sum(losses) / len(losses)  # train_loss is of the steps from here
        self._globalstep_last_logged = since["step"]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model, also one that FSDP has sharded; checkpoints stay sharded."""
        if self.is_fsdp_enabled and not _internal_call:
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(output_dir, _internal_call)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save on the first process of another machine too, with ``save_on_each_node``."""
        super()._save(output_dir, state_dict)
        if not (self.args.save_on_each_node and self.args.should_save and self.args.process_index):
            return
        if isinstance(self.model, PreTrainedModel):  # whose `save_pretrained` leaves it to rank 0
            directory = Path(output_dir or self.args.output_dir or "")
            self.model.config.save_pretrained(directory)
            save_model(self.model, str(directory / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that lacks weights: the library says so in a warning and goes on."""
        left_out = set(getattr(self.model, "_keys_to_ignore_on_save", None) or ())
        if missing := sorted(set(load_result.missing_keys) - left_out):
            raise UserError(
                f"the checkpoint lacks {len(missing)} weights of the model, the first of them "
                f"'{missing[0]}': it cannot be loaded"
            )


@contextlib.contextmanager
def _named(checkpoint: str | None, part: str) -> Iterator[None]:
    """Name the checkpoint and its part where loading that fails."""
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError) as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(f"{checkpoint}: the {part} cannot be loaded: {line}") from error
