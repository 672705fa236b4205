"""Look at this machine before a job: devices, network, versions; time an all-reduce between ranks.

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

#: Variables that decide which interface a backend uses.
_INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME": "gloo", "NCCL_SOCKET_IFNAME": "nccl"}
#: Shown where they are set: an allowlist, so that no token is ever shown.
_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", *_INTERFACE_VARIABLES),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_DEBUG", "OMP_NUM_THREADS"),
)
#: DDP sends gradients in buckets, the first of 1 and the others of 25 MB; MiniLM-L6 has 91 MB.
_MEGABYTES = (1, 25, 91)


def describe_machine() -> dict[str, dict[str, str | list[str]]]:
    """Return what is worth knowing about this machine, by title and name."""
    kind = torch.accelerator.current_accelerator() or torch.device("cpu")
    devices: dict[str, str | list[str]] = {"training": f"runs on {kind.type}"}
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices[f"cuda {index}"] = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    backends = [
        f"{name} {'available' if dist.is_backend_available(name) else 'missing'}"
        for name in ("nccl", "gloo", "mpi", "xccl")
    ]
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
        },
    }


def list_interfaces() -> dict[str, list[str]]:
    """Return the addresses of each interface that is up, in the order of ``getifaddrs``."""
    states = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    interfaces = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family in families]
        if addresses and name in states and states[name].isup:
            interfaces[name] = addresses
    return interfaces


def recommend() -> list[str]:
    """Return the lines to type so that backends use an interface that reaches other machines."""
    interfaces = list_interfaces()
    outer = []
    for name, addresses in interfaces.items():
        parsed = [ip_address(address.partition("%")[0]) for address in addresses]
        if not all(address.is_loopback or address.is_link_local for address in parsed):
            outer.append(name)
    route = None  # the address from which this machine reaches others; nothing is sent
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))  # RFC 5737: the address of no machine
        route = str(probe.getsockname()[0])
    best = next((name for name in outer if route in interfaces[name]), next(iter(outer), None))
    lines = []
    for variable, backend in _INTERFACE_VARIABLES.items():
        value = os.environ.get(variable, "")
        # nccl takes the beginnings of names, gloo names; `^` leaves some out
        words = tuple(word.partition(":")[0] for word in value.removeprefix("=").split(",") if word)
        is_right = any(name.startswith(words) for name in outer or interfaces)
        if not dist.is_backend_available(backend) or value.startswith("^") or is_right:
            continue  # the user's choice stands
        if best is None:
            lines += [f"unset {variable}"] if value else []
        elif value or len(outer) > 1:
            lines.append(f"export {variable}={best}")
    return lines


def time_all_reduces() -> Iterator[tuple[int, float]]:
    """Time all-reduces of the sizes that occur in training, each verified on every rank.

    Yields:
        Bytes on each rank, and the median of the seconds of five on rank 0.
    """
    kind = torch.accelerator.current_accelerator()
    device = torch.device("cpu")
    if kind is not None and dist.get_default_backend_for_device(kind) != "gloo":
        device = torch.device(kind.type, distributed.ranks().local_rank)
    for megabytes in _MEGABYTES:
        seconds = []
        for _ in range(6):  # the first one connects
            values = torch.ones(megabytes * 250_000, device=device)
            started = time.perf_counter()
            dist.all_reduce(values)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - started)
            assert bool((values == dist.get_world_size()).all())
        yield values.nbytes, statistics.median(seconds[1:])
