"""Saving and loading: checkpoints that are whole or not there, also of sharded models."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors.torch import save_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    set_seed,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.errors import RunError, UserError
from finetune.runtime import distributed, signals
from finetune.runtime.files import apply_umask, to_json
from finetune.runtime.signals import Stopped
from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments
from finetune.training.checkpoint import Checkpoint
from finetune.training.nonfinite import FiniteSteps
from finetune.training.stopping import Stopping

#: In a checkpoint: the loss since the last log, which the library forgets.
_LOSS = "loss_since_log.json"
#: Where the final model is written before each of its files is moved into place.
_MODEL = f"{checkpoint.UNCOMMITTED}/model"


class Saving(FiniteSteps):
    """The saving half of :class:`~finetune.training.trainer.Trainer`.

    Attributes:
        configuration: What a checkpoint has to share with the training that resumes from it; see
            :class:`~finetune.training.checkpoint.Checkpoint`.
        reschedules: Whether optimizer and schedule take their settings from the arguments when they
            are restored; else from the checkpoint, where they are the same.
    """

    args: FinetuneArguments

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.configuration: Mapping[str, Any] = {}
        self.reschedules = False
        self._staging: Path | None = None
        self._epoch_end = _EpochEnd()
        self.add_callback(self._epoch_end)
        self.stopping = Stopping()
        self.add_callback(self.stopping)
        self._saved_step = 0
        self._stopped_evaluation = False
        self._resumed: Path | None = None
        self._drawn: _RandomStates | None = None

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
            content = to_json(dataclasses.asdict(state), indent=2, sort_keys=True)
            # with the path of the best
            (staged / checkpoint.STATE).write_text(content + "\n", encoding="utf-8")
            since = {
                "step": self._globalstep_last_logged,
                "loss_by_rank": losses,
                "epoch_ended": self._epoch_end.passed,
                "to_evaluate": self._stopped_evaluation,
                "to_save": self._stopped_evaluation and self.control.should_save,
            }
            (staged / _LOSS).write_text(to_json(since) + "\n", encoding="utf-8")
            checkpoint.commit(staged, final, self.args.world_size, self.configuration)
            best = state.best_model_checkpoint
            checkpoint.rotate(directory, self.args.save_total_limit, Path(best) if best else None)
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(final))
        distributed.gather(None)  # no process looks for it before it is there
        self._saved_step = state.global_step

    def stop(self, name: str = "") -> NoReturn:
        """Save what is trained, unless it is, and stop; every rank calls it at the same step.

        Raises:
            Stopped: always.
        """
        self.settle()
        step = self.state.global_step
        if step > max(self._saved_step, self._initial_global_step):
            assert self.model is not None
            self._save_checkpoint(self.model, None)
        raise Stopped(name or signals.requested() or "a signal to another rank")

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        python_state, random_state = random.getstate(), torch.get_rng_state()
        try:
            metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        except Stopped as wish:
            self._stopped_evaluation = True  # which a resumed run does first, from the same state
            torch.set_rng_state(random_state)
            self.stop(str(wish))
        finally:  # a library that the first evaluation imports may draw, as rich does
            random.setstate(python_state)
        return metrics

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is None:  # else it is pushed once it is committed
            super()._push_from_checkpoint(checkpoint_folder)

    def _finalize_training(self, *args: Any) -> TrainOutput:
        trial, _, start_time = args
        facts = {"trial": trial, "start_time": start_time, "epoch": self.state.epoch}
        self._finish_step(True, model=self.model_wrapped, ignore_keys_for_eval=None, **facts)
        directory = Path(self._get_output_dir(None))
        with self._staged(directory):  # where there is nothing that the library could delete
            output: TrainOutput = super()._finalize_training(*args)
        best = self.state.best_model_checkpoint
        if self.args.should_save and self.args.save_total_limit == 1 and best:
            for path in checkpoint.committed(directory):
                if (
                    path.resolve() != Path(best).resolve()
                    and checkpoint.problem(Path(best)) is None
                ):
                    checkpoint.remove(path)
        return output

    def verified(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """Return the path of a checkpoint, for ``True`` of the newest, that is whole.

        Raises:
            UserError: if it is damaged, or there is none.
        """
        if not resume_from_checkpoint:
            return None
        if resume_from_checkpoint is True or resume_from_checkpoint in ("last", "true", "True"):
            directory = Path(self.args.output_dir or "")
            for path in checkpoint.committed(directory):
                if checkpoint.problem(path) is None:
                    return str(path)
            raise UserError(f"no whole checkpoint in {directory}")
        if (reason := checkpoint.problem(Path(resume_from_checkpoint))) is not None:
            raise UserError(f"{resume_from_checkpoint} is damaged: {reason}")
        return str(resume_from_checkpoint)

    def collator_draws(self) -> bool:
        """Return whether collating a batch draws random numbers, which a resumed run draws anew."""
        rows = self._remove_unused_columns(self.train_dataset, description="training")
        assert self.data_collator is not None
        before = _RandomStates()
        self.data_collator([rows[0]])
        draws = before.differ()
        before.restore()
        return draws

    def _run_epoch(self, **facts: Any) -> None:  # type: ignore[override]
        """Run an epoch as the library does; of the one that was resumed, what is left of it."""
        names = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
        boundary = not facts["steps_trained_in_current_epoch"]
        self._finish_step(boundary, **{name: facts[name] for name in names})
        done = self.state.global_step >= self.state.max_steps
        if done or self.control.should_training_stop:  # the library would train one step more
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**facts)  # type: ignore[no-untyped-call]

    def _finish_step(self, boundary: bool, **facts: Any) -> None:
        """Once after resuming, do what the step of the checkpoint still had to do.

        A signal stops an evaluation in its middle, and a checkpoint of the last step of an epoch
        may be older than the end of the epoch.
        """
        if self._resumed is None:
            return
        path, self._resumed = self._resumed, None
        since = json.loads((path / _LOSS).read_text(encoding="utf-8"))
        losses = since["loss_by_rank"]
        mean = sum(losses) / len(losses)
        same = len(losses) == self.args.world_size
        self._tr_loss += losses[self.args.process_index] if same else mean
        self._total_loss_scalar -= mean  # train_loss is of the steps from here
        self._globalstep_last_logged = since["step"]
        self._load_rng_state(str(path))
        if since["to_evaluate"]:
            self.control.should_evaluate, self.control.should_save = True, since["to_save"]
            self._maybe_log_save_evaluate(self._tr_loss, None, **facts)
        done = self.state.global_step >= self.state.max_steps
        if not since["epoch_ended"] and (boundary or done):
            args, state = self.args, self.state
            self.control = self.callback_handler.on_epoch_end(args, state, self.control)
            self._maybe_log_save_evaluate(self._tr_loss, None, **facts)
        self._drawn = _RandomStates()  # an evaluation draws; the library loads the checkpoint's

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        optimizer, scheduler = self.optimizer, self.lr_scheduler
        assert optimizer is not None
        settings = [{**group, "params": None} for group in optimizer.param_groups]
        with _named(checkpoint, "optimizer or scheduler state"):
            super()._load_optimizer_and_scheduler(checkpoint)
        if self.reschedules and isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in settings]
            rates = scheduler._last_lr = scheduler.get_lr()
            for group, new, rate in zip(optimizer.param_groups, settings, rates, strict=True):
                group |= {**new, "params": group["params"], "lr": rate}

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "loss scaler"):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore random states; of another number of processes, take fresh ones."""
        if self._drawn is not None:
            states, self._drawn = self._drawn, None
            states.restore()
            return
        if checkpoint is None:
            return
        saved_by, rank = Checkpoint.read(Path(checkpoint)).world_size, self.args.process_index
        if saved_by == self.args.world_size:
            name = f"rng_state_{rank}.pth" if saved_by > 1 else "rng_state.pth"
            if not (Path(checkpoint) / name).exists():  # of another machine's disk
                raise UserError(f"{checkpoint} has no {name}: start the machines in their order")
            with _named(checkpoint, "random state"):
                super()._load_rng_state(checkpoint)
        else:  # masks that were not drawn before
            drawn = self.state.global_step * self.args.world_size
            set_seed(self.args.seed + drawn + self.args.process_index)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model, also one that FSDP has sharded; checkpoints stay sharded."""
        if self.is_fsdp_enabled and not _internal_call:
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(output_dir, _internal_call)
        apply_umask(Path(output_dir or self.args.output_dir or ""), "*.safetensors")

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save on the first process of another machine too, with ``save_on_each_node``; what is not
        part of a checkpoint, aside, so that each file is replaced once it is whole.
        """
        directory = Path(output_dir or self.args.output_dir or "")
        if not self.args.should_save:  # it takes part where the weights are sharded
            super()._save(str(directory), state_dict)
            return
        aside = directory if self._staging is not None else made(directory, _MODEL)
        super()._save(str(aside), state_dict)
        if self.args.process_index and isinstance(self.model, PreTrainedModel):
            # whose `save_pretrained` leaves it to rank 0
            self.model.config.save_pretrained(aside)
            save_model(self.model, str(aside / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
        if aside != directory:
            move_into(aside, directory)
            checkpoint.clear(directory)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that lacks weights: the library says so in a warning and goes on."""
        left_out = set(getattr(self.model, "_keys_to_ignore_on_save", None) or ())
        missing = sorted(set(load_result.missing_keys) - left_out)
        if missing and self.model is not None:  # one of several names of a weight is in a file
            named = self.model.state_dict(keep_vars=True)
            there = {id(each) for name, each in named.items() if name not in missing}
            missing = [name for name in missing if id(named.get(name)) not in there]
        if missing:
            raise UserError(
                f"the checkpoint lacks {len(missing)} weights of the model, the first of them "
                f"'{missing[0]}': it cannot be loaded"
            )


class _RandomStates:
    """Those of Python, NumPy and torch on the CPU, as they are now."""

    def __init__(self) -> None:
        self.python, self.numpy = random.getstate(), np.random.get_state()
        self.torch = torch.get_rng_state()

    def differ(self) -> bool:
        """Return whether something has drawn since."""
        return (
            random.getstate() != self.python
            or str(np.random.get_state()) != str(self.numpy)
            or not torch.equal(torch.get_rng_state(), self.torch)
        )

    def restore(self) -> None:
        """Forget what was drawn since."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


class _EpochEnd(TrainerCallback):
    """Knows whether the epoch of the last step has ended; takes intervals from the arguments."""

    passed = False

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log, evaluate and save as often as is asked now; a checkpoint has what was asked then."""
        state.compute_steps(args, state.max_steps)  # type: ignore[no-untyped-call]

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Begin to count anew."""
        self.passed = False

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Keep that it has ended; it is saved after this."""
        self.passed = True


@contextlib.contextmanager
def _named(checkpoint: str | None, part: str) -> Iterator[None]:
    """Name the checkpoint and its part where loading that fails."""
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError) as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(f"{checkpoint}: the {part} cannot be loaded: {line}") from error


def made(directory: Path, name: str) -> Path:
    """Return a new, empty directory of that name; what a killed process left there is removed."""
    path = directory / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def move_into(source: Path, target: Path) -> None:
    """Move what a directory holds into another one, each file at once, and remove it.

    Raises:
        RunError: if a directory stands where a file is to be.
    """
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        elif place.is_dir() and not place.is_symlink():
            raise RunError(f"{place} is a directory: remove it, then add --resume")
        os.replace(path, place)
    source.rmdir()
