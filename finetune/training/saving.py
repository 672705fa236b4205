"""Checkpoints that a resumed training continues from to the bit, or that do not count.

``Trainer`` writes a checkpoint; what is added here is ``checkpoint.json`` (see :mod:`.checkpoint`),
what the step still had to do, and the refusal of numbers that are not finite. A full disk and
exhausted memory are explained in a sentence, with the flags that help.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.errors import Diverged, RunError, UserError
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments
from finetune.training.callbacks import StopRequests
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
    stop_requests: StopRequests
    configuration: Mapping[str, Any] = {}
    reschedules = False
    _resumed: Path | None = None
    _torch_state: torch.Tensor | None = None
    _grad_norm: tuple[int, Any] | None = None  # and its step
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
                    "evaluation": self.stop_requests.pending_evaluation,
                    "save": self.stop_requests.pending_save,
                    "epoch_end": not self.stop_requests.is_epoch_ended,
                }
                if self.args.should_save:
                    facts = {"world_size": self.args.world_size, "pending": pending}
                    checkpoint.complete(path, configuration=self.configuration, **facts)
        finally:
            self.args.save_total_limit = limit
            if self.args.should_save:
                if not (path / Checkpoint.NAME).exists():  # the disk may be full
                    shutil.rmtree(path, ignore_errors=True)
                checkpoint.settle_replaced(directory)
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            checkpoint.rotate(directory, limit, Path(best) if best else None)
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
        missing = set(load_result.missing_keys)
        for names in ("_keys_to_ignore_on_save", "all_tied_weights_keys"):
            missing -= set(getattr(self.model, names, None) or ())
        if missing:
            raise UserError(f"the checkpoint lacks weights of the model: {', '.join(missing)}")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Apply settings that ``--allow_changed`` accepts; the library restores those before."""
        optimizer, scheduler = self.optimizer, self.lr_scheduler
        assert optimizer is not None
        settings = [{**group, "params": None} for group in optimizer.param_groups]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:  # of another optimizer
            raise UserError(f"{checkpoint} cannot be loaded: {error}") from error
        if self.reschedules and isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in settings]
            rates = scheduler._last_lr = scheduler.get_lr()
            for group, new, rate in zip(optimizer.param_groups, settings, rates, strict=True):
                group |= {**new, "params": group["params"], "lr": rate}

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Keep the state of an evaluation that has drawn since the checkpoint."""
        super()._load_rng_state(checkpoint)
        if self._torch_state is not None:
            torch.set_rng_state(self._torch_state)
            self._torch_state = None

    def begin_training(self) -> None:
        """After resuming, evaluate first what the checkpoint had still to evaluate.

        A signal stops an evaluation in its middle, and a checkpoint of the last step of an epoch
        may be older than the end of the epoch. Called after the other callbacks.
        """
        if self._resumed is None:
            return
        pending = Checkpoint.read(self._resumed).pending
        losses = pending.get("loss_by_process", [0.0])
        mean = sum(losses) / len(losses)
        is_same_job = len(losses) == self.args.world_size
        self._tr_loss += losses[self.args.process_index] if is_same_job else mean
        self._total_loss_scalar -= mean  # train_loss is of the steps from here
        self._globalstep_last_logged = pending.get("last_logged_step", self.state.global_step)
        self._load_rng_state(str(self._resumed))
        epoch, is_last = self.state.epoch or 0.0, self.state.global_step >= self.state.max_steps
        ends_epoch = pending.get("epoch_end") and (float(epoch).is_integer() or is_last)
        if pending.get("evaluation"):
            self.control.should_evaluate = True
            self.control.should_save = bool(pending["save"])
            self._log_save_evaluate()
        if ends_epoch:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_save_evaluate()
        if float(epoch).is_integer():  # as at the end of each epoch, see Trainer._run_epoch
            self._tr_loss = self.accelerator.reduce(self._tr_loss, reduction="mean")
        self._torch_state = torch.get_rng_state()  # the library loads that of the checkpoint again

    def _log_save_evaluate(self) -> None:
        trial, ignored_keys, epoch = None, None, self.state.epoch or 0.0
        self._maybe_log_save_evaluate(
            self._tr_loss, None, self.model_wrapped, trial, epoch, ignored_keys, time.time()
        )

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Stop before the weights change, or on an accelerator before they are used.

        There the norm is read a step later, when it is known without waiting.
        """
        self.require_finite()
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._grad_norm = None if norm is None else (self.state.global_step + 1, full_norm)
        if self.args.device.type == "cpu":
            self.require_finite()
        return norm

    def require_finite(self) -> None:
        """Raise ``Diverged``, on every process, if the gradient norm of the last step or its loss
        is not finite.
        """
        if self._grad_norm is None:
            return
        (step, norm), self._grad_norm = self._grad_norm, None
        if math.isfinite(norm):
            self._overflows = 0
            return
        self._overflows += 1
        if self.accelerator.scaler is not None and self._overflows < _MOST_OVERFLOWS:
            return  # the loss scaler skips the step
        paths = checkpoint.list_checkpoints(Path(self.args.output_dir or ""), complete=True)
        last = f"The last checkpoint, {paths[0].name}, is good. " if paths else ""
        raise Diverged(
            f"the loss or the gradient norm is not finite ({float(norm)}) at step {step:,} "
            f"(learning rate {self._get_learning_rate():g}): stopped. {last}Try --precision fp32 "
            "or a lower --learning_rate"
        )

    def require_finite_weights(self) -> None:
        """Raise ``Diverged`` if a weight, or the gradient norm of the last step, is not finite."""
        self.require_finite()
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
        if _mentions(error, _DISK):
            raise RunError(
                f"the disk of {arguments.output_dir} is full: {work} failed. Free some space, then "
                "add --resume; smaller: --save_total_limit 1, or --save_only_model true"
            ) from error
        if isinstance(error, MemoryError) or _mentions(error, _MEMORY):
            raise RunError(
                f"out of memory on {arguments.device} in {work}: try a larger "
                "--gradient_accumulation_steps (the same global batch), --gradient_checkpointing "
                "true, --precision bf16, a smaller --max_length, --global_batch_size or "
                "--per_device_eval_batch_size"
            ) from error
        raise


def _mentions(error: BaseException | None, texts: tuple[str, ...]) -> bool:
    """Return whether an error, or one that it came from, has one of these texts."""
    while error is not None:
        if any(text in str(error) for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return False
