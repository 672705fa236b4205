"""Describe this machine before a job, and time an all-reduce between ranks.

Nothing here prints. Under a launcher every rank calls :func:`time_all_reduces`, inside the process
group.
"""

import contextlib
import os
import platform
import socket
import statistics
import time
from collections.abc import Iterator
from ipaddress import ip_address

import psutil
import torch
import torch.distributed as dist

from finetune.runtime import __version__, distributed

#: Environment variables that choose the network interface of a backend.
_INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME": "gloo", "NCCL_SOCKET_IFNAME": "nccl"}
#: Environment variables to show if they are set. A fixed list, so that no token is ever shown.
_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    *_INTERFACE_VARIABLES,
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
)
#: DDP sends gradients in a bucket of 1 MB, then buckets of 25 MB; MiniLM-L6 has 91 MB in total.
_MEGABYTES = (1, 25, 91)


def describe_machine() -> dict[str, dict[str, str | list[str]]]:
    """Return facts about machine, devices and network: by title, then by name."""
    devices: dict[str, str | list[str]] = {"training": f"runs on {distributed.device().type}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda {index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    backends = []
    for name in ("nccl", "gloo", "mpi", "xccl"):
        state = "available" if dist.is_backend_available(name) else "missing"
        backends.append(f"{name} {state}")
    return {
        "machine": {
            "host": platform.node(),
            "cores": f"{psutil.cpu_count(logical=False)} physical, {os.cpu_count()} logical",
            "versions": f"python {platform.python_version()}, torch {torch.__version__}, "
            f"finetune {__version__}",
        },
        "devices": devices,
        "network": {
            "backends": ", ".join(backends),
            "interfaces": ", ".join(list_interfaces()) or "none",
            "variables": [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
            or "none is set",
            # of several machines, each with an interface of its own
            "to set": recommend_variables() or "nothing",
        },
    }


def list_interfaces() -> dict[str, list[str]]:
    """Return the IP addresses of each interface that is up, in the order of ``getifaddrs``."""
    states = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    interfaces = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family in families]
        if addresses and name in states and states[name].isup:
            interfaces[name] = addresses
    return interfaces


def recommend_variables() -> list[str]:
    """Return shell lines that make backends use an interface that reaches other machines."""
    interfaces = list_interfaces()
    external = []
    for name, addresses in interfaces.items():
        if not all(map(_is_local, addresses)):
            external.append(name)
    route = _address_of_default_route()
    with_route = [name for name in external if route in interfaces[name]]
    best = next(iter(with_route + external), None)
    lines = []
    for variable, backend in _INTERFACE_VARIABLES.items():
        value = os.environ.get(variable, "")
        # names for gloo, prefixes of names for nccl, which also excludes names after `^`
        words = tuple(word.partition(":")[0] for word in value.removeprefix("=").split(",") if word)
        is_right = any(name.startswith(words) for name in external or interfaces)
        if not dist.is_backend_available(backend) or value.startswith("^") or is_right:
            continue  # keep the user's choice
        if best is None:
            if value:
                lines.append(f"unset {variable}")
        elif value or len(external) > 1:
            lines.append(f"export {variable}={best}")
    return lines


def _is_local(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return parsed.is_loopback or parsed.is_link_local


def _address_of_default_route() -> str | None:
    """Return the address of this machine for other networks; a UDP socket sends nothing when it
    connects.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))  # reserved for documentation, RFC 5737
        return str(probe.getsockname()[0])
    return None


def time_all_reduces() -> Iterator[tuple[int, float]]:
    """Time all-reduces of sizes that occur in training, and verify each on every rank.

    Yields:
        The bytes per rank, and the median time of five all-reduces on this rank in seconds.
    """
    device = distributed.device()
    if dist.get_default_backend_for_device(device) == "gloo":
        device = torch.device("cpu")
    for megabytes in _MEGABYTES:
        seconds = []
        for _ in range(6):  # the first, which is not counted, connects the ranks
            values = torch.ones(megabytes * 250_000, device=device)
            started = time.perf_counter()
            dist.all_reduce(values)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - started)
            assert bool((values == dist.get_world_size()).all())
        yield values.nbytes, statistics.median(seconds[1:])
