"""How many threads each process computes with: the cores of the machine, shared by its processes.

``torchrun`` and ``accelerate launch`` set ``OMP_NUM_THREADS=1`` for every process, so that two on
a machine of 64 cores would leave 62 of them idle. Under a launcher a 1 counts as unset, since
nobody can tell who set it; ``--num_threads`` decides.
"""

from __future__ import annotations

import os

from finetune.runtime import distributed

_VARIABLE = "OMP_NUM_THREADS"


def use(num_threads: int | None) -> int:
    """Compute with this many threads from here on, and return how many they are.

    None stands for what the user set in the environment, or else a fair share: of the physical
    cores, or of the logical ones that this process may use where a container or an affinity mask
    allows it fewer (``joblib.cpu_count``).
    """
    import torch

    if num_threads is None and not distributed.under_launcher():
        return torch.get_num_threads()  # the library's own choice: every core, or what is set
    variable = os.environ.get(_VARIABLE, "")
    if num_threads is None and variable.isdecimal() and variable != "1":
        num_threads = int(variable)
    if not num_threads:
        from joblib import cpu_count

        cores, me = int(cpu_count(only_physical_cores=True)), distributed.ranks()
        num_threads = max(1, cores // me.local_world_size)
    if distributed.under_launcher():  # for worker processes, and against accelerate's own guess
        os.environ[_VARIABLE] = str(num_threads)
    torch.set_num_threads(num_threads)
    return num_threads
