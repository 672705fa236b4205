"""The rows of each optimizer step, a *global* batch, and its loss.

An epoch is one order of the rows, which depends on its number and the seed only. It is cut into
global batches, these into micro-batches, and these into the shares of the processes. So every step
sees the same rows on one process, on two, and with accumulation, each at most once an epoch. The
rows of an incomplete last batch are left out, other rows in each epoch. ``--max_tokens_per_batch``
leaves none out; shares may differ by a row there, as the loss is a mean over the global batch.

The random order is that of torch's ``DistributedSampler`` and accelerate's
``SeedableRandomSampler``, so that a hand-written loop with the same seed sees the same steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch
from torch.utils.data import Sampler
from transformers import EvalPrediction
from transformers.trainer_pt_utils import numpy_pad_and_concatenate

from finetune.data import encoding, words
from finetune.data.lengths import cut, lengths_of, padded
from finetune.errors import UserError
from finetune.runtime import distributed

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_BATCHES_SORTED_TOGETHER = 50


@dataclass(frozen=True)
class LabelLayout:
    """The columns of the ``labels`` of training rows: target, weight and answers of a teacher.

    ``compute_loss_func`` gets outputs and labels only, so labels have everything that the loss of a
    row reads. Evaluated rows have their targets only. The loss of a row is
    ``(1 - weight) * loss + weight * divergence``.

    Attributes:
        shape: The shape of the target of a row: ``()`` or ``(outputs,)``.
        has_class: Whether the target is a class id.
        is_soft: Whether the target is a probability for each class.
        divergence: Takes logits and answers, both ``(rows, outputs)``; returns how much they
            differ, ``(rows,)``. None without a teacher; then there are no answers.
    """

    shape: tuple[int, ...]
    has_class: bool = False
    is_soft: bool = False
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def pack(self, targets: np.ndarray, weight: float, answers: np.ndarray) -> np.ndarray:
        """Return the labels of rows, float32, shape ``(rows, columns)``."""
        targets = targets.reshape(len(targets), -1)
        weights = np.full((len(targets), 1), weight)
        return np.concatenate([targets, weights, answers], axis=1).astype(np.float32)

    def unpack(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return targets, ``(rows, *shape)``, weights, ``(rows,)``, and answers."""
        size = math.prod(self.shape)
        targets = labels[:, :size].reshape(-1, *self.shape)
        if self.has_class:
            targets = targets.long()
        return targets, labels[:, size], labels[:, size + 1 :]


@dataclass(frozen=True)
class GlobalLoss:
    """A ``compute_loss_func`` for ``transformers.Trainer``.

    The stock ``Trainer`` doubles a mean-reducing loss with two processes or two accumulation steps
    if the model's ``forward`` accepts ``**kwargs``. It does not double this one, as it passes the
    rows of the step. With ``class_weights`` it divides the loss by these rows, our trainer by the
    sum of their weights, as ``torch.nn.CrossEntropyLoss`` does.

    Attributes:
        loss: Takes logits, shape ``(rows, outputs)``, and targets; returns losses, ``(rows,)``.
        label_smoothing: Weight of the mean over all classes in training (Szegedy et al., 2016).
        class_weights: How much a row of each class counts in training; empty if all count 1.
        training_loss: Used in training instead of ``loss``.
        pooling: How the outputs for the windows of a document are pooled in an evaluation, ``mean``
            or ``max``; ``words`` if words are labelled, each in one window, whose losses and
            divisors are those of words; None where a row is a document.
        layout: The columns of the labels of training rows; None if they are targets, as in an
            evaluation.
    """

    loss: RowLoss
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    training_loss: RowLoss | None = None
    pooling: str | None = None
    layout: LabelLayout | None = None

    def evaluation_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row in nats, shape ``(rows,)``, for an evaluation: without label
        smoothing and weights.

        Raises:
            UserError: If the loss of the recipe is reduced over rows.
        """
        return _row_losses(self.loss, *self._labelled(logits.float(), labels))

    def _labelled(
        self, logits: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and labels of what has a label: all rows, or the words in them."""
        if self.pooling != words.POOLING:
            return logits, labels
        is_labelled = labels != words.UNLABELLED
        return logits[is_labelled], labels[is_labelled]

    def training_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, shape ``(rows,)``, with label smoothing and weights as in
        ``torch.nn.CrossEntropyLoss``: the smoothed part has the weight of each class.

        Args:
            logits: Shape ``(rows, outputs)``.
            labels: Targets, or what :attr:`layout` says.
        """
        logits, labels = self._labelled(logits.float(), labels)
        if self.layout is None:
            return self._target_losses(logits, labels)
        targets, weights, answers = self.layout.unpack(labels)
        losses = self._target_losses(logits, targets)
        if self.layout.divergence is None:
            return losses
        return (1 - weights) * losses + weights * self.layout.divergence(logits.float(), answers)

    def _target_losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        compute = functools.partial(
            _row_losses, self.training_loss or self.loss, logits, weights=self.class_weights
        )
        is_soft = self.layout is not None and self.layout.is_soft
        if not (self.label_smoothing or is_soft):
            return compute(targets)
        ids = torch.arange(logits.shape[-1], device=logits.device)
        losses = torch.stack(list(map(compute, ids[:, None].expand(-1, len(targets)))), dim=-1)
        uniform = losses.mean(dim=-1)
        target_losses = (targets * losses).sum(dim=-1) if is_soft else compute(targets)
        return (1 - self.label_smoothing) * target_losses + self.label_smoothing * uniform

    def row_weights(self, labels: np.ndarray) -> np.ndarray:
        """Return the weight of each row in the divisor of its step, shape ``(rows,)``; 1 with a
        layout, where rows may have no class.
        """
        weights = np.asarray(self.class_weights)
        if self.class_weights and self.layout is None:
            return weights.take(labels)
        return np.ones(len(labels))

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the share of this micro-batch in the loss of the global step, a scalar.

        The library passes the number of labels in the global step (rows times targets of a row) as
        ``num_items_in_batch``. If it is None, this batch is the whole step.
        """
        total = self.training_losses(outputs["logits"], labels).sum()
        _, labels = self._labelled(outputs["logits"], labels)
        if num_items_in_batch is None:
            return total / self.row_weights(labels.cpu().numpy()).sum()
        return total / (num_items_in_batch / labels.shape[1:].numel())


def weigh_rows(loss: GlobalLoss, dataset: datasets.Dataset) -> np.ndarray:
    """Return the weight of each prepared row in the divisor of its step, shape ``(rows,)``: of
    labelled words the sum of theirs.
    """
    if loss.pooling == words.POOLING:
        return words.count_labelled(dataset, loss.class_weights)
    labels = read_labels(dataset) if loss.class_weights else np.arange(len(dataset))
    return loss.row_weights(labels)


def _row_losses(
    loss: RowLoss, logits: torch.Tensor, labels: torch.Tensor, weights: Sequence[float] = ()
) -> torch.Tensor:
    losses = loss(logits, labels)
    if losses.shape != (len(labels),):
        raise UserError(
            f"loss() of the recipe returned shape {tuple(losses.shape)} for {len(labels)} rows: "
            "expected the loss of each row, not reduced (reduction='none')"
        )
    return losses * logits.new_tensor(weights)[labels] if weights else losses


class GlobalBatchSampler(Sampler[list[int]]):
    """The micro-batches of one process, as a ``batch_sampler`` of ``DataLoader``.

    With ``group_by_length`` a step has rows of similar length. Steps are in random order, except
    that the longest comes first: if memory runs out, it does so at once.

    Attributes:
        sizes: The number of rows of each step of an epoch.
        lengths: The number of tokens of each row, shape ``(rows,)``; None without a length column.

    Raises:
        UserError: If there are fewer rows than a step needs, or fewer rows in a step than devices.
    """

    def __init__(
        self, arguments: FinetuneArguments | ArgumentValues, dataset: datasets.Dataset
    ) -> None:
        self.rows = len(dataset)
        self.epoch = 0
        self._ranks = distributed.ranks()
        self.global_batch_size = arguments.global_batch_size
        self.accumulation = arguments.gradient_accumulation_steps
        self.seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        self.strategy = arguments.train_sampling_strategy
        self.lengths = lengths_of(dataset, arguments.length_column_name)
        self._steps_of = functools.lru_cache(maxsize=1)(self._draw_steps)  # takes an epoch
        column = arguments.length_column_name
        needs_lengths = self.strategy == "group_by_length" or column != "length"  # its default
        if self.lengths is None and needs_lengths:
            flag = f"--length_column_name {column}"
            if column == "length":
                flag = "--train_sampling_strategy group_by_length needs lengths (length)"
            raise UserError(f"{flag}: the prepared rows have {', '.join(dataset.column_names)}")
        self._rows_by_class: list[np.ndarray] | None = None
        if arguments.class_sampling == "balanced":
            classes = read_labels(dataset)
            order = np.argsort(classes, kind="stable")
            self._rows_by_class = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)
        if self.global_batch_size is not None:
            if self.rows < self.global_batch_size:
                raise UserError(
                    f"--global_batch_size {self.global_batch_size}: there are {self.rows} training "
                    "rows; give a smaller one"
                )
            self.sizes = [self.global_batch_size] * (self.rows // self.global_batch_size)
        else:
            shares = distributed.devices_in_training(arguments.use_cpu) * self.accumulation
            self.sizes = self._cut_by_tokens(arguments.max_tokens_per_batch or 0, shares)

    def _cut_by_tokens(self, max_tokens: int, shares: int) -> list[int]:
        assert self.lengths is not None
        longest_first = np.sort(padded(self.lengths))[::-1]
        sizes = cut(longest_first, max_tokens)
        if len(sizes) > 1 and sizes[-1] < sizes[-2]:  # the last step may have a row or two
            total = sum(sizes[-2:])
            sizes[-2:] = [total - total // 2, total // 2]
        if min(sizes) < shares:
            raise UserError(
                f"--max_tokens_per_batch {max_tokens} makes a step of {min(sizes)} rows, for "
                f"{shares} devices x accumulation steps: give {2 * shares * longest_first[0]}"
            )
        return sizes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order is used; ``Trainer`` calls it, also when it resumes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps_of(self.epoch):
            for rows in np.array_split(step, self.accumulation):
                yield self._share(rows).tolist()

    def rows_of_step(self, step: int) -> np.ndarray:
        """Return the rows of an optimizer step over all processes; the first step is 0."""
        epoch, index = divmod(step, len(self.sizes))
        return self._steps_of(epoch)[index]

    def _share(self, rows: np.ndarray) -> np.ndarray:
        """Deal rows to the processes from the longest to the shortest: 0, 1, 2, 2, 1, 0, 0, ..."""
        world_size = self._ranks.world_size
        if world_size == 1 or self.lengths is None:
            return np.array_split(rows, world_size)[self._ranks.rank]
        rounds, turn = np.divmod(np.arange(len(rows)), world_size)
        owner = np.where(rounds % 2, world_size - 1 - turn, turn)
        longest_first = np.argsort(-self.lengths[rows], kind="stable")
        return np.asarray(rows[longest_first[owner == self._ranks.rank]])

    def _draw_steps(self, epoch: int) -> list[np.ndarray]:
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order: np.ndarray = np.arange(self.rows)
        if self._rows_by_class is not None:
            order = self._balance_classes(self._rows_by_class, epoch)
        if self.strategy != "sequential":
            order = order[torch.randperm(len(order), generator=generator).numpy()]
        order = order[: sum(self.sizes)]
        if self.strategy != "group_by_length":
            return np.split(order, np.cumsum(self.sizes)[:-1])
        assert self.lengths is not None
        if self.global_batch_size is not None:
            lengths = self.lengths
            together = _BATCHES_SORTED_TOGETHER * self.global_batch_size
        else:
            # rows of equal padded length keep the random order, so that batches differ by epoch,
            # and every epoch has the same number of steps
            lengths = padded(self.lengths)
            together = len(order)
        chunks = np.split(order, range(together, len(order), together))
        order = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in chunks])
        steps = np.split(order, np.cumsum(self.sizes)[:-1])
        steps = [steps[index] for index in torch.randperm(len(steps), generator=generator)]
        longest = int(np.argmax([self.lengths[step].max() for step in steps]))
        steps[0], steps[longest] = steps[longest], steps[0]
        return steps

    def _balance_classes(self, rows_by_class: list[np.ndarray], epoch: int) -> np.ndarray:
        """Return an equal number of rows of each class for an epoch, shape ``(places,)``.

        Each class has an endless sequence of its rows, shuffled anew after every pass, and an epoch
        continues where the one before ended: a row comes again only after all others of its class.
        The remainder of ``places / classes`` goes to other classes in each epoch (the rounded parts
        add up to ``places``: Hermite's identity).
        """
        places = sum(self.sizes)
        chosen = [np.empty(0, dtype=np.int64)]
        for number, rows in enumerate(rows_by_class):
            start, stop = (
                (end * places + number) // len(rows_by_class) for end in (epoch, epoch + 1)
            )
            for turn in range(start // len(rows), -(-stop // len(rows))):
                shuffled = np.random.default_rng([self.seed, number, turn]).permutation(rows)
                first = turn * len(rows)
                chosen.append(shuffled[max(0, start - first) : stop - first])
        return np.concatenate(chosen)


def read_labels(dataset: datasets.Dataset) -> np.ndarray:
    """Return the targets of prepared rows, shape ``(rows,)`` or ``(rows, outputs)``."""
    # rows that were not tokenized still have the raw column
    column = "labels" if "labels" in dataset.column_names else "label"
    return np.asarray(dataset.with_format("numpy")[column][:])


def restore_words(
    prediction: EvalPrediction, order: np.ndarray, documents: np.ndarray
) -> EvalPrediction:
    """Return outputs and labels of an evaluation for the words of all documents in order, with a
    separator after each, see :mod:`finetune.tasks.tokens`.

    Args:
        prediction: With a list of arrays, one for each batch: ``(rows, tokens, ...)``.
        order: The number of each evaluated row, a window, shape ``(rows,)``.
        documents: The document of each, shape ``(rows,)``.
    """
    outputs, labels, rows = [], [], []
    first = 0
    for batch_outputs, batch_labels in zip(
        prediction.predictions, prediction.label_ids, strict=True
    ):
        is_labelled = batch_labels != words.UNLABELLED
        outputs.append(batch_outputs[is_labelled])
        labels.append(batch_labels[is_labelled])
        rows.append(first + np.nonzero(is_labelled)[0])
        first += len(batch_labels)
    places = np.concatenate(rows)
    is_first = places < len(order)  # the rest repeats rows to fill the last batch
    places = places[is_first]
    arrays = []
    for parts, separator in ((outputs, 0), (labels, words.UNLABELLED)):
        values = np.concatenate(parts)[is_first]
        count = documents.max() + 1
        arrays.append(words.join_rows(values, order[places], documents[places], count, separator))
    return EvalPrediction(*arrays)


def restore_rows(
    prediction: EvalPrediction, rows: np.ndarray, pooling: str | None
) -> EvalPrediction:
    """Return the arrays of an evaluation in the order of the data, one row for each document.

    They are concatenated once; the library does so at every batch, which is quadratic in the rows.

    Args:
        prediction: Lists of the arrays of each batch, shape ``(rows of the batch, ...)``.
        rows: The index of each evaluated row in the data, or that of its document, shape
            ``(evaluated rows,)``.
        pooling: How the outputs of a document are pooled, see :class:`GlobalLoss`.
    """
    first = np.unique(rows, return_index=True)[1]

    def concatenate(arrays: Any, pooling: str | None = None) -> Any:
        if not arrays:
            return None
        if len({array.shape[1:] for array in arrays}) > 1:  # inputs: pad them with -100
            arrays = [functools.reduce(numpy_pad_and_concatenate, arrays)]
        values = np.concatenate(arrays)
        if pooling is None:
            return values[first]
        return encoding.pooled(values, rows, pooling)

    return EvalPrediction(
        concatenate(prediction.predictions, pooling),
        *map(concatenate, (prediction.label_ids, prediction.inputs, prediction.losses)),
    )
