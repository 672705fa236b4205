"""Stop on a signal where nothing is lost: all ranks at one step, or at one batch of an evaluation.

In a step the wish travels with the count of its rows, which the ranks exchange anyway; in an
evaluation they ask each other after each batch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from finetune.runtime import distributed, signals
from finetune.runtime.signals import Stopped

#: What a rank that is to stop adds to its counts of rows.
_FLAG = 1 << 40


class Stopping(TrainerCallback):
    """Knows whether the ranks have agreed to stop, and stops evaluations."""

    def __init__(self) -> None:
        self._told: torch.Tensor | None = None
        self._known: torch.Event | None = None

    def flagged(self, count: torch.Tensor) -> torch.Tensor:
        """Return the counts of this rank with its wish, shape ``(1, counts)``, int64."""
        return (count + _FLAG * bool(signals.requested())).reshape(1, -1)

    def counted(self, counts: torch.Tensor) -> torch.Tensor:
        """Return the counts of all ranks, shape ``(counts,)``, from what :meth:`flagged` gave on
        each, shape ``(ranks, counts)``.
        """
        self._told = (counts // _FLAG).sum()
        if self._told.device.type != "cpu":  # read at the next step, without waiting for this one
            self._told = self._told.to("cpu", non_blocking=True)
            self._known = torch.Event(counts.device.type)
            self._known.record()
        return (counts % _FLAG).sum(dim=0)

    def agreed(self) -> bool:
        """Return whether a rank asked to stop, the same on all of them at the same step."""
        if distributed.ranks().world_size == 1:
            return signals.requested() is not None
        if self._told is None:
            return False
        if self._known is not None:
            self._known.synchronize()
        return bool(self._told.item())

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop an evaluation.

        Raises:
            Stopped: on every rank after the same batch.
        """
        if signals.are_handled():
            for name in filter(None, distributed.gather(signals.requested())):
                raise Stopped(name)
