"""The ranks of a job meet for ``doctor``: who is there, do they hear rank 0, and how fast they are.

Whatever they wait for, they end with a message that says what to look at, and never hang.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NoReturn

from finetune.cli import console
from finetune.doctor import collectives, machine
from finetune.doctor.network import Network, lines
from finetune.errors import UserError
from finetune.runtime import distributed
from finetune.runtime.bounded import accepts

_DESCRIBING = 10.0  # seconds that rank 0 may take for what it says before the ranks meet
_GRACE = 5.0  # seconds; the group's own error tells more than that of the clock


def meet(network: Network | None, timeout: int) -> None:
    """Let the ranks meet, and print what they find out together; every rank calls it.

    Args:
        network: Of this machine, on the first process of it; else None.
        timeout: Seconds that the ranks wait for each other.
    """
    watch = _Watch(network)
    patience = timeout + (0 if distributed.is_main_process() else _DESCRIBING)
    what = "not all ranks came to MASTER_ADDR:MASTER_PORT, or no connection between them was made"
    with watch.over(what, patience, grace=0):
        distributed.join_process_group(None, timeout, use_cpu=False)
        reports = distributed.gather(
            {
                "host": machine.host()["host"],
                "device": str(collectives.device()),
                "versions": machine.versions(),
                "lines": lines(network.urgent) if network else [],
            }
        )
    _say_who_met(reports)
    # the watchdog of NCCL ends the process without a word to the user: be there before it
    grace = _GRACE if collectives.device().type == "cpu" else 0
    with watch.over("a broadcast from rank 0 did not arrive", timeout, grace):
        right = collectives.broadcast()
        if right != len(reports):
            raise RuntimeError(f"{right} of {len(reports)} ranks hold what rank 0 sent")
    console.say(f"  broadcast: {right} of {len(reports)} ranks hold what rank 0 sent\n")
    rows, speeds = [], collectives.all_reduces()
    while True:
        with watch.over("an all-reduce did not end", timeout, grace):
            speed = next(speeds, None)
        if speed is None:
            break
        figures = (speed.seconds * 1e3, speed.algorithm, speed.bus)
        rows.append([f"{speed.octets / 1e6:.0f} MB", *(f"{figure:.2f}" for figure in figures)])
    console.table(["all-reduce", "ms", "GB/s", "bus GB/s"], rows)
    distributed.leave()


def _say_who_met(reports: Sequence[dict[str, Any]]) -> None:
    facts: machine.Facts = {}
    for host, there in _ranks_by(report["host"] for report in reports).items():
        devices = sorted({reports[rank]["device"] for rank in there})
        facts[host] = f"{_named(there)} on {', '.join(devices)}"
    facts["versions"] = differences([report["versions"] for report in reports])
    console.say()
    console.block(f"{len(reports)} ranks met", facts)
    for report in reports[1:]:
        if report["lines"]:
            console.say(f"\nrecommended on {report['host']}\n")
            for line in report["lines"]:
                console.say(f"    {line}")


def differences(versions: Sequence[dict[str, str]]) -> str | list[str]:
    """Return where the ranks do not have the same libraries, a line for each library."""
    found = []
    for name in sorted({name for each in versions for name in each}):
        holders = _ranks_by(each.get(name, "none") for each in versions)
        if len(holders) > 1:
            shown = [f"{number} on {_named(ranks)}" for number, ranks in holders.items()]
            found.append(f"warning: {name} differs: {', '.join(shown)}")
    return found or "the same on all ranks"


def _ranks_by(values: Iterable[str]) -> dict[str, list[int]]:
    """Return the ranks that have each value; the values are in the order of the ranks."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(value, []).append(rank)
    return holders


def _named(ranks: Sequence[int]) -> str:
    """Return ``ranks 0-3, 6`` for 0, 1, 2, 3, 6."""
    runs = []
    for _, run in groupby(enumerate(ranks), lambda each: each[1] - each[0]):
        first, *others = (str(rank) for _, rank in run)
        runs.append("-".join([first, *others[-1:]]))
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(runs)}"


class _Watch:
    """Ends this process, with a message, if it fails or hangs where it waits for others."""

    def __init__(self, network: Network | None) -> None:
        self.network = network
        # asked now: a device that hangs does not answer
        self.peers = network is not None and machine.has_peer_access()

    @contextmanager
    def over(self, what: str, seconds: float, grace: float = _GRACE) -> Iterator[None]:
        """Say ``what`` goes wrong if a block fails, or takes longer than ``seconds``; it has
        ``grace`` more for an error of its own.
        """
        clock = threading.Timer(seconds + grace, self.give_up, (f"{what} (waited {seconds:g} s)",))
        clock.daemon = True
        clock.start()
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            clock.cancel()
            self.give_up(f"{what} ({str(error).strip().partition(chr(10))[0]})")
        finally:
            clock.cancel()

    def give_up(self, cause: str) -> NoReturn:
        """Say what to look at, once on every machine, and wait for nobody.

        A process that hangs in a collective cannot be ended in an orderly way.
        """
        sys.stdout.flush()
        if self.network is None:
            time.sleep(2 * _GRACE)  # meanwhile the first process of the machine speaks for it
        else:
            look_at = self._what_to_look_at(self.network)
            print(f"error: {cause}. Look at\n{look_at}", file=sys.stderr, flush=True)
        os._exit(2)

    def _what_to_look_at(self, network: Network) -> str:
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        open_ = port.isdecimal() and accepts(address, int(port))
        to_type = lines(network.urgent)
        if self.peers:
            to_type.append("export NCCL_P2P_DISABLE=1   # if GPUs hang waiting for each other")
        return "\n".join(
            [
                f"  MASTER_ADDR:MASTER_PORT  {address}:{port} "
                f"{'accepts' if open_ else 'does not accept'} connections from {network.host}",
                f"  interface                other machines are reached over {network.route}",
                f"  the launch               {distributed.ranks().world_size} processes: the same "
                "command on every machine, but for its own rank",
                *(f"      {line}" for line in to_type),
            ]
        )
