"""Which network interface gloo and NCCL take, and what to set where it is the wrong one.

gloo listens on the address that the host name resolves to (``createDefaultDevice`` in torch's
``ProcessGroupGloo.cpp``), NCCL on the first interfaces of its own order of preference
(``ncclFindInterfaces`` in its ``socket.cc``). Both are followed here over a table of interfaces;
:mod:`finetune.doctor.network` fills it for this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

# Of this machine alone, or of containers and virtual machines on it: never proposed.
_INTERNAL = (
    *("lo", "docker", "veth", "br-", "virbr", "vnet", "cni", "cali", "cilium", "flannel", "kube"),
    *("weave", "nerdctl", "podman", "lxc", "lxdbr", "dummy", "ifb", "tun", "tap"),
)


@dataclass(frozen=True)
class Interface:
    """One network interface.

    Attributes:
        name: As ``ip address`` shows it.
        addresses: IPv4 ones first.
        up: Whether it is up and connected.
        megabits: Its speed in Mbit/s, 0 if it does not tell.
    """

    name: str
    addresses: tuple[str, ...]
    up: bool = True
    megabits: int = 0

    @property
    def internal(self) -> bool:
        """Whether it leads to no other machine, as far as its name tells."""
        return self.name.startswith(_INTERNAL)


@dataclass(frozen=True)
class Advice:
    """Something to set.

    Attributes:
        reason: What is wrong as it is.
        lines: What to type.
        everywhere: Whether it is wrong within one machine too.
    """

    reason: str
    lines: tuple[str, ...]
    everywhere: bool = False


def gloo_takes(
    table: Sequence[Interface], host_addresses: Sequence[str], variable: str = ""
) -> list[str]:
    """The names of the interfaces that gloo listens on; more than one only if so set.

    Args:
        table: The interfaces of the machine.
        host_addresses: What the host name resolves to, in the resolver's order.
        variable: ``GLOO_SOCKET_IFNAME``: whole names, separated by commas.
    """
    if len(variable) > 1:
        return variable.split(",")
    own = next((each.name for each in table if loopback(each.addresses[0])), "lo")
    for address in host_addresses:
        if loopback(address):
            return [own]
        if name := carrier(table, address):
            return [name]
    return [own]


def nccl_takes(table: Sequence[Interface], variable: str = "") -> list[str]:
    """The names of the interfaces that NCCL uses: it meets over the first, and exchanges over all.

    Args:
        table: The interfaces of the machine.
        variable: ``NCCL_SOCKET_IFNAME``: prefixes separated by commas; ``=`` before them makes
            them whole names, ``^`` excludes them.
    """
    usable = [each.name for each in table if each.up and each.addresses != ("::1",)]
    orders = (
        [variable] if len(variable) > 1 else ["ib", "^docker,lo,virbr", "docker", "lo", "virbr"]
    )
    return next((names for order in orders if (names := _matching(usable, order))), [])


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    exclude = pattern.startswith("^")
    pattern = pattern.removeprefix("^")
    exact = pattern.startswith("=")
    wanted = [word.partition(":")[0] for word in pattern.removeprefix("=").split(",")]
    wanted = [word for word in wanted if word]

    def matches(name: str) -> bool:
        if not wanted:
            return True
        return name in wanted if exact else name.startswith(tuple(wanted))

    return [name for name in names if matches(name) != exclude]


def carrier(table: Sequence[Interface], address: str) -> str | None:
    """The name of the interface that has this address."""
    return next((each.name for each in table if address in each.addresses), None)


def candidate(table: Sequence[Interface], routes: Sequence[str]) -> Interface | None:
    """The interface that most likely reaches the other machines of a job.

    Args:
        table: The interfaces of the machine.
        routes: Own addresses from which others are reached, the best evidence first.

    Returns:
        That of the first route which leads out of the machine, or else the first that is up with
        an address beyond its own link; None if there is none.
    """
    leading_out = [
        each
        for each in table
        if each.up and not each.internal and not all(map(_link_local, each.addresses))
    ]
    for address in routes:
        for each in leading_out:
            if address in each.addresses:
                return each
    return next(iter(leading_out), None)


def advise(
    variable: str,
    value: str,
    taken: Sequence[str],
    table: Sequence[Interface],
    best: Interface | None,
) -> Advice | None:
    """What to set so that ``gloo`` or ``nccl`` takes the best interface.

    Args:
        variable: ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME``.
        value: What it is set to; empty if it is not.
        taken: Of :func:`gloo_takes` or :func:`nccl_takes`.
        table: The interfaces of the machine.
        best: Of :func:`candidate`.

    Returns:
        None if all is well, or if nothing can be proposed.
    """
    library = "gloo" if variable.startswith("GLOO") else "NCCL"
    lines = (export(variable, best, table) if best else f"unset {variable}",)
    known = {each.name: each for each in table}
    missing = [name for name in taken if name not in known]
    if value and (missing or not taken):
        there = ", ".join(known) or "none"
        return Advice(
            f"{variable}={value} names no interface with an address here (there are: {there})",
            lines,
            everywhere=True,
        )
    internal = [name for name in taken if name in known and known[name].internal]
    if best is None or (value and not internal):
        return None
    if internal:
        verb = "listens on" if library == "gloo" else "uses"
        reason = f"{library} {verb} {', '.join(internal)}, which other machines cannot reach"
        return Advice(reason, lines)
    if not taken or taken[0] == best.name or (library == "NCCL" and taken[0].startswith("ib")):
        return None
    return Advice(
        f"{library} takes {taken[0]}, but other machines are reached over {best.name}", lines
    )


def advise_master(
    address: str, resolved: Sequence[str], best: Interface | None, leads: bool
) -> Advice | None:
    """What to set where the ranks of several machines are to meet on a loopback address.

    Args:
        address: ``MASTER_ADDR``.
        resolved: What it resolves to here.
        best: Of :func:`candidate`.
        leads: Whether rank 0 runs on this machine, which may know itself by a loopback address.
    """
    literal = address == "localhost" or loopback(address)
    if not resolved or not all(map(loopback, resolved)) or (leads and not literal):
        return None
    reason = f"MASTER_ADDR={address} is each machine itself, so that the others wait in vain"
    if best is None or not leads:
        return Advice(f"{reason}: name the machine of rank 0 (doctor says its address there)", ())
    return Advice(
        f"{reason}; the same on every machine, or torchrun --master_addr",
        (f"export MASTER_ADDR={address_of(best)}",),
    )


def export(variable: str, best: Interface, table: Sequence[Interface]) -> str:
    """The line for the shell; to NCCL a name is a prefix, unless it is told otherwise."""
    assert not best.internal, best.name
    names = [each.name for each in table]
    ambiguous = variable.startswith("NCCL") and _matching(names, best.name) != [best.name]
    return f"export {variable}='={best.name}'" if ambiguous else f"export {variable}={best.name}"


def address_of(interface: Interface) -> str:
    """The address under which other machines know it, IPv4 rather than IPv6."""
    return next(each for each in interface.addresses if not _link_local(each))


def loopback(address: str) -> bool:
    """Whether it is an address of the machine itself, and no name."""
    return _parsed(address).is_loopback if _is_address(address) else False


def _link_local(address: str) -> bool:
    return _parsed(address).is_link_local


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])


def _is_address(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return False
    return True
