"""Ranks, the process group, and work that rank 0 does for all processes of a job.

Every process joins the group before any data is read. While rank 0 prepares the data, the other
ranks wait in a second group with a timeout of a day; ``--ddp_timeout`` is for the training only.
"""

import contextlib
import itertools
import os
import pickle
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from finetune.errors import RunError, UserError

Result = TypeVar("Result")
#: The variables of torchrun, in those of Open MPI, and of MPICH and Intel MPI.
_MPI = (
    {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
        "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    {
        "RANK": "PMI_RANK",
        "WORLD_SIZE": "PMI_SIZE",
        "LOCAL_RANK": "MPI_LOCALRANKID",
        "LOCAL_WORLD_SIZE": "MPI_LOCALNRANKS",
    },
)
#: The role of processes that ``--num_processes`` starts.
ROLE = "num_processes"
_GROUPS = itertools.count()  # the process groups that this process has joined


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the world size, in the job and on this machine (local)."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def ranks() -> Ranks:
    """Return the ranks set by ``torchrun``, ``accelerate launch`` or MPI."""
    for names in _MPI:
        if "RANK" not in os.environ and os.environ.keys() >= set(names.values()):
            for name, name_of_mpi in names.items():
                # torch and accelerate read the environment variables of torchrun
                os.environ[name] = os.environ[name_of_mpi]
            if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
                os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29500")
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return Ranks(
        rank=int(os.environ.get("RANK", 0)),
        local_rank=int(os.environ.get("LOCAL_RANK", 0)),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
    )


def is_main_process() -> bool:
    """Return whether this is rank 0, which prints and writes."""
    return ranks().rank == 0


def machines() -> int:
    """Return the number of machines of the job (strictly, of launcher agents)."""
    me = ranks()
    return int(os.environ.get("GROUP_WORLD_SIZE", max(1, me.world_size // me.local_world_size)))


def under_launcher() -> bool:
    """Return whether ``torchrun``, ``accelerate launch`` or MPI started this process."""
    ranks()  # sets RANK under MPI
    return not {"RANK", "ACCELERATE_MIXED_PRECISION"}.isdisjoint(os.environ)


def is_worker() -> bool:
    """Return whether ``--num_processes`` started this process."""
    return os.environ.get("ROLE_NAME") == ROLE  # of torch's elastic agent


def refuse_separate_processes() -> None:
    """Refuse processes that would be separate runs, as their launcher does not tell torch of them.

    ``WORLD_SIZE=1`` says that separate runs are wanted.

    Raises:
        UserError: With the launcher, and what to type.
    """
    if ranks().world_size > 1 and "MASTER_ADDR" not in os.environ:
        raise UserError(
            "mpirun on several machines: expected the address of the machine of rank 0 in "
            "MASTER_ADDR, for example mpirun -x MASTER_ADDR=HOST ..."
        )
    count = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("PMI_SIZE", "1")
    if count != "1" and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"SLURM or MPI started {count} processes without torchrun, which would be {count} "
            f"separate runs: type torchrun --nproc_per_node={count} -m finetune ..., on SLURM "
            f"srun --ntasks=1 torchrun --nproc_per_node={count} -m finetune ..., on several nodes "
            "sbatch docs/cluster/train.sbatch RECIPE (see docs/cluster/README.md). If separate "
            "runs are wanted, set WORLD_SIZE=1"
        )


def launcher() -> list[str]:
    """Return the words of the command that launched this job, without ``-m finetune``."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or is_worker():  # the latter's flags have the number
        return ["python"]
    words = ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}"]
    if machines() > 1:
        address = f"--master_addr={os.environ['MASTER_ADDR']}"
        words[1:1] = [f"--nnodes={machines()}", "--node_rank=N", address]
    return words


def job() -> str | None:
    """Return an identifier that the job keeps when it is restarted; None if it has none."""
    if "SLURM_JOB_ID" in os.environ:
        return f"slurm {os.environ['SLURM_JOB_ID']}"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return f"torchrun {os.environ['TORCHELASTIC_RUN_ID']} {platform.node()} {os.getppid()}"
    return None


def device(use_cpu: bool = False) -> Any:
    """Return the ``torch.device`` of this process."""
    import torch

    if not use_cpu:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is not None:
            return torch.device(accelerator.type, ranks().local_rank)
    return torch.device("cpu")


def devices_in_training(use_cpu: bool) -> int:
    """Return how many devices share a step: the processes, or all visible GPUs (DataParallel)."""
    import torch

    world_size = ranks().world_size
    if world_size > 1 or use_cpu:
        return world_size
    return max(1, torch.cuda.device_count())


def join_process_group(backend: str | None, timeout_seconds: int, use_cpu: bool) -> None:
    """Create the process group of a job of several processes.

    ``TrainingArguments`` ignores ``ddp_timeout`` on CPU, but uses an existing group. On an
    accelerator the group also has gloo, to gather objects on the CPU.

    Args:
        backend: The name of the backend; None for that of the device.
        timeout_seconds: How long a collective operation may take.
        use_cpu: Whether not to use an accelerator.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    me = ranks()
    if me.world_size == 1 or dist.is_initialized():
        return
    # DDP imports this module. If that happened after the group exists, its default arguments would
    # keep the group alive after it is left, with threads that can abort the interpreter at exit.
    import torch.distributed.nn.functional
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=timeout_seconds)
    default = "gloo"
    if (kind := device(use_cpu).type) != "cpu":
        default = f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}"
        torch.accelerator.set_device_index(me.local_rank)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # the store may still have the addresses of an earlier group, or of processes that failed
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    store = PrefixStore(f"attempt/{attempt}/{next(_GROUPS)}", store)
    dist.init_process_group(
        backend or default, store=store, rank=rank, world_size=world_size, timeout=timeout
    )


def leave_process_group() -> None:
    """Destroy the process group, if there is one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def lost_connection(error: BaseException) -> bool:
    """Return whether an error means that another rank exited or timed out."""
    if not isinstance(error, RuntimeError):
        return False
    from torch.distributed import DistError

    text = str(error).lower()
    return isinstance(error, DistError) or "gloo" in text or "nccl" in text


def gather(value: Any, group: Any = None) -> list[Any]:
    """Return the ``value`` of every rank, in the order of ranks; needs the process group."""
    if ranks().world_size == 1:
        return [value]
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def main_process_first(
    prepare: Callable[[], Result], *, share: bool = True, on_each_machine: bool = True
) -> Result:
    """Call ``prepare`` on rank 0, then on local rank 0 of every other machine; return the result.

    The second call can use the caches that the first one filled. It may take up to a day, and may
    fork: gloo's threads hold nothing that a child needs (docs/decisions/process-group-first.md).

    Args:
        prepare: Returns the result.
        share: Whether the other ranks of a machine get a pickled copy of the result of its local
            rank 0. Otherwise, and if the result cannot be pickled, they call ``prepare`` too.
        on_each_machine: Whether a rank of each machine calls it. Otherwise only rank 0 does, whose
            result all get.

    Raises:
        UserError: On every rank, if one rank raised it; the same holds for a ``RunError``.
    """
    me = ranks()
    if me.world_size == 1:
        return prepare()
    import torch.distributed as dist

    waiting = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    turns = [me.rank == 0]
    source = 0
    if on_each_machine:
        turns.append(me.rank > 0 and (me.local_rank == 0 or not share))
        source = me.rank - me.local_rank
    results = []
    for is_my_turn in turns:
        failure: Exception | None = None
        if is_my_turn:
            try:
                results.append(prepare())
            except UserError as error:
                mistakes = list(error.mistakes)
                if me.rank > 0:
                    mistakes = [f"rank {me.rank}: {mistake}" for mistake in mistakes]
                failure = UserError(*mistakes)
            except RunError as error:
                failure = error
        if failures := list(filter(None, gather(failure, waiting))):
            raise failures[0]
    pickled: bytes | None = None
    if share:
        # a custom recipe may put objects into the result that cannot be pickled
        with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):
            if results:
                pickled = pickle.dumps(results[0])
        pickled = gather(pickled, waiting)[source]
    if results:
        return results[0]
    return prepare() if pickled is None else pickle.loads(pickled)


def on_main_process(compute: Callable[[], Result]) -> Result:
    """Call ``compute`` on rank 0 and return its result on every rank, see
    :func:`main_process_first`; without a process group every process calls it.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return compute()
    return main_process_first(compute, on_each_machine=False)


def refuse_half_directories(directory: Path, save_on_each_node: bool) -> None:
    """Raise a ``UserError`` if ``--save_on_each_node`` does not fit ``directory``; all ranks call
    it. In a shared directory machines would overwrite files; in others only one could resume.
    """
    path = directory.absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    with tempfile.NamedTemporaryFile(prefix=".finetune-", dir=existing) as probe:
        of_rank_0 = gather(Path(probe.name).name)[0]
        is_shared = all(gather((existing / of_rank_0).exists()))
    if is_shared == save_on_each_node:
        state, advice = "do not share", "add"
        if is_shared:
            state, advice = "share", "leave out"
        raise UserError(
            f"--output_dir {directory}: the machines {state} it: {advice} --save_on_each_node"
        )
