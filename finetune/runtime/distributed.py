"""The processes of a job: their ranks, how they wait for rank 0, and how they connect.

Rank 0 prepares the data before the process group exists, since a barrier of the group could time
out meanwhile. The others wait on the key-value store through which the group is created afterwards.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from finetune.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Prepared = TypeVar("Prepared")
_READY, _WORLD, _FAILED = "finetune/prepared", "finetune/world", "finetune/failed"
_FOLLOWS: ContextVar[bool] = ContextVar("follows", default=False)
# Bounds the wait for a rank 0 that neither finishes nor dies.
_LONGEST_PREPARATION = timedelta(days=1)
_LONGEST_START = timedelta(minutes=5)
#: Seconds between two looks at the store: a tenth of what was waited so far, within these.
_BETWEEN_LOOKS = (0.02, 1.0)


@dataclass(frozen=True)
class Ranks:
    """Rank and world size of this process, in the job and on this machine (local)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


#: The variables of torchrun, and their names under Open MPI.
_OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def ranks() -> Ranks:
    """Return the ranks that ``torchrun``, ``accelerate launch`` or an MPI has set."""
    told = {**os.environ, **_open_mpi()}
    world_size = int(told.get("WORLD_SIZE", 1))
    return Ranks(
        rank=int(told.get("RANK", 0)),
        local_rank=int(told.get("LOCAL_RANK", 0)),
        world_size=world_size,
        local_world_size=int(told.get("LOCAL_WORLD_SIZE", world_size)),
    )


def export_ranks() -> None:
    """Under an MPI, set the variables of ``torchrun``, which torch and accelerate read.

    Call it once, when a job starts; :func:`ranks` sets nothing.
    """
    if told := _open_mpi():
        os.environ |= told
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")


def _open_mpi() -> dict[str, str]:
    """Return the variables of ``torchrun`` as an MPI set them; none under another launcher."""
    if "RANK" in os.environ or "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return {}
    return {name: os.environ[theirs] for name, theirs in _OPEN_MPI.items()}


def machines() -> int:
    """Return how many machines (launcher agents, to be exact) the job runs on."""
    me = ranks()
    return int(os.environ.get("GROUP_WORLD_SIZE", max(1, me.world_size // me.local_world_size)))


def under_launcher() -> bool:
    """Return whether ``torchrun``, ``accelerate launch`` or an MPI started this process."""
    return not {"RANK", "ACCELERATE_MIXED_PRECISION", "OMPI_COMM_WORLD_SIZE"}.isdisjoint(os.environ)


def launcher() -> list[str]:
    """Return the launch command, up to ``-m finetune``, of a job like this one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["python"]
    words = ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}"]
    if machines() > 1:
        address = f"--master_addr={os.environ['MASTER_ADDR']}"
        words[1:1] = [f"--nnodes={machines()}", "--node_rank=N", address]
    return words


def job() -> str | None:
    """Return what a scheduler or launcher that starts a job again keeps; None without one."""
    if "SLURM_JOB_ID" in os.environ:
        return f"slurm {os.environ['SLURM_JOB_ID']}"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return f"torchrun {os.environ['TORCHELASTIC_RUN_ID']} {platform.node()} {os.getppid()}"
    return None


def was_restarted() -> bool:
    """Return whether a scheduler or launcher started this job again."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(os.environ.get(name) or 0) > 0 for name in counts)


def device_type(use_cpu: bool) -> str:
    """Return the type of the device that this process trains on, like ``cpu`` or ``cuda``."""
    import torch

    device = None if use_cpu else torch.accelerator.current_accelerator()
    return "cpu" if device is None else device.type


def devices_in_training(use_cpu: bool) -> int:
    """Return how many devices share a step: processes, or the visible GPUs under DataParallel."""
    import torch

    world_size = ranks().world_size
    if world_size > 1 or use_cpu:
        return world_size
    return max(1, torch.cuda.device_count())


def rank_zero_first(prepare: Callable[[], Prepared]) -> Prepared:
    """Call ``prepare`` on rank 0, then on the others, which find its results in the caches, or take
    them from :mod:`finetune.runtime.sharing`.

    One process goes first on each of the other machines. All wait until everyone is ready, since
    the process group, created next, has a shorter timeout.

    Raises:
        UserError: if the machines were started with different numbers of processes.
        RuntimeError: if another process failed meanwhile.
    """
    from finetune.runtime import sharing

    export_ranks()
    me = ranks()
    if me.world_size == 1:
        return prepare()
    store, first_here = store_of_job(), me.rank - me.local_rank
    _agree_on_world(store, me)
    for rank in {0, first_here} - {me.rank}:
        _wait(store, f"{_READY}/{rank}", _LONGEST_PREPARATION)
    token = _FOLLOWS.set(me.rank > 0)
    try:
        prepared = prepare()
        store.set(f"{_READY}/{me.rank}", "1")
        for rank in range(me.world_size):
            _wait(store, f"{_READY}/{rank}", _LONGEST_PREPARATION)
    finally:
        _FOLLOWS.reset(token)
        sharing.forget()
    return prepared


def follows_rank_zero() -> bool:
    """Return whether rank 0 has prepared what this process prepares in :func:`rank_zero_first`."""
    return _FOLLOWS.get()


def join(backend: str | None, timeout_seconds: int, use_cpu: bool) -> None:
    """Create the process group, with a timeout that also applies on CPU.

    The library ignores ``ddp_timeout`` on CPU, but uses an existing group. On an accelerator the
    group also has gloo, for objects that are gathered on the CPU.

    Args:
        backend: Of ``torch.distributed``; None for that of the device.
        timeout_seconds: After which a process that waits for another one gives up.
        use_cpu: Whether to train on the CPU where there is an accelerator.
    """
    import torch
    import torch.distributed as dist

    me = ranks()
    if me.world_size == 1 or dist.is_initialized():
        return
    # Imported later, by DDP, its default arguments would keep the group beyond `leave`, and with it
    # threads that can abort the interpreter on its way out.
    import torch.distributed.nn.functional

    default, device = "gloo", device_type(use_cpu)
    if device != "cpu":
        default = f"cpu:gloo,{device}:{dist.get_default_backend_for_device(device)}"
        torch.accelerator.set_device_index(me.local_rank)
    dist.init_process_group(
        backend or default,
        store=store_of_job(),
        rank=me.rank,
        world_size=me.world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )


def gather(value: Any) -> list[Any]:
    """Return the ``value`` of every process, by rank; several processes need the process group."""
    import torch.distributed as dist

    values = [value] * ranks().world_size
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def leave() -> None:
    """Destroy the process group, if there is one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    store_of_job.cache_clear()


def first_to_fail() -> bool:
    """Return whether this process failed first; True if that is unknown."""
    from torch.distributed.rendezvous import rendezvous

    moment = timedelta(seconds=3)
    try:
        if store_of_job.cache_info().currsize:
            store = store_of_job()
            store.set_timeout(moment)
        elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = _of_this_attempt(next(rendezvous("env://", timeout=moment))[0])
        else:
            return True
        return bool(store.add(_FAILED, 1) == 1)
    except RuntimeError:  # whoever kept the store has failed before
        return False


@functools.cache
def store_of_job() -> Store:
    """Return the key-value store through which the processes connect.

    Raises:
        UserError: if the port is taken on the machine of rank 0.
    """
    from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    store: Store
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = _of_this_attempt(next(rendezvous("env://"))[0])
        else:  # `rendezvous` would wait until as many have come as rank 0 was told
            store = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=ranks().rank == 0,
                timeout=_LONGEST_START,
                wait_for_workers=False,
                multi_tenant=True,
            )
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UserError(
            f"port {os.environ.get('MASTER_PORT')} of this machine is in use, perhaps by another "
            "job: set MASTER_PORT (torchrun: --master_port) to a free one"
        ) from error
    return store


def _of_this_attempt(store: Store) -> Store:
    """Return a view of the agent's store, in which the keys of a job that failed are left behind.

    With ``--max-restarts`` torchrun starts the workers again with the store that they had.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _wait(store: Store, key: str, longest: timedelta) -> None:
    """Wait until a process has set the key; raise if one has failed, as it may never set it."""
    from torch.distributed import DistStoreError

    began = time.monotonic()
    while not store.check([key]):
        if store.check([_FAILED]):
            raise RuntimeError("another process of the job failed while this one waited for it")
        waited = time.monotonic() - began
        if waited > longest.total_seconds():
            raise DistStoreError(f"timed out waiting for {key} ({longest})")
        least, most = _BETWEEN_LOOKS
        time.sleep(min(most, max(least, waited / 10)))  # `store.wait` warns at each timeout


def _agree_on_world(store: Store, me: Ranks) -> None:
    """Check that all ranks were started with the same world size."""
    from torch.distributed import DistStoreError

    store.set(f"{_WORLD}/{me.rank}", str(me.world_size))
    for rank in range(me.world_size if me.rank == 0 else 1):
        try:
            _wait(store, f"{_WORLD}/{rank}", _LONGEST_START)
        except DistStoreError as error:
            raise UserError(
                f"timed out waiting for rank {rank} of {me.world_size} "
                f"({_LONGEST_START.seconds:.0f} s): was it started on every machine, with the same "
                "--nnodes and --nproc_per_node?"
            ) from error
        theirs = int(store.get(f"{_WORLD}/{rank}"))
        if theirs != me.world_size:
            raise UserError(
                f"rank {me.rank} was started in a job of {me.world_size} processes and rank {rank} "
                f"in one of {theirs}: start every machine with the same --nnodes and "
                "--nproc_per_node"
            )
