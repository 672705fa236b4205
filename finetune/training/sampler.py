"""Steps made of *global* batches, from the seed and the epoch alone.

Each epoch is one order of the rows, cut into global batches; a global batch is cut into
micro-batches, and each of these into the shares of the processes. So every step sees the same rows
on one process, on two, and with accumulation, each at most once an epoch. An incomplete last batch
is left out, and since the order changes, it is another handful of rows each epoch.

The random order is that of torch's ``DistributedSampler`` and accelerate's
``SeedableRandomSampler``, so that a hand-written loop of the same seed sees the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Sampler

_BATCHES_SORTED_TOGETHER = 50


class GlobalBatchSampler(Sampler[list[int]]):
    """The micro-batches of one process, as a ``batch_sampler`` of ``DataLoader``.

    Args:
        rows: How many rows the data set has.
        global_batch_size: Rows of a step over all processes and accumulation steps.
        gradient_accumulation_steps: Micro-batches of a step.
        world_size: Processes.
        rank: This process.
        seed: Of the order.
        strategy: ``random``, ``sequential``, or ``group_by_length``: steps of rows of like length,
            in random order but for the longest, which comes first: memory runs out at once or
            never.
        lengths: The length of each row, for ``group_by_length``.
    """

    def __init__(
        self,
        rows: int,
        *,
        global_batch_size: int,
        gradient_accumulation_steps: int = 1,
        world_size: int = 1,
        rank: int = 0,
        seed: int = 42,
        strategy: str = "random",
        lengths: Sequence[int] | None = None,
    ) -> None:
        share, rest = divmod(global_batch_size, gradient_accumulation_steps * world_size)
        assert rest == 0, "FinetuneArguments resolves the global batch into equal shares"
        assert lengths is not None or strategy != "group_by_length"
        self.rows, self.global_batch_size, self.share = rows, global_batch_size, share
        self.accumulation, self.world_size, self.rank = (
            gradient_accumulation_steps,
            world_size,
            rank,
        )
        self.seed, self.strategy, self.lengths = seed, strategy, lengths
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch; ``Trainer`` calls it, also when it resumes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows // self.global_batch_size * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps():
            for micro in step.reshape(self.accumulation, self.world_size, self.share):
                yield micro[self.rank].tolist()

    def steps(self) -> np.ndarray:
        """The rows of every step of this epoch, shape ``(steps, global_batch_size)``."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        steps = self.rows // self.global_batch_size
        order: np.ndarray = np.arange(self.rows)
        if self.strategy != "sequential":
            order = torch.randperm(self.rows, generator=generator).numpy()
        order = order[: steps * self.global_batch_size]
        if self.strategy == "group_by_length":
            assert self.lengths is not None
            lengths = np.asarray(self.lengths)
            together = _BATCHES_SORTED_TOGETHER * self.global_batch_size
            order = np.concatenate(
                [
                    chunk[np.argsort(-lengths[chunk], kind="stable")]
                    for chunk in np.split(order, range(together, len(order), together))
                ]
            )
        batches = order.reshape(steps, self.global_batch_size)
        if self.strategy == "group_by_length":
            batches = batches[torch.randperm(steps, generator=generator).numpy()]
            longest = int(lengths[batches].max(axis=1).argmax()) if steps else 0
            batches[[0, longest]] = batches[[longest, 0]]
        return batches
