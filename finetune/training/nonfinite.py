"""Steps whose loss or gradient is not finite: stopped, or dropped, before the weights change.

:meth:`Trainer.compute_loss` multiplies a loss that is not finite into its gradient, so that after
the gradients are averaged their norm, which the library computes at each step, is not finite on any
process: all of them come to the same decision and no message is exchanged.

A CPU reads the norm at once. A GPU would have to be waited for: there the fused optimizers of torch
are told to leave the weights alone, on the device, and the flag is read a step later. Other
optimizers, and ``--on_nonfinite skip``, which has to know before the schedule advances, wait.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
import torch.distributed as dist
import transformers

from finetune.data import ROW, windows
from finetune.errors import Diverged, counted
from finetune.runtime import distributed
from finetune.runtime.files import to_json, write_whole
from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments
from finetune.training.sampler import GlobalBatchSampler

#: What ``--on_nonfinite`` may be.
CHOICES = ("stop", "skip")
#: In the run directory: the steps that were not finite.
NAME = "nonfinite.json"
MOST_SKIPPED, MOST_OVERFLOWS = 10, 20  # in a row
_SHOWN = 8  # rows in a message
#: In the history: how many steps were skipped until then.
SKIPPED = "skipped_steps"


class Verdicts:
    """Decides about each step by what was not finite in it.

    Args:
        skips: Whether a step that is not finite is dropped, instead of ending the training.
        scaled: Whether a loss scaler (fp16) skips steps with gradients that overflow, as it should.

    Attributes:
        skipped: How many steps were dropped; those of the loss scaler are not counted.
    """

    def __init__(self, *, skips: bool, scaled: bool, skipped: int = 0, in_a_row: int = 0) -> None:
        self.skips, self.scaled, self.skipped = skips, scaled, skipped
        self._in_a_row, self._overflows = in_a_row, 0

    def of(self, *, loss: bool, gradient: bool) -> str:
        """Return ``go``, ``skip`` or ``stop`` for a step whose loss or gradient is not finite."""
        self._overflows = self._overflows + 1 if self.scaled and gradient else 0
        if self._overflows >= MOST_OVERFLOWS:
            return "stop"
        if not loss and (self.scaled or not gradient):
            self._in_a_row = 0
            return "go"
        self._in_a_row += 1
        if not self.skips or self._in_a_row >= MOST_SKIPPED:
            return "stop"
        self.skipped += 1
        return "skip"

    def why(self) -> str:
        """Return the clause about what came together, where it was not a single step."""
        if self._overflows >= MOST_OVERFLOWS:
            return f", and the loss scaler has skipped {MOST_OVERFLOWS} steps in a row"
        return f", the {MOST_SKIPPED}th step in a row" if self._in_a_row >= MOST_SKIPPED else ""


@dataclass
class _Flag:
    """Whether loss and gradient norm of a step were not finite, on its way from the device."""

    step: int
    epoch: int
    rate: float
    losses: list[torch.Tensor]
    norm: torch.Tensor
    flags: torch.Tensor  # shape (2,): of the loss, of the gradient
    arrived: torch.Event | None

    def read(self) -> tuple[bool, bool]:
        if self.arrived is not None:
            self.arrived.synchronize()
        loss, gradient = self.flags.tolist()
        return bool(loss), bool(gradient)


class FiniteSteps(transformers.Trainer):
    """The part of :class:`~finetune.training.trainer.Trainer` that lets no bad step through.

    Attributes:
        raw_rows: The rows of the training before they were prepared, whose column row number names
            them; else they are named by their number.
        verdicts: Counts the steps that were skipped.
        reads_late: Whether a flag is read a step later, on a device that is not waited for.
    """

    args: FinetuneArguments
    train_dataset: datasets.Dataset

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.raw_rows: datasets.Dataset | None = None
        self.reads_late = False
        self.verdicts = Verdicts(skips=False, scaled=False)
        self._losses: list[torch.Tensor] = []
        self._tr_loss = self._loss_before = torch.zeros(())
        self._flag: _Flag | None = None
        self._was_skipped = False

    def _prepare_for_training(self, *args: Any) -> Any:
        prepared = super()._prepare_for_training(*args)  # type: ignore[no-untyped-call]
        self.watch()
        return prepared

    def watch(self) -> None:
        """Begin to count, and choose how flags are read, once the optimizer is there."""
        skips, scaler = self.args.on_nonfinite == "skip", getattr(self.accelerator, "scaler", None)
        entries = [each for each in self.state.log_history if SKIPPED in each]
        in_a_row, steps = 0, {each["step"] for each in entries}
        while self.state.global_step - in_a_row in steps:
            in_a_row += 1
        skipped = int(entries[-1][SKIPPED]) if entries else 0
        self.verdicts = Verdicts(
            skips=skips, scaled=scaler is not None, skipped=skipped, in_a_row=in_a_row
        )
        fused = getattr(self._inner_optimizer, "_step_supports_amp_scaling", False)
        gated = scaler is not None or (fused and not self.is_fsdp_enabled)
        self.reads_late = self.args.device.type != "cpu" and not skips and gated
        self._flag = None

    def get_batch_samples(self, *args: Any) -> tuple[list[Any], Any]:
        """Begin a step: remember the loss that was summed up until here."""
        self._losses, self._loss_before = [], self._tr_loss.clone()
        found: tuple[list[Any], Any] = super().get_batch_samples(*args)
        return found

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Remember the loss of each micro-batch."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Return the gradient norm, or None where the step is dropped; see the module."""
        self.settle()
        self._take_back()
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        self._flag = self._flagged(torch.as_tensor(norm, device=self.args.device))
        if self.reads_late:
            return norm
        self.settle()
        return None if self._was_skipped else norm

    def _flagged(self, norm: torch.Tensor) -> _Flag:
        """Start the way of the flags to the CPU; on the device, keep the optimizer from its step"""
        if hasattr(norm, "full_tensor"):  # of sharded gradients
            norm = norm.full_tensor()
        bad = ~torch.isfinite(norm.detach())
        loss = bad
        if self.verdicts.scaled:
            loss = ~torch.isfinite(torch.stack(self._losses)).all()
            if self.args.world_size > 1:  # one number, on the device
                seen = loss.float()
                dist.all_reduce(seen, op=dist.ReduceOp.MAX)
                loss = seen > 0
        elif self.reads_late:
            self._inner_optimizer.found_inf = bad.float()
        flags, arrived = torch.stack([loss, bad]), None
        if flags.device.type != "cpu":
            there = torch.empty(2, dtype=torch.bool, pin_memory=True)
            flags, arrived = there.copy_(flags, non_blocking=True), torch.Event(flags.device.type)
            arrived.record()
        step, epoch = self.state.global_step + 1, int(self.state.epoch or 0)
        return _Flag(step, epoch, self._get_learning_rate(), self._losses, norm, flags, arrived)

    @property
    def _inner_optimizer(self) -> Any:
        """The optimizer itself, whose fused steps read ``found_inf``."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def settle(self) -> None:
        """Decide about the step whose flag is still on its way, if there is one.

        Raises:
            Diverged: if the training has to stop; on every process.
        """
        flag, self._flag = self._flag, None
        if flag is None:
            return
        loss, gradient = flag.read()
        verdict = self.verdicts.of(loss=loss, gradient=gradient)
        if verdict == "go":
            return
        record = self._recorded(flag)
        if verdict == "skip":
            self._skip()
            return
        raise Diverged(self._sentence(record))

    def _skip(self) -> None:
        """Let the optimizer step, the schedule and the loss since the last log pass this by."""
        self._was_skipped = True
        optimizer: Any = self.optimizer
        original = optimizer.step

        def dropped(*args: Any, **kwargs: Any) -> None:
            optimizer.step = original
            if self.verdicts.scaled:  # whose scaler drops it, and has to know
                original(*args, **kwargs)
            optimizer._is_overflow = True  # the library leaves the schedule alone

        optimizer.step = dropped
        self._tr_loss.copy_(self._loss_before)
        self._globalstep_last_logged += 1  # means are over the other steps
        self._initial_global_step += 1

    def _take_back(self) -> None:
        if self._was_skipped:
            self._was_skipped = False
            self.optimizer._is_overflow = False  # type: ignore[union-attr]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Log a step that was skipped; look at the last step before anything is made of it."""
        control = self.control
        if control.should_log or control.should_evaluate or control.should_save:
            self.settle()
        if self._was_skipped and self._skipped_at() != self.state.global_step:
            self.log({SKIPPED: self.verdicts.skipped})
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _skipped_at(self) -> int | None:
        """Return the step that was logged last as skipped."""
        return next(
            (int(each["step"]) for each in reversed(self.state.log_history) if SKIPPED in each),
            None,
        )

    def _finalize_training(self, *args: Any) -> Any:
        self.settle()
        return super()._finalize_training(*args)  # type: ignore[no-untyped-call]

    def refuse_broken_weights(self) -> None:
        """Raise ``Diverged`` on every process if a weight is not finite on any of them."""
        assert self.model is not None
        local = [
            each.to_local() if hasattr(each, "to_local") else each  # the shards of this process
            for each in self.model.parameters()
        ]
        finite = [each.detach().isfinite().all() for each in local if each.numel()]
        whole = all(torch.stack([each.to(finite[0].device) for each in finite]).tolist())
        if not all(distributed.gather(whole or not finite)):
            raise Diverged(
                f"the weights are not finite after step {self.state.global_step:,}: no checkpoint "
                f"is made of them. {self._way_on()}"
            )

    def _recorded(self, flag: _Flag) -> dict[str, Any]:
        """Write what is known of a step into the run directory; every process calls it."""
        losses, rank = torch.stack(flag.losses).tolist(), self.args.process_index
        mine = [
            {"rank": rank, "loss": loss, "rows": self.names(rows)}
            for loss, rows in zip(losses, self.micro_batches(flag.step), strict=True)
        ]
        batches = [each for rank in distributed.gather(mine) for each in rank]
        suspects = [each for each in batches if not math.isfinite(each["loss"])]
        record = {
            "step": flag.step,
            "epoch": flag.epoch,
            "learning_rate": flag.rate,
            "not_finite": "loss" if suspects else "gradient",
            "gradient_norm": _shown(flag.norm.item()),
            "rows": [row for each in suspects or batches for row in each["rows"]],
            "micro_batches": [{**each, "loss": _shown(each["loss"])} for each in batches],
        }
        if self.args.should_save:
            path = Path(self.args.output_dir or "", NAME)
            known = json.loads(path.read_text(encoding="utf-8"))["steps"] if path.exists() else []
            before = [each for each in known if each["step"] < flag.step]
            write_whole(path, to_json({"steps": [*before, record]}, indent=2) + "\n")
        if self.verdicts.skips and self.args.process_index == 0:
            logging.getLogger("finetune").warning(f"{_headline(record)}: the step is skipped")
        return record

    def micro_batches(self, step: int) -> list[list[int]]:
        """Return the rows, by their number, that this process has in a step, the first being 1."""
        sampler = GlobalBatchSampler.of(self.args, self.train_dataset, self.args.process_index)
        epoch, index = divmod(step - 1, len(sampler.sizes))
        sampler.set_epoch(epoch)
        parts = list(sampler)
        return parts[index * sampler.accumulation : (index + 1) * sampler.accumulation]

    def names(self, rows: Sequence[int]) -> list[Any]:
        """Return the ids of rows, of windows those of their documents; numbers without ids."""
        raw, documents = self.raw_rows, windows.documents_of(self.train_dataset)
        count = len(self.train_dataset)
        if documents is not None:
            rows, count = list(dict.fromkeys(documents[rows].tolist())), int(documents[-1]) + 1
        if raw is None or ROW not in raw.column_names or len(raw) != count:
            return list(rows)
        return list(raw.select(rows)[ROW][:])

    def _sentence(self, record: dict[str, Any]) -> str:
        rows = record["rows"]
        shown = ", ".join(map(str, rows[:_SHOWN])) + ", ..." * (len(rows) > _SHOWN)
        return (
            f"{_headline(record)}{self.verdicts.why()} (learning rate {record['learning_rate']:g}; "
            f"{counted(len(rows), 'row')}: {shown}): stopped before the weights change; see "
            f"{Path(self.args.output_dir or '', NAME)}. {self._way_on()}"
        )

    def _way_on(self) -> str:
        known = checkpoint.committed(Path(self.args.output_dir or ""))
        last = f"The last checkpoint, {known[0].name}, is good. " if known else ""
        precise = "--precision fp32, " if self.args.bf16 or self.args.fp16 else ""
        return f"{last}Try {precise}a lower --learning_rate, or --on_nonfinite skip"


def _headline(record: dict[str, Any]) -> str:
    what = record["not_finite"]
    values = {each["loss"] for each in record["micro_batches"] if isinstance(each["loss"], str)}
    value = ", ".join(sorted(values)) if what == "loss" else record["gradient_norm"]
    return f"the {what}{'' if what == 'loss' else ' norm'} is {value} at step {record['step']:,}"


def _shown(value: float) -> float | str:
    """Return a number as JSON has it: ``nan`` and ``inf`` as words."""
    return value if math.isfinite(value) else str(value)
