"""Find the interface that reaches the other machines of a job, and what to export for it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from finetune.runtime import distributed
from finetune.runtime.bounded import resolve

# RFC 5737 and RFC 3849: addresses of no machine, so that the default route is the one asked for.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")
#: The addresses of each interface that is up and has one, by name.
Interfaces = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Advice:
    """What is wrong, what to type, and whether it is wrong on a single machine too."""

    reason: str
    lines: tuple[str, ...]
    everywhere: bool = False


@dataclass(frozen=True)
class Network:
    """The network of this machine; nothing is sent over it.

    Attributes:
        host: The name of this machine.
        interfaces: Those that are up and have an address.
        address: The address of this machine on that route; None without a route.
        interface: The name of the interface with that address.
        advice: What to set.
    """

    host: str
    interfaces: Interfaces
    address: str | None
    interface: str | None
    advice: list[Advice]

    @classmethod
    def here(cls) -> Network:
        """Inspect this machine."""
        import torch.distributed as dist

        host, interfaces, address = socket.gethostname(), interfaces_here(), own_address()
        best = next((name for name, each in interfaces.items() if address in each), None)
        others = [name for name, each in interfaces.items() if not loopback(each) and name != best]
        wrong = {"GLOO_SOCKET_IFNAME": ""}
        if address not in (named := resolve(host)):
            place = ", ".join(dict.fromkeys(named)) or "unknown"
            wrong["GLOO_SOCKET_IFNAME"] = f"gloo listens on the address of {host}, which is {place}"
        if dist.is_available() and dist.is_nccl_available():
            infiniband = any(name.startswith("ib") for name in others)  # comes first, as it should
            taken = "" if infiniband or not others else f"NCCL may choose {', '.join(others)}"
            wrong["NCCL_SOCKET_IFNAME"] = taken
        found = [
            advise(variable, os.environ.get(variable, ""), interfaces, best, unset)
            for variable, unset in wrong.items()
        ]
        if distributed.machines() > 1 and (master := os.environ.get("MASTER_ADDR")):
            found.append(
                advise_master(master, resolve(master), address, distributed.ranks().rank == 0)
            )
        return cls(host, interfaces, address, best, [each for each in found if each is not None])

    @property
    def route(self) -> str:
        """The interface and the address from which this machine reaches others."""
        return f"{self.interface} ({self.address})" if self.interface else "no interface"

    @property
    def urgent(self) -> list[Advice]:
        """The advice for this job: on a single machine, the loopback interface will do."""
        return [each for each in self.advice if each.everywhere or distributed.machines() > 1]


def lines(advice: Sequence[Advice]) -> list[str]:
    """Return the commands to type."""
    return [line for each in advice for line in each.lines]


def interfaces_here() -> dict[str, list[str]]:
    """Return the interfaces of this machine, in the order of ``getifaddrs``."""
    states, families = psutil.net_if_stats(), (socket.AF_INET, socket.AF_INET6)
    found = {
        name: [each.address for each in entries if each.family in families]
        for name, entries in psutil.net_if_addrs().items()
        if name in states and states[name].isup
    }
    return {name: addresses for name, addresses in found.items() if addresses}


def own_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address from which this machine reaches rank 0, or else any other machine.

    Args:
        environment: Has ``MASTER_ADDR`` in a job; a loopback address is no route to others.
    """
    for address in (environment.get("MASTER_ADDR", ""), *_ELSEWHERE):
        for resolved in resolve(address)[:1] if address else ():
            family = socket.AF_INET6 if ":" in resolved else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((resolved, 9))  # asks for the route, and sends nothing
                except OSError:
                    continue
                own = str(probe.getsockname()[0])
            if not loopback([own]):
                return own
    return None


def advise(
    variable: str, value: str, interfaces: Interfaces, best: str | None, unset: str
) -> Advice | None:
    """Return what to set so that a backend takes the interface that leads to other machines.

    Args:
        variable: ``GLOO_SOCKET_IFNAME``, whole names separated by commas, or
            ``NCCL_SOCKET_IFNAME``, prefixes: with ``=`` before them whole names, each with
            ``:port`` if need be; what it excludes by ``^`` is left as it is.
        value: What it is set to; empty if it is not.
        interfaces: Of the machine.
        best: The name of that interface, None if nothing can be proposed.
        unset: What is wrong if the variable is not set; empty if nothing is.

    Returns:
        None if nothing is wrong or nothing can be proposed.
    """
    line = f"unset {variable}"
    if best is not None:
        ambiguous = len(_named(variable, best, interfaces)) > 1
        line = f"export {variable}='={best}'" if ambiguous else f"export {variable}={best}"
    if not value:
        if best is None or not unset:
            return None
        return Advice(f"{unset}; other machines are reached over {best}", (line,))
    chosen = _named(variable, value, interfaces)
    if not chosen:
        there = ", ".join(interfaces) or "none"
        reason = f"{variable}={value} names no interface with an address here (available: {there})"
        return Advice(reason, (line,), everywhere=True)
    if best is None or not all(loopback(interfaces[name]) for name in chosen):
        return None  # the user's choice stands
    reason = f"{variable}={value} names an interface that other machines cannot reach"
    return Advice(reason, (line,))


def _named(variable: str, value: str, interfaces: Interfaces) -> list[str]:
    if variable.startswith("GLOO"):
        names = value.split(",")
        return names if set(names) <= set(interfaces) else []
    if value.startswith("^"):
        return list(interfaces)
    words = tuple(each.partition(":")[0] for each in value.removeprefix("=").split(",") if each)
    if value.startswith("="):
        return [name for name in interfaces if name in words]
    return [name for name in interfaces if name.startswith(words)]


def advise_master(
    address: str, resolved: Sequence[str], own: str | None, leads: bool
) -> Advice | None:
    """Return what to set if ``MASTER_ADDR`` is a loopback address in a job of several machines.

    Args:
        address: ``MASTER_ADDR``.
        resolved: What it resolves to here.
        own: The address from which this machine reaches the others, if there is one.
        leads: Whether rank 0 runs on this machine, which may know itself by a loopback address.
    """
    literal = address == "localhost" or loopback([address])
    if not resolved or not loopback(resolved) or (leads and not literal):
        return None
    reason = f"MASTER_ADDR={address} is a loopback address here: others cannot reach it"
    if own is None or not leads:
        return Advice(f"{reason}: use the address that doctor shows on the machine of rank 0", ())
    return Advice(
        f"{reason}; set it on every machine, or use torchrun --master_addr",
        (f"export MASTER_ADDR={own}",),
    )


def loopback(addresses: Sequence[str]) -> bool:
    """Return whether all of them are loopback addresses; a host name is not."""
    try:
        return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses)
    except ValueError:
        return False
