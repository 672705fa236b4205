"""``python -m finetune doctor``: show devices, network and versions before a job.

Under a launcher the ranks also connect to each other and time an all-reduce:

    python -m finetune doctor
    torchrun --nproc_per_node=2 -m finetune doctor
    torchrun --nnodes=2 --node_rank=0 --master_addr=ADDRESS -m finetune doctor   # on each machine
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from finetune.cli import console
from finetune.cli.parser import Parser
from finetune.errors import RunError
from finetune.runtime import distributed

_TIMEOUT = 60  # seconds that the ranks of a job wait for each other


def main(words: Sequence[str]) -> int:
    """``finetune doctor``."""
    Parser("doctor", __doc__).parse_args(words)
    from finetune.pipeline import doctor

    total = distributed.ranks().world_size
    if distributed.ranks().rank == 0:
        for title, facts in doctor.describe_machine().items():
            console.block(title, facts)
    lines = [f"    {line}" for line in doctor.recommend(doctor.list_interfaces())]
    title = "for a job on several machines, on each with its own interface:\n"
    # unfolded, however narrow the terminal: it will be copied
    console.say("\n".join(["", title, *lines] if lines else ["", "nothing needs to be set"]))
    if total == 1:
        return 0
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        distributed.join_process_group(None, _TIMEOUT, use_cpu=False)
        hosts = distributed.gather(os.uname().nodename)
    except RuntimeError as error:
        raise RunError(
            f"the ranks did not connect within {_TIMEOUT} s ({str(error).splitlines()[0]}): is "
            f"{place} reached from every machine, and was each started with the same command?"
        ) from error
    console.say(f"\n{len(hosts)} of {total} ranks connected, on {', '.join(dict.fromkeys(hosts))}")
    # as nccl-tests define the speed of a link (doc/PERFORMANCE.md there)
    share = 2 * (total - 1) / total
    rows = [
        [f"{size / 1e6:.0f} MB", f"{seconds * 1e3:.2f}"]
        + [f"{size / seconds / 1e9 * factor:.2f}" for factor in (1, share)]
        for size, seconds in doctor.time_all_reduces()
    ]
    console.table(["all-reduce", "ms", "GB/s", "bus GB/s"], rows)
    distributed.leave()
    return 0
