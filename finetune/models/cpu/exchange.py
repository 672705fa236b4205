"""Gradients of the processes of one machine are averaged in memory that they share.

gloo sends them through sockets: 91 MB between two processes of one core each took 58 to 67 ms, and
25 ms here.
"""

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from finetune.runtime import distributed

Timed = Callable[[], AbstractContextManager[None]]
#: Files there are memory, on Linux.
DIRECTORY = Path("/dev/shm")
_exchanging: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


class _Shared:
    """Takes what DDP hands over, bucket by bucket, and averages it when the last has come.

    Only then do the processes wait for each other: at each bucket they would wait for whoever is
    slower just there. The memory has shape ``(processes, gradients)``.
    """

    def __init__(self, memory: torch.Tensor, timed: Timed) -> None:
        self.memory, self.timed = memory, timed
        self.buckets: list[tuple[slice, torch.Tensor, Future[torch.Tensor]]] = []

    def take(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        """Return a future of the average over the processes, in the memory of the bucket."""
        if bucket.index() == 0:
            self.buckets = []  # also where the step before was broken off
        gradients: torch.Tensor = bucket.buffer()
        first = self.buckets[-1][0].stop if self.buckets else 0
        here = slice(first, first + len(gradients))
        average: Future[torch.Tensor] = Future()
        self.buckets.append((here, gradients, average))
        with self.timed():
            torch.div(gradients, len(self.memory), out=self.memory[dist.get_rank(), here])
            if bucket.is_last():
                self._average()
        return average

    def _average(self) -> None:
        _wait()
        # each process adds up its share, into the first row; no other reads or writes that
        total, *others = self.memory.tensor_split(len(self.memory), dim=1)[dist.get_rank()]
        for other in others:
            total += other
        _wait()
        for here, gradients, _ in self.buckets:
            gradients.copy_(self.memory[0, here])
        _wait()
        for _, gradients, average in self.buckets:
            average.set_result(gradients)
        self.buckets = []


def use(model: DistributedDataParallel, timed: Timed = nullcontext) -> bool:
    """Let ``model`` exchange its gradients so, in contexts of ``timed``; every process calls it.

    Returns:
        Whether it does: not between machines, nor where there is too little memory to share.
    """
    if used_by(model):
        return True
    learned = _learned(model)
    if learned is None or (memory := _common(sum(map(torch.numel, learned)))) is None:
        return False
    model.register_comm_hook(_Shared(memory, timed), _Shared.take)
    _exchanging.add(model)
    return True


def used_by(model: torch.nn.Module) -> bool:
    """Return whether ``model`` exchanges its gradients so now."""
    return model in _exchanging


def expected(model: torch.nn.Module) -> bool:
    """Return whether the processes of this job are going to exchange the gradients of ``model`` so;
    any of them can be asked.
    """
    world_size, learned = distributed.ranks().world_size, _learned(model)
    if world_size < 2 or learned is None:
        return False
    size = world_size * sum(each.nbytes for each in learned)
    return shutil.disk_usage(DIRECTORY).free >= size


def _learned(model: torch.nn.Module) -> list[torch.nn.Parameter] | None:
    """Return the parameters whose gradients are exchanged, or None if that is left to gloo."""
    learned = [each for each in model.parameters() if each.requires_grad]
    alike = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in learned)
    sparse = any(getattr(each, "sparse", False) for each in model.modules())  # of embeddings
    known = distributed.machines() == 1 and alike and not sparse and DIRECTORY.is_dir()
    return learned if known else None


def _common(columns: int) -> torch.Tensor | None:
    """Return fp32 zeros that all processes see, ``(processes, columns)``; None without room."""
    me = distributed.ranks()
    shape = me.world_size, columns
    size = math.prod(shape)
    path = _file(torch.float32.itemsize * size) if me.rank == 0 else None
    path = distributed.gather(path)[0]
    if path is None:
        return None
    memory = None
    # how many machines there are is not always told; from_file would make another file there
    if all(distributed.gather(Path(path).exists())):
        memory = torch.from_file(path, shared=True, size=size, dtype=torch.float32).view(shape)
        distributed.gather(None)  # all have it
    if me.rank == 0:
        os.unlink(path)
    return memory


def _wait() -> None:
    """Wait for all processes."""
    dist.all_reduce(torch.zeros(1))


def _file(size: int) -> str | None:
    """Make a file of ``size`` bytes, all of them reserved: to write to less would end a process."""
    try:
        descriptor, path = tempfile.mkstemp(dir=DIRECTORY, prefix="finetune-")
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
