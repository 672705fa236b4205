"""Gradients of the processes of one machine are averaged in memory that they share.

gloo sends them through sockets: 91 MB between two processes of one core each took 58 to 67 ms, and
25 ms here. Of the word embeddings, which are half of a small model, only the rows of tokens that
some process had in the step are looked at.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from finetune import job
from finetune.cpu import layers

Timed = Callable[[], AbstractContextManager[None]]
_DIRECTORY = Path("/dev/shm")  # of Linux: files that are memory
_exchanging: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


class _Table:
    """The gradient of the word embeddings, of which most rows are zero.

    Args:
        embedding: Its weight is no other module's.
        touched: Which rows each process looked up in this step, shape ``(processes, rows)``.

    Attributes:
        alone: Whether all other rows are zero, in all processes; None before the first step. They
            are not where the weight is used in another way besides.
    """

    def __init__(self, embedding: torch.nn.Embedding, touched: torch.Tensor) -> None:
        self.weight, self.touched, self.mine = embedding.weight, touched, touched[dist.get_rank()]
        self.alone: bool | None = None
        self.gradients, self.here = torch.empty(0), slice(0, 0)
        self.hook = embedding.register_forward_pre_hook(self._looked_up, with_kwargs=True)

    def _looked_up(
        self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if torch.is_grad_enabled():
            self.mine[given[0] if given else named["input"]] = True

    def locate(self, bucket: dist.GradBucket, first: int) -> bool:  # type: ignore[name-defined]
        """Whether it is in this bucket, which begins at ``first`` in the memory; where, is kept."""
        for weight, gradients in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if weight is self.weight:
                first += gradients.storage_offset() - bucket.buffer().storage_offset()
                self.here, self.gradients = slice(first, first + gradients.numel()), gradients
                return True
        return False

    def settle(self) -> None:
        """Find out whether it is alone; all processes wait for each other."""
        others = self.gradients[~self.mine].any()
        self.alone = not any(job.gather(bool(others)))

    def write(self, memory: torch.Tensor) -> None:
        """What this process has of the average."""
        rows = self.mine.nonzero().flatten()
        self._of(memory)[dist.get_rank(), rows] = self.gradients[rows] / len(memory)

    def add(self, memory: torch.Tensor) -> None:
        """The share of this process in the rows of all, into the first of the memory."""
        every = self._of(memory)
        rows = self._rows().tensor_split(len(memory))[dist.get_rank()]
        total = every.new_zeros(len(rows), every.shape[-1])
        for theirs, touched in zip(every, self.touched, strict=True):
            places = touched[rows].nonzero().flatten()
            total.index_add_(0, places, theirs[rows[places]])
        every[0, rows] = total

    def read(self, memory: torch.Tensor) -> None:
        """The average."""
        rows = self._rows()
        self.gradients[rows] = self._of(memory)[0, rows]

    def forget(self) -> None:
        """Begin the next step; no process reads any more."""
        self.mine.zero_()
        self.gradients = torch.empty(0)

    def _rows(self) -> torch.Tensor:
        return self.touched.any(0).nonzero().flatten()

    def _of(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[:, self.here].view(-1, *self.gradients.shape)


class _Shared:
    """Takes what DDP hands over, bucket by bucket, and averages it when the last has come.

    Only then do the processes wait for each other: at each bucket they would wait for whoever is
    slower just there.

    Args:
        memory: Shape ``(processes, gradients)``.
        table: Of the gradients, one that is averaged row by row.
        timed: What is done inside.
    """

    def __init__(self, memory: torch.Tensor, table: _Table | None, timed: Timed) -> None:
        self.memory, self.table, self.timed = memory, table, timed
        self._begin()

    def _begin(self) -> None:
        self.filled = 0
        self.whole: list[tuple[slice, torch.Tensor]] = []
        self.buckets: list[tuple[torch.Tensor, Future[torch.Tensor]]] = []

    def take(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        """A future of the average over the processes, in the memory of the bucket."""
        if bucket.index() == 0:  # also where the step before was broken off
            self._begin()
        gradients: torch.Tensor = bucket.buffer()
        first, self.filled = self.filled, self.filled + len(gradients)
        found: Future[torch.Tensor] = Future()
        self.buckets.append((gradients, found))
        with self.timed():
            whole = [slice(first, self.filled)]
            if self.table and self.table.locate(bucket, first) and self.table.alone:
                self.table.write(self.memory)
                rows = self.table.here
                whole = [slice(first, rows.start), slice(rows.stop, self.filled)]
            for here in whole:
                mine = gradients[here.start - first : here.stop - first]
                torch.div(mine, len(self.memory), out=self.memory[dist.get_rank(), here])
                self.whole.append((here, mine))
            if bucket.is_last():
                self._average()
        return found

    def _average(self) -> None:
        table = self.table if self.table and self.table.alone else None
        processes, rank = len(self.memory), dist.get_rank()
        if self.table and self.table.alone is None:
            self.table.settle()
        _wait()
        # each process adds up its share, into the first row; no other reads or writes that
        for here, _ in self.whole:
            total, *others = self.memory[:, here].tensor_split(processes, dim=1)[rank]
            for other in others:
                total += other
        if table:
            table.add(self.memory)
        _wait()
        for here, mine in self.whole:
            mine.copy_(self.memory[0, here])
        if table:
            table.read(self.memory)
        _wait()
        if self.table:
            self.table.forget()
        for gradients, found in self.buckets:
            found.set_result(gradients)
        self._begin()


def use(model: DistributedDataParallel, timed: Timed = nullcontext) -> bool:
    """Let ``model`` exchange its gradients so; every process calls it.

    Args:
        model: Any.
        timed: Makes a context for the exchange.

    Returns:
        Whether it does: not between machines, nor where there is too little memory to share.
    """
    if model in _exchanging:
        return True
    learned = [each for each in model.parameters() if each.requires_grad]
    alike = all(each.dtype == torch.float32 for each in learned)
    if job.machines() > 1 or not alike or not _DIRECTORY.is_dir():
        return False
    memory = _common(torch.float32, sum(each.numel() for each in learned))
    if memory is None:
        return False
    table, embedding = None, _embedding(model.module)
    if embedding is not None:
        touched = _common(torch.bool, embedding.num_embeddings)
        table = None if touched is None else _Table(embedding, touched)
    if table:
        weakref.finalize(model, table.hook.remove)
    model.register_comm_hook(_Shared(memory, table, timed), _Shared.take)
    _exchanging.add(model)
    return True


def _embedding(model: torch.nn.Module) -> torch.nn.Embedding | None:
    """Of the tokens, if nothing else has its weight.

    Only in models of ``transformers``: another may use the weight in some steps and not in others.
    """
    if not layers.of_library(model):
        return None
    try:
        found = model.get_input_embeddings()
    except NotImplementedError:  # of pictures
        return None
    if type(found) is not torch.nn.Embedding or not found.weight.requires_grad:
        return None
    owners = [
        module
        for module in model.modules()
        if any(each is found.weight for each in module.parameters(recurse=False))
    ]
    return found if len(owners) == 1 else None


def _common(dtype: torch.dtype, columns: int) -> torch.Tensor | None:
    """Zeros that all processes see, shape ``(processes, columns)``; None if there is no room."""
    shape = job.ranks().world_size, columns
    size = math.prod(shape)
    path = job.gather(_file(dtype.itemsize * size) if job.ranks().rank == 0 else None)[0]
    if path is None:
        return None
    memory = None
    # how many machines there are is not always told; from_file would make another file there
    if all(job.gather(Path(path).exists())):
        memory = torch.from_file(path, shared=True, size=size, dtype=dtype).view(shape)
        job.gather(None)  # all have it
    if job.ranks().rank == 0:
        os.unlink(path)
    return memory


def _wait() -> None:
    """For all processes."""
    dist.all_reduce(torch.zeros(1))


def _file(size: int) -> str | None:
    """Of so many bytes, or None if they are not to be had: to write to less would end a process."""
    try:
        descriptor, path = tempfile.mkstemp(dir=_DIRECTORY, prefix="finetune-")
    except OSError:
        return None
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(descriptor)
    return path
