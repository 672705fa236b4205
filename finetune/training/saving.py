"""Checkpoints that a resumed training continues from to the bit, or that do not count.

``Trainer`` writes a checkpoint; what is added here is ``checkpoint.json`` (see :mod:`.checkpoint`),
what the step still had to do, and the refusal of numbers that are not finite. A full disk and
exhausted memory are explained in a sentence, with the flags that help.
"""

from __future__ import annotations

import math
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_model
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from transformers import DefaultFlowCallback, PreTrainedModel
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.errors import Diverged, RunError, UserError
from finetune.models.cpu import exchange
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments
from finetune.training.callbacks import TrainingCallback
from finetune.training.checkpoint import Checkpoint

#: What the system and the libraries say, whose errors have no type of their own.
_DISK = ("No space left", "quota exceeded", "File too large", "StreamWriter", "unexpected pos")
_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Cannot allocate")
#: Steps in a row that a loss scaler (fp16) may skip because gradients overflow.
_MOST_OVERFLOWS = 20


class CheckpointTrainer(transformers.Trainer):
    """The half of :class:`~finetune.training.trainer.Trainer` that saves and resumes.

    Attributes:
        configuration: What a checkpoint has to share with the training that resumes from it.
        reschedules: Whether optimizer and schedule take their settings from the arguments when they
            are restored; else from the checkpoint, where they are the same.
    """

    args: FinetuneArguments
    callback: TrainingCallback
    configuration: Mapping[str, Any] = {}
    reschedules = False
    _resumed: Path | None = None
    _grad_norm: Any = None  # until it is known to be finite
    _overflows = 0

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Describe the checkpoint when all processes have written it, and rotate only then."""
        self.require_finite_weights()
        directory = Path(self._get_output_dir(trial))
        path = directory / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            if (path / Checkpoint.NAME).exists():
                checkpoint.set_aside(path, "replaced")
            shutil.rmtree(path, ignore_errors=True)
        distributed.gather(None)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with explained(self.args, f"writing {path.name}"):
                super()._save_checkpoint(model, trial)
                pending = {
                    "last_logged_step": self._globalstep_last_logged,
                    "loss_by_process": distributed.gather(self._tr_loss.item()),
                }
                if self.args.should_save:
                    checkpoint.complete(path, configuration=self.configuration, pending=pending)
        finally:
            self.args.save_total_limit = limit
            if self.args.should_save and not (path / Checkpoint.NAME).exists():
                shutil.rmtree(path, ignore_errors=True)  # the disk may be full
        if self.args.should_save:
            for replaced in directory.glob("replaced-checkpoint-*"):
                shutil.rmtree(replaced, ignore_errors=True)
            rotate_checkpoints(str(directory), limit, self.state.best_model_checkpoint)
        distributed.gather(None)  # no process looks for it before it is complete

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save on the first process of other machines too (``--save_on_each_node``).

        ``save_pretrained`` (5.23) leaves that to rank 0, and safetensors lets only the owner read.
        """
        directory = Path(output_dir or self.args.output_dir or "")
        for path in directory.glob("*") if self.args.should_save else ():
            if path.is_symlink() and not path.is_dir():  # the library would write where it points
                path.unlink()
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        if self.args.process_index and isinstance(self.model, PreTrainedModel):
            self.model.config.save_pretrained(directory)
            save_model(self.model, str(directory / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
        for path in directory.glob("*.safetensors"):
            shutil.copymode(directory / "training_args.bin", path)  # which has that of the umask

    def save_stopped(self) -> None:
        """Save the last step, unless it is saved; every process calls it."""
        path = Path(self.args.output_dir or "", f"checkpoint-{self.state.global_step}")
        is_new = self.state.global_step > self._initial_global_step
        if is_new and not (path / Checkpoint.NAME).exists():
            assert self.model is not None
            self._save_checkpoint(self.model, None)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that lacks weights: the library goes on with a warning."""
        missing = {*load_result.missing_keys}
        missing -= {*(getattr(self.model, "_keys_to_ignore_on_save", None) or ())}
        if missing := missing - {*getattr(self.model, "all_tied_weights_keys", ())}:
            raise UserError(f"the checkpoint lacks weights of the model: {', '.join(missing)}")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Apply settings that ``--allow_changed`` accepts; the library restores those before."""
        optimizer = self.optimizer
        scheduler = self.lr_scheduler
        assert optimizer is not None
        settings = [{**group, "params": None} for group in optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.reschedules and isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in settings]
            rates = scheduler._last_lr = scheduler.get_lr()
            for group, new, rate in zip(optimizer.param_groups, settings, rates, strict=True):
                group |= {**new, "params": group["params"], "lr": rate}

    def begin_training(self) -> None:
        """After resuming, evaluate first what was not evaluated before, and save it again.

        A signal stops an evaluation in its middle, and a checkpoint of the last step of an epoch
        may be older than the end of the epoch. Called after the other callbacks.
        """
        model = self.model_wrapped
        state = self.state
        if isinstance(model, DistributedDataParallel) and self.args.cpu_kernels == "auto":
            exchange.use(model)  # gradients, in memory
        # the intervals of logging, evaluating and saving are those of this start
        state.compute_steps(self.args, state.max_steps)  # type: ignore[no-untyped-call]
        if self._resumed is None:
            return
        directory = Path(self.args.output_dir or "")
        best = directory / f"checkpoint-{state.best_global_step}"
        if best.exists():  # the run may have moved
            state.best_model_checkpoint = str(best)
        pending = Checkpoint.read(self._resumed).pending
        losses = pending.get("loss_by_process", [0.0])
        mean = sum(losses) / len(losses)
        is_same_job = len(losses) == self.args.world_size
        self._tr_loss += losses[self.args.process_index] if is_same_job else mean
        self._total_loss_scalar -= mean  # train_loss is of the steps from here
        self._globalstep_last_logged = pending.get("last_logged_step", state.global_step)
        self._load_rng_state(str(self._resumed))
        self.callback.on_evaluate(self.args, state, self.control)  # it may have stopped early
        entries = [entry for entry in state.log_history if entry["step"] == state.global_step]
        is_evaluated = any("eval_loss" in entry for entry in entries)
        epoch = state.epoch or 0.0
        ends = [DefaultFlowCallback().on_step_end]
        if float(epoch).is_integer() or state.global_step >= state.max_steps:
            ends.append(self.callback_handler.on_epoch_end)
        for end in ends:
            self.control = end(self.args, state, self.control)
            self.control.should_evaluate &= not is_evaluated
            # also for the random numbers that the evaluation draws
            self.control.should_save = self.control.should_evaluate
            if self.control.should_save:
                self._resumed = directory / f"checkpoint-{state.global_step}"
            self._maybe_log_save_evaluate(
                self._tr_loss, None, model, None, epoch, None, time.time()
            )

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Stop before the weights change, or on an accelerator before they are used.

        There the norm is read a step later, when it is known without waiting.
        """
        self._require_finite(self.state.global_step)
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        self._grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if self.args.device.type == "cpu":
            self._require_finite(self.state.global_step + 1)
        return norm

    def _require_finite(self, step: int) -> None:
        """Raise ``Diverged``, on every process, if loss or gradient of this step is not finite."""
        norm, self._grad_norm = self._grad_norm, None
        if norm is None:
            return
        self._overflows = 0 if math.isfinite(norm) else self._overflows + 1
        if self._overflows <= (_MOST_OVERFLOWS if self.accelerator.scaler is not None else 0):
            return  # finite, or the loss scaler skips the step
        paths = checkpoint.list_checkpoints(Path(self.args.output_dir or ""), complete=True)
        last = f"The last checkpoint, {paths[0].name}, is good. " if paths else ""
        raise Diverged(
            f"the loss or the gradient norm is not finite ({float(norm)}) at step {step:,} "
            f"(learning rate {self._get_learning_rate():g}): stopped. {last}Try --precision fp32 "
            "or a lower --learning_rate"
        )

    def require_finite_weights(self) -> None:
        """Raise ``Diverged`` if a weight, or the gradient norm of the last step, is not finite."""
        self._require_finite(self.state.global_step)
        # with FSDP a shard is not finite on one process only, and the others would wait
        weights = () if self.is_fsdp_enabled or self.model is None else self.model.parameters()
        if not all(bool(weight.isfinite().all()) for weight in weights):
            step = f"after step {self.state.global_step:,}"
            raise Diverged(f"the weights are not finite {step}: try a lower --learning_rate")


@contextmanager
def explained(arguments: FinetuneArguments, work: str) -> Iterator[None]:
    """Raise a ``RunError``, with what helps, where the disk is full or an allocation failed in some
    work like ``writing checkpoint-9``. Where Linux runs out of memory it kills the process.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        texts = "".join(traceback.format_exception(error, limit=0))  # also of what it came from
        if any(text in texts for text in _DISK):
            raise RunError(
                f"the disk of {arguments.output_dir} is full: {work} failed. Free some space, then "
                "add --resume; smaller: --save_total_limit 1, or --save_only_model true"
            ) from error
        if isinstance(error, MemoryError) or any(text in texts for text in _MEMORY):
            raise RunError(
                f"out of memory on {arguments.device} in {work}: try a larger "
                "--gradient_accumulation_steps (the same global batch), --gradient_checkpointing "
                "true, --precision bf16, a smaller --max_length, --global_batch_size or "
                "--per_device_eval_batch_size"
            ) from error
        raise
