"""The processes of a job: who is rank 0, who waits for it, and how they meet.

Rank 0 alone reads, checks and tokenizes the data, before the process group exists: a barrier of
the group would time out under a long preparation. The others wait on the key-value store over
which the group is made afterwards. If rank 0 refuses, its launcher ends them; they say nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Prepared = TypeVar("Prepared")
_READY = "finetune/prepared"
# Bounds the wait for a rank 0 that neither finishes nor dies.
_LONGEST_PREPARATION = timedelta(days=1)


@dataclass(frozen=True)
class Ranks:
    """One process among the processes of the job.

    Attributes:
        rank: Its number in the job.
        local_rank: Its number on this machine.
        world_size: Processes in the job.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def ranks() -> Ranks:
    """From the environment that ``torchrun``, ``accelerate launch`` or an MPI sets."""
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_SIZE" in os.environ:
        for ours, theirs in (
            ("RANK", "RANK"),
            ("WORLD_SIZE", "SIZE"),
            ("LOCAL_RANK", "LOCAL_RANK"),
        ):
            os.environ[ours] = os.environ[f"OMPI_COMM_WORLD_{theirs}"]
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    return Ranks(
        rank=int(os.environ.get("RANK", 0)),
        local_rank=int(os.environ.get("LOCAL_RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
    )


def launcher() -> list[str]:
    """The words before ``-m finetune`` that start a job like this one on this machine."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}"]
    return ["python"]


def devices_in_training(use_cpu: bool) -> int:
    """How many devices share a step: processes, or the visible GPUs under DataParallel."""
    import torch

    world_size = ranks().world_size
    if world_size > 1 or use_cpu:
        return world_size
    return max(1, torch.cuda.device_count())


def rank_zero_first(prepare: Callable[[], Prepared]) -> Prepared:
    """Call ``prepare`` on rank 0, then on the others, which find its results in the caches.

    Once, before the process group exists; in a single process it is just the call.
    """
    me = ranks()
    if me.world_size == 1:
        return prepare()
    store = _store()
    if me.rank == 0:
        prepared = prepare()
        store.set(_READY, "1")
        return prepared
    store.wait([_READY], _LONGEST_PREPARATION)
    return prepare()


def join(backend: str | None, timeout_seconds: int, use_cpu: bool) -> None:
    """Make the process group, with a timeout that is in force on CPU too.

    The library ignores ``ddp_timeout`` on CPU, but uses a group that is there.
    """
    import torch
    import torch.distributed as dist

    me = ranks()
    if me.world_size == 1 or dist.is_initialized():
        return
    device = torch.device("cpu") if use_cpu else torch.accelerator.current_accelerator()
    if device is not None and device.type != "cpu":
        torch.accelerator.set_device_index(me.local_rank)
    dist.init_process_group(
        backend or dist.get_default_backend_for_device(device or "cpu"),
        store=_store(),
        rank=me.rank,
        world_size=me.world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )


def leave() -> None:
    """Take the process group down, if there is one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _store.cache_clear()


@functools.cache
def _store() -> Store:
    from torch.distributed.rendezvous import rendezvous

    store: Store = next(rendezvous("env://"))[0]
    return store
