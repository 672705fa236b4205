"""Stop on a signal where nothing is lost: all ranks at one step, or at one batch of an evaluation.

In a step the wish travels with the count of its rows, which the ranks exchange anyway. Evaluations
exchange outputs batch by batch, so no rank is more than a batch ahead: the first that is asked
names a batch in the key-value store of the job, and all of them stop there.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from finetune.runtime import distributed, signals
from finetune.runtime.signals import Stopped

#: What a rank that is to stop adds to its counts of rows.
_FLAG = 1 << 40
_BATCHES_AHEAD = 2


class Stopping(TrainerCallback):
    """Knows whether the ranks have agreed to stop, and stops evaluations."""

    def __init__(self) -> None:
        self._evaluation = self._batch = 0
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
        name, self._batch = signals.requested(), self._batch + 1
        if distributed.ranks().world_size > 1 and signals.are_handled():
            store, key = distributed.store_of_job(), f"finetune/stop/{self._evaluation}"
            if name is not None:
                store.compare_set(key, "", f"{self._batch + _BATCHES_AHEAD} {name}")
            name = None
            if store.check([key]):
                batch, _, wish = store.get(key).decode().partition(" ")
                name = wish if self._batch >= int(batch) else None
        if name is not None:
            raise Stopped(name)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the next evaluation."""
        self._evaluation, self._batch = self._evaluation + 1, 0

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Count the next evaluation."""
        self._evaluation, self._batch = self._evaluation + 1, 0
