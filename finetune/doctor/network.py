"""The network of this machine, as gloo and NCCL will find it; nothing is sent over it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from finetune.doctor import interfaces
from finetune.doctor.interfaces import Advice, Interface
from finetune.runtime import distributed
from finetune.runtime.bounded import resolve

# RFC 5737 and RFC 3849: addresses of no machine, so that the default route is the one asked for.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")


@dataclass(frozen=True)
class Network:
    """What there is, what the backends make of it, and what to set.

    Attributes:
        host: The name of this machine.
        host_addresses: What it resolves to here.
        table: The interfaces.
        best: The one that most likely reaches the other machines of a job.
        gloo: The names of those that gloo takes.
        nccl: The same of NCCL; empty where this torch has none.
        advice: What to set.
    """

    host: str
    host_addresses: list[str]
    table: list[Interface]
    best: Interface | None
    gloo: list[str]
    nccl: list[str]
    advice: list[Advice]

    @classmethod
    def here(cls) -> Network:
        """Look at this machine."""
        import torch.distributed as dist

        host, table = socket.gethostname(), interfaces_here()
        addresses, best = resolve(host), interfaces.candidate(table, own_addresses())
        value = os.environ.get("GLOO_SOCKET_IFNAME", "")
        gloo = interfaces.gloo_takes(table, addresses, value)
        found = [interfaces.advise("GLOO_SOCKET_IFNAME", value, gloo, table, best)]
        nccl: list[str] = []
        if dist.is_available() and dist.is_nccl_available():
            value = os.environ.get("NCCL_SOCKET_IFNAME", "")
            nccl = interfaces.nccl_takes(table, value)
            found.append(interfaces.advise("NCCL_SOCKET_IFNAME", value, nccl, table, best))
        if distributed.machines() > 1 and (master := os.environ.get("MASTER_ADDR")):
            leads = distributed.ranks().rank == 0
            found.append(interfaces.advise_master(master, resolve(master), best, leads))
        advice = [each for each in found if each is not None]
        return cls(host, addresses, table, best, gloo, nccl, advice)

    @property
    def urgent(self) -> list[Advice]:
        """What this job needs: one that stays on one machine can do with the loopback interface."""
        return [each for each in self.advice if each.everywhere or distributed.machines() > 1]


def lines(advice: Sequence[Advice]) -> list[str]:
    """What to type."""
    return [line for each in advice for line in each.lines]


def interfaces_here() -> list[Interface]:
    """Those of this machine that have an address, in the order of ``getifaddrs``."""
    states = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        families = (socket.AF_INET, socket.AF_INET6)
        addresses = tuple(each.address for each in entries if each.family in families)
        if addresses and name in states:
            found.append(Interface(name, addresses, states[name].isup, states[name].speed))
    return found


def own_addresses(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The addresses from which this machine would reach rank 0, and any other machine."""
    found = []
    for address in (environment.get("MASTER_ADDR", ""), *_ELSEWHERE):
        for resolved in resolve(address)[:1] if address else ():
            family = socket.AF_INET6 if ":" in resolved else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((resolved, 9))
                except OSError:
                    continue
                found.append(str(probe.getsockname()[0]))
    return found
