"""What a machine has for a job of several processes: devices, network, and their speed together."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

from finetune.errors import RunError, UserError
from finetune.pipeline import provenance
from finetune.runtime import distributed
from finetune.runtime.bounded import resolve

#: How the names of the variables begin that backends and launchers read; none holds a secret.
_VARIABLES = (
    "NCCL_",
    "GLOO_",
    "TORCH_NCCL_",
    "MASTER_",
    "OMP_NUM",
    "CUDA_VISIBLE",
    "ACCELERATE_USE",
)
#: Addresses of no machine (RFC 5737 and RFC 3849), for which the system names the default route.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")
#: DDP sends gradients in buckets of 1 and 25 MB; MiniLM-L6 has 91 MB of them in fp32.
_MEGABYTES, _REPETITIONS = (1, 25, 91), 5


class Speed(NamedTuple):
    """The speed of all-reduces of one size, which each rank holds.

    The bus bandwidth is what each link carries, as nccl-tests define it: bandwidth x 2 (n - 1) / n.
    """

    megabytes: float
    milliseconds: float  # the median of several
    bandwidth: float  # GB/s, size over time
    bus_bandwidth: float


def describe_machine() -> dict[str, str]:
    """Return host, devices, backends, interfaces, variables and versions of this machine."""
    import torch
    import torch.distributed as dist

    backends = [
        name if dist.is_backend_available(name) else f"no {name}"
        for name in ("nccl", "gloo", "mpi")
    ]
    address, device = route_address(), torch.accelerator.current_accelerator()
    devices = "cpu" if device is None else device.type
    if devices == "cuda":
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        devices = ", ".join(f"cuda {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus)
    variables = [
        f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES)
    ]
    return {
        "host": f"{platform.node()}, {platform.system()} {platform.release()}",
        "devices": f"{devices}; {os.cpu_count()} CPU cores",
        "backends": ", ".join(backends),
        "interfaces": ", ".join(interfaces()) or "none",
        "route": f"other machines are reached from {address}" if address else "to no other machine",
        "variables": ", ".join(sorted(variables)) or "none of a backend or a launcher",
        "versions": ", ".join(f"{name} {value}" for name, value in provenance.versions().items()),
    }


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of each interface that is up and has one, by name."""
    states, families = psutil.net_if_stats(), (socket.AF_INET, socket.AF_INET6)
    addresses = {
        name: [entry.address for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: some for name, some in addresses.items() if some and states[name].isup}


def route_address() -> str | None:
    """Return the address from which this machine reaches others; None without a route."""
    for target in _ELSEWHERE:
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))  # asks for the route, and sends nothing
            except OSError:
                continue
            address = str(probe.getsockname()[0])
        if not _is_loopback([address]):
            return address
    return None


def find_exports() -> dict[str, str]:
    """Return commands that make gloo and NCCL take the interface that leads to other machines, and
    the reason for each.
    """
    import torch.distributed as dist

    names, address, host = interfaces(), route_address(), socket.gethostname()
    best = next((name for name, addresses in names.items() if address in addresses), None)
    others = [name for name in names if name != best and not _is_loopback(names[name])]
    exports = {}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        reason, value = "", os.environ.get(variable, "")
        prefixes = tuple(word.split(":")[0] for word in value.lstrip("=").split(","))
        chosen = [name for name in names if name.startswith(prefixes)]
        if value.startswith("^"):  # excludes names
            continue
        if not chosen:
            reason = f"{variable}={value} names no interface with an address here"
        elif best and value and all(_is_loopback(names[name]) for name in chosen):
            reason = f"{variable}={value} names an interface that others cannot reach"
        elif best and not value and variable.startswith("GLOO"):
            if address not in (resolved := resolve(host)):
                reason = f"gloo listens on the address of {host}: {', '.join({*resolved})}"
        elif best and not value and others and dist.is_nccl_available():
            reason = f"NCCL may choose {', '.join(others)}"
        if reason:
            exports[f"export {variable}={best}" if best else f"unset {variable}"] = reason
    return exports


def join_job(timeout: int) -> list[dict[str, Any]]:
    """Connect the ranks of a job, and return host, device and exports of each.

    Args:
        timeout: Seconds that they wait for each other.

    Raises:
        UserError: If not all of them come.
    """
    try:
        distributed.join(None, timeout, use_cpu=False)
        return distributed.gather(
            {"host": platform.node(), "device": str(_device()), "exports": [*find_exports()]}
        )
    except RuntimeError as error:
        where = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"not all of {distributed.ranks().world_size} ranks met at {where} within {timeout} s: "
            "start the same command on every machine, but for its rank, and set there what "
            f"python -m finetune doctor shows ({str(error).splitlines()[0]})"
        ) from error


def time_all_reduces() -> list[Speed]:
    """Time all-reduces of increasing size; every rank calls it, inside the process group.

    Raises:
        RunError: If a sum is wrong.
    """
    import torch
    import torch.distributed as dist

    world_size, speeds = dist.get_world_size(), []
    for megabytes in _MEGABYTES:
        times = []
        for _ in range(_REPETITIONS + 1):
            values = torch.ones(megabytes * 250_000, device=_device())
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(values)
            if values[-1].item() != world_size:  # also waits for the device
                raise RunError(f"an all-reduce of {world_size} ranks returned a wrong sum")
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times[1:])  # the first connects
        bandwidth = values.nbytes / seconds / 1e9
        bus = bandwidth * 2 * (world_size - 1) / world_size
        speeds.append(Speed(values.nbytes / 1e6, seconds * 1e3, bandwidth, bus))
    return speeds


def _device() -> Any:
    """Return the accelerator of this rank, or the CPU if only gloo works."""
    import torch
    import torch.distributed as dist

    kind = torch.accelerator.current_accelerator()
    if kind is None or dist.get_default_backend_for_device(kind) == "gloo":
        return torch.device("cpu")
    return torch.device(kind.type, torch.accelerator.current_device_index())


def _is_loopback(addresses: Sequence[str]) -> bool:
    return all(ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in addresses)
