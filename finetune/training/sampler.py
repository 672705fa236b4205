"""Steps made of *global* batches, from the seed and the epoch alone.

Each epoch is one order of the rows, cut into global batches, these into micro-batches, and these
into the shares of the processes. So every step sees the same rows on one process, on two, and with
accumulation, each at most once an epoch. Shares have as many rows each, and nearly as many tokens
where rows have a length: all processes wait for the one that has most.

Of a number of rows, an incomplete last batch is left out, another handful of rows each epoch. Of a
number of tokens, all rows take part, sorted by length, and shares may differ by a row, which the
loss, a sum over the rows of the global step, allows.

With balanced classes an epoch has as many steps, and as many rows of each class: the rows of a rare
class come several times, those of a frequent class in turn, some in this epoch, others in the next.
A row comes again only once every other row of its class has come.

The random order is that of torch's ``DistributedSampler`` and accelerate's
``SeedableRandomSampler``, so that a hand-written loop of the same seed sees the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import datasets
import numpy as np
import torch
from torch.utils.data import Sampler

from finetune.data import batches
from finetune.errors import UserError
from finetune.runtime import distributed
from finetune.training.arguments import ArgumentValues, FinetuneArguments

_BATCHES_SORTED_TOGETHER = 50


class GlobalBatchSampler(Sampler[list[int]]):
    """The micro-batches of one process, as a ``batch_sampler`` of ``DataLoader``.

    Args:
        rows: How many rows the data set has.
        global_batch_size: Rows of a step over all processes and accumulation steps.
        max_tokens: Of a step, padding included, instead of a number of rows.
        gradient_accumulation_steps: Micro-batches of a step.
        world_size: Processes.
        rank: This process.
        seed: Of the order.
        strategy: ``random``, ``sequential``, or ``group_by_length``: steps of rows of like length,
            in random order but for the longest, which comes first: memory runs out at once or
            never.
        lengths: The length of each row, for ``group_by_length`` and for equal shares.
        classes: The class of each row, if every epoch is to have as many of each.
        on_epoch: Called with each epoch and the seed; what draws random numbers for rows needs
            them.

    Attributes:
        sizes: Rows of each step of an epoch.
    """

    def __init__(
        self,
        rows: int,
        *,
        global_batch_size: int | None = None,
        max_tokens: int | None = None,
        gradient_accumulation_steps: int = 1,
        world_size: int = 1,
        rank: int = 0,
        seed: int = 42,
        strategy: str = "random",
        lengths: Sequence[int] | np.ndarray | None = None,
        classes: Sequence[int] | np.ndarray | None = None,
        on_epoch: Callable[[int, int], object] | None = None,
    ) -> None:
        assert (global_batch_size is None) != (max_tokens is None)
        assert lengths is not None or strategy != "group_by_length"
        assert classes is None or (max_tokens is None and strategy != "sequential")
        self.rows, self.global_batch_size = rows, global_batch_size
        self.world_size, self.rank = world_size, rank
        self.accumulation = gradient_accumulation_steps
        self.seed, self.strategy, self.epoch = seed, strategy, 0
        self.on_epoch = on_epoch
        self.lengths = None if lengths is None else np.asarray(lengths)
        self._rows_by_class = None if classes is None else _group_by_class(np.asarray(classes))
        self._steps: tuple[int, list[np.ndarray]] = (-1, [])  # of the epoch that was asked for last
        if global_batch_size is not None:
            assert global_batch_size % (gradient_accumulation_steps * world_size) == 0
            self.sizes = [global_batch_size] * (rows // global_batch_size)
        else:
            assert max_tokens is not None
            assert lengths is not None
            longest_first = np.sort(batches.padded(lengths))[::-1]
            self.sizes = _halve_last_two(batches.cut(longest_first, max_tokens))

    @classmethod
    def from_arguments(
        cls,
        arguments: FinetuneArguments | ArgumentValues,
        dataset: datasets.Dataset,
        rank: int = 0,
        on_epoch: Callable[[int, int], object] | None = None,
    ) -> GlobalBatchSampler:
        """Return the steps that these arguments make of these rows.

        Raises:
            UserError: If they make none, or smaller ones than there are devices; if classes are to
                be balanced that the rows do not have.
        """
        rows, column = len(dataset), arguments.length_column_name
        require_a_step(arguments, rows)
        is_grouped = arguments.train_sampling_strategy == "group_by_length"
        world_size = distributed.ranks().world_size
        lengths = batches.lengths_of(dataset, column) if is_grouped or world_size > 1 else None
        if is_grouped and lengths is None:
            raise UserError(
                f"--train_sampling_strategy group_by_length: the rows have no column '{column}'"
            )
        classes = None
        if arguments.class_sampling == "balanced":
            classes = read_labels(dataset)
            require_classes(classes)
        sampler = cls(
            rows,
            global_batch_size=arguments.global_batch_size,
            max_tokens=arguments.max_tokens_per_batch,
            gradient_accumulation_steps=arguments.gradient_accumulation_steps,
            world_size=world_size,
            rank=rank,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            strategy=arguments.train_sampling_strategy,
            lengths=lengths,
            classes=classes,
            on_epoch=on_epoch,
        )
        devices = distributed.devices_in_training(arguments.use_cpu)
        shares = devices * arguments.gradient_accumulation_steps
        if arguments.max_tokens_per_batch and min(sampler.sizes) < shares:
            assert lengths is not None
            longest = int(batches.padded(lengths).max())
            raise UserError(
                f"--max_tokens_per_batch {arguments.max_tokens_per_batch} makes a step of "
                f"{min(sampler.sizes)} rows, for {devices} devices x "
                f"{arguments.gradient_accumulation_steps} accumulation steps; the longest row has "
                f"{longest} tokens with its padding: give at least {2 * shares * longest}"
            )
        return sampler

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch; ``Trainer`` calls it, also when it resumes."""
        self.epoch = epoch
        if self.on_epoch is not None:
            self.on_epoch(epoch, self.seed)

    def __len__(self) -> int:
        return len(self.sizes) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps():
            yield from self._micro_batches(step)

    def rows_of_step(self, step: int) -> np.ndarray:
        """Return the rows of an optimizer step over all processes; the first step is 0."""
        epoch, index = divmod(step, len(self.sizes))
        return self.steps(epoch)[index]

    def steps(self, epoch: int | None = None) -> list[np.ndarray]:
        """Return the rows of every step of an epoch, the current one by default."""
        epoch = self.epoch if epoch is None else epoch
        if self._steps[0] != epoch:
            self._steps = epoch, self._draw_steps(epoch)
        return self._steps[1]

    def _micro_batches(self, step: np.ndarray) -> Iterator[list[int]]:
        for rows in np.array_split(step, self.accumulation):
            yield (rows if self.world_size == 1 else self._share(rows)).tolist()

    def _share(self, rows: np.ndarray) -> np.ndarray:
        """Deal the longest to one process after the other, there and back again."""
        if self.lengths is None:
            return np.array_split(rows, self.world_size)[self.rank]
        rounds, turn = np.divmod(np.arange(len(rows)), self.world_size)
        owner = np.where(rounds % 2, self.world_size - 1 - turn, turn)
        longest_first = np.argsort(-self.lengths[rows], kind="stable")
        return np.asarray(rows[longest_first[owner == self.rank]])

    def _draw_steps(self, epoch: int) -> list[np.ndarray]:
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order: np.ndarray = np.arange(self.rows)
        if self._rows_by_class is not None:
            order = self._balance_classes(self._rows_by_class, epoch)
        if self.strategy != "sequential":
            order = order[torch.randperm(len(order), generator=generator).numpy()]
        order = order[: sum(self.sizes)]
        if self.strategy == "group_by_length":
            order = self._sort_by_length(order)
        steps = batches.split(order, self.sizes)
        if self.strategy == "group_by_length" and steps:
            assert self.lengths is not None
            steps = [steps[index] for index in torch.randperm(len(steps), generator=generator)]
            longest = int(np.argmax([self.lengths[step].max() for step in steps]))
            steps[0], steps[longest] = steps[longest], steps[0]
        return steps

    def _balance_classes(self, rows_by_class: list[np.ndarray], epoch: int) -> np.ndarray:
        """Return as many rows of each class as the steps have room for, shape ``(places,)``.

        Each class has an endless sequence of its rows, shuffled again whenever all have come, and
        an epoch takes what follows that of the epoch before. What does not divide goes to another
        class each time: these parts of ``places`` add up to it (Hermite's identity).
        """
        places, chosen = sum(self.sizes), [np.empty(0, dtype=np.int64)]
        for number, rows in enumerate(rows_by_class):
            start, stop = (
                (end * places + number) // len(rows_by_class) for end in (epoch, epoch + 1)
            )
            for turn in range(start // len(rows), -(-stop // len(rows))):
                shuffled = np.random.default_rng([self.seed, number, turn]).permutation(rows)
                first = turn * len(rows)
                chosen.append(shuffled[max(0, start - first) : stop - first])
        return np.concatenate(chosen)

    def _sort_by_length(self, order: np.ndarray) -> np.ndarray:
        """Sort within so many global batches, or all rows if a batch is a number of tokens."""
        assert self.lengths is not None
        if self.global_batch_size is None:
            # rows of one padded length keep the order of the epoch: a row meets others each time,
            # and every epoch has the same number of steps
            lengths, together = batches.padded(self.lengths), len(order)
        else:
            lengths = self.lengths
            together = _BATCHES_SORTED_TOGETHER * self.global_batch_size
        chunks = np.split(order, range(together, len(order), together))
        return np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in chunks])


def read_labels(dataset: datasets.Dataset) -> np.ndarray:
    """Return the targets of prepared rows, shape ``(rows,)`` or ``(rows, outputs)``."""
    # where rows are collated without being prepared, it is still the raw column
    column = "labels" if "labels" in dataset.column_names else "label"
    return np.asarray(dataset.with_format("numpy")[column][:])


def require_classes(labels: np.ndarray) -> None:
    """Raise a ``UserError`` if rows with these targets do not have one class each."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            "--class_sampling balanced needs one class a row; leave it out (several labels a row: "
            "--class_weights balanced)"
        )


def refuse_weights(arguments: FinetuneArguments | ArgumentValues) -> None:
    """Raise a ``UserError`` if classes that have weights are drawn equally often as well."""
    if arguments.class_sampling == "balanced":
        raise UserError(
            "--class_weights with --class_sampling balanced: each of them makes rare classes count "
            "more; use one"
        )


def require_a_step(arguments: FinetuneArguments | ArgumentValues, rows: int) -> None:
    """Raise a ``UserError`` if the rows, not tokenized yet, are fewer than one global batch."""
    if arguments.global_batch_size is not None and rows < arguments.global_batch_size:
        raise UserError(
            f"{rows} training rows are fewer than one global batch of "
            f"{arguments.global_batch_size}: give more rows or a smaller --global_batch_size"
        )


def _group_by_class(classes: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each class that occurs, in the order of the classes."""
    order = np.argsort(classes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)


def _halve_last_two(sizes: list[int]) -> list[int]:
    """Make the last two batches equal where the last is the smaller: it may be a row or two."""
    if len(sizes) < 2 or sizes[-1] >= sizes[-2]:
        return sizes
    *first, last_but_one, last = sizes
    total = last_but_one + last
    return [*first, total - total // 2, total // 2]
