"""``python -m finetune doctor``: check devices, network, threads and versions before a job.

Under a launcher the ranks also connect to each other and time an all-reduce:

    python -m finetune doctor
    torchrun --nproc_per_node=2 -m finetune doctor
    torchrun --nnodes=2 --node_rank=0 --master_addr=ADDRESS -m finetune doctor   # on each machine
"""

from __future__ import annotations

from collections.abc import Sequence

from finetune.cli import console
from finetune.cli.parser import Parser
from finetune.doctor import machine
from finetune.doctor.network import Network, lines
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
    given = parser.parse_args(words)
    if given.timeout < 1:
        raise UserError(f"--timeout {given.timeout}: expected 1 second or more")
    me = distributed.ranks()
    network = Network.here() if me.local_rank == 0 else None
    if me.rank == 0 and network is not None:
        describe(network)
    if me.world_size > 1:
        from finetune.cli import meeting  # it imports torch, which --help can do without

        meeting.meet(network, given.timeout)
    return 0


def describe(network: Network) -> None:
    """Print what this machine knows without the other ranks."""
    console.block("this machine", machine.host())
    console.block("devices", machine.devices())
    console.block("backends", machine.backends())
    console.block("network", _network(network))
    console.block("threads", machine.computing())
    console.block("versions", _versions(machine.versions()))
    console.block("Hub", machine.reach())
    console.block("caches", machine.caches())
    console.say()
    _say_what_to_set(network)


def _network(network: Network) -> machine.Facts:
    return {
        "route": f"other machines are reached over {network.route}",
        "interfaces": ", ".join(network.interfaces) or "none",
        "variables": machine.variables() or "no relevant variable is set",
    }


def _versions(found: dict[str, str]) -> machine.Facts:
    beneath = [f"{name} {found[name]}" for name in ("CUDA", "HIP", "NCCL") if name in found]
    others = ["finetune", *(name for name in machine.LIBRARIES if name != "torch")]
    return {
        "torch": found["torch"] + (f" with {', '.join(beneath)}" if beneath else ""),
        "libraries": ", ".join(f"{name} {found[name]}" for name in others),
    }


def _say_what_to_set(network: Network) -> None:
    if not network.advice:
        console.say(
            "nothing needs to be set"
            if network.interface
            else "nothing to recommend: this machine has no route to other machines"
        )
        return
    console.block(
        "recommended" if network.urgent else "recommended for a job on several machines",
        {
            "why": [each.reason for each in network.advice],
            "where": "on this machine, and on every other machine of the job with the interface "
            "name that python -m finetune doctor shows there",
        },
    )
    console.say()
    for line in lines(network.advice):
        console.say(f"    {line}")  # unfolded, however narrow the terminal: it will be copied
