"""``python -m finetune doctor``: check devices and network before a job.

Under a launcher the ranks also connect to each other and time an all-reduce:

    python -m finetune doctor
    torchrun --nproc_per_node=2 -m finetune doctor
    torchrun --nnodes=2 --node_rank=0 --master_addr=ADDRESS -m finetune doctor   # on each machine
"""

from __future__ import annotations

from collections.abc import Sequence

from finetune.cli import console
from finetune.cli.parser import Parser
from finetune.errors import UserError
from finetune.runtime import distributed


def main(words: Sequence[str]) -> int:
    """``finetune doctor [--timeout SECONDS]``."""
    parser = Parser("doctor", __doc__)
    parser.add_argument(
        "--timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="how long the ranks of a job wait for each other (default: 60)",
    )
    timeout = parser.parse_args(words).timeout
    if timeout < 1:
        raise UserError(f"--timeout {timeout}: expected 1 second or more")
    from finetune.pipeline import doctor  # imports torch

    ranks = distributed.ranks()
    if ranks.rank == 0:
        console.block("this machine", doctor.describe_machine())
        exports = doctor.find_exports()
        console.say("\nnothing needs to be set" if not exports else "")
        for command, reason in exports.items():
            console.say(f"for a job on several machines, on each with the name there: {reason}")
            console.say(f"    {command}")
    if ranks.world_size == 1:
        return 0
    reports = doctor.join_job(timeout)
    console.say(f"\n{len(reports)} of {ranks.world_size} ranks met")
    for rank, report in enumerate(reports):
        console.say(f"  rank {rank}: {report['device']} of {report['host']}")
        if report["host"] != reports[0]["host"]:
            console.say("".join(f"    {command}\n" for command in report["exports"]).rstrip())
    rows = [
        [f"{speed.megabytes:.0f} MB", *(f"{figure:.2f}" for figure in speed[1:])]
        for speed in doctor.time_all_reduces()
    ]
    console.table(["all-reduce", "ms", "GB/s", "bus GB/s"], rows)
    distributed.leave()
    return 0
