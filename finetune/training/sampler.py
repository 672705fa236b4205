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
        on_epoch: Is called with each epoch and the seed; what draws random numbers for rows needs
            them.
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
        #: The rows of each class, if they are balanced.
        self.classes = None if classes is None else _by_class(np.asarray(classes))
        if global_batch_size is not None:
            assert global_batch_size % (gradient_accumulation_steps * world_size) == 0
            self.sizes = [global_batch_size] * (rows // global_batch_size)
        else:
            assert max_tokens is not None
            assert lengths is not None
            longest_first = np.sort(batches.padded(lengths))[::-1]
            self.sizes = _halved(batches.cut(longest_first, max_tokens))

    @classmethod
    def of(
        cls,
        arguments: FinetuneArguments | ArgumentValues,
        dataset: datasets.Dataset,
        rank: int = 0,
        on_epoch: Callable[[int, int], object] | None = None,
    ) -> GlobalBatchSampler:
        """Return the steps that these arguments make of these rows.

        Raises:
            UserError: if they make none, or smaller ones than there are devices; if classes are to
                be balanced that the rows do not have.
        """
        rows, column = len(dataset), arguments.length_column_name
        refuse_too_few(arguments, rows)
        grouped = arguments.train_sampling_strategy == "group_by_length"
        world_size = distributed.ranks().world_size
        lengths = batches.lengths_of(dataset, column) if grouped or world_size > 1 else None
        if grouped and lengths is None:
            raise UserError(
                f"--train_sampling_strategy group_by_length: the rows have no column '{column}'"
            )
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
            classes=classes_of(dataset) if arguments.class_sampling == "balanced" else None,
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

    def steps(self) -> list[np.ndarray]:
        """Return the rows of every step of this epoch."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: np.ndarray = np.arange(self.rows)
        if self.classes is not None:
            order = self._balanced(self.classes)
        if self.strategy != "sequential":
            order = order[torch.randperm(len(order), generator=generator).numpy()]
        order = order[: sum(self.sizes)]
        if self.strategy == "group_by_length":
            order = self._by_length(order)
        steps = batches.split(order, self.sizes)
        if self.strategy == "group_by_length" and steps:
            assert self.lengths is not None
            steps = [steps[index] for index in torch.randperm(len(steps), generator=generator)]
            longest = int(np.argmax([self.lengths[step].max() for step in steps]))
            steps[0], steps[longest] = steps[longest], steps[0]
        return steps

    def _balanced(self, classes: list[np.ndarray]) -> np.ndarray:
        """Return as many rows of each class as the steps have room for, shape ``(places,)``.

        Each class has an endless sequence of its rows, shuffled again whenever all have come, and
        an epoch takes what follows that of the epoch before. What does not divide goes to another
        class each time: these parts of ``places`` add up to it (Hermite's identity).
        """
        places, drawn = sum(self.sizes), [np.empty(0, dtype=np.int64)]
        for number, rows in enumerate(classes):
            start, stop = (
                (epoch * places + number) // len(classes) for epoch in (self.epoch, self.epoch + 1)
            )
            first, last = start // len(rows), -(-stop // len(rows))
            for time in range(first, last):
                mixed = np.random.default_rng([self.seed, number, time]).permutation(rows)
                before = time * len(rows)
                drawn.append(mixed[max(0, start - before) : stop - before])
        return np.concatenate(drawn)

    def _by_length(self, order: np.ndarray) -> np.ndarray:
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


def classes_of(dataset: datasets.Dataset) -> np.ndarray:
    """Return the class of each row, shape ``(rows,)``, from their column of labels.

    Raises:
        UserError: if a row has several labels, or numbers.
    """
    # where rows are collated without being prepared, it is still the raw one
    column = "labels" if "labels" in dataset.column_names else "label"
    labels = np.asarray(dataset[column][:])
    refuse_no_classes(labels)
    return labels


def refuse_no_classes(labels: np.ndarray) -> None:
    """Raise a ``UserError`` if rows with these targets do not have one class each."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            "--class_sampling balanced draws as many rows of each class, and these rows do not "
            "have one class each: leave it out (several labels a row: --class_weights balanced)"
        )


def refuse_weights(arguments: FinetuneArguments | ArgumentValues) -> None:
    """Raise a ``UserError`` if classes that have weights are drawn alike as well."""
    if arguments.class_sampling == "balanced":
        raise UserError(
            "--class_weights with --class_sampling balanced: each of them makes rare classes count "
            "more; use one"
        )


def _by_class(classes: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each class that occurs, in the order of the classes."""
    order = np.argsort(classes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)


def refuse_too_few(arguments: FinetuneArguments | ArgumentValues, rows: int) -> None:
    """Raise a ``UserError`` if the rows, not tokenized yet, are fewer than one global batch."""
    if arguments.global_batch_size is not None and rows < arguments.global_batch_size:
        raise UserError(
            f"{rows} training rows are fewer than one global batch of "
            f"{arguments.global_batch_size}: give more rows or a smaller --global_batch_size"
        )


def _halved(sizes: list[int]) -> list[int]:
    """Make the last two batches equal where the last is the smaller: it may be a row or two."""
    if len(sizes) < 2 or sizes[-1] >= sizes[-2]:
        return sizes
    *others, one, last = sizes
    return [*others, one + last - (one + last) // 2, (one + last) // 2]
