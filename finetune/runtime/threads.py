"""How many threads each process computes with: the cores of the machine, shared by its processes.

``torchrun`` and ``accelerate launch`` set ``OMP_NUM_THREADS=1`` for every process, so that two on
a machine of 64 cores would leave 62 of them idle. Under a launcher a 1 counts as unset, since
nobody can tell who set it; ``--num_threads`` decides.
"""

from __future__ import annotations

import os

from finetune.runtime import distributed

_VARIABLE = "OMP_NUM_THREADS"


def fair_share(local_world_size: int) -> int:
    """Return the cores of this machine for each of its processes, at least one.

    Physical cores, or the logical ones that this process may use where a container or an affinity
    mask allows it fewer (``joblib.cpu_count``).
    """
    from joblib import cpu_count

    return max(1, int(cpu_count(only_physical_cores=True)) // local_world_size)


def set_by_user() -> int | None:
    """Return the threads that ``OMP_NUM_THREADS`` asks for, unless a launcher put its 1 there."""
    value = os.environ.get(_VARIABLE, "")
    if not value.isdecimal() or (value == "1" and distributed.under_launcher()):
        return None
    return int(value)


def use(num_threads: int | None) -> int:
    """Compute with this many threads from here on, and return how many they are.

    None stands for what the user set in the environment, or else a fair share.
    """
    import torch

    if num_threads is None and not distributed.under_launcher():
        return torch.get_num_threads()  # the library's own choice: every core, or what is set
    threads = num_threads or set_by_user() or fair_share(distributed.ranks().local_world_size)
    if distributed.under_launcher():  # for worker processes, and against accelerate's own guess
        os.environ[_VARIABLE] = str(threads)
    torch.set_num_threads(threads)
    return threads
