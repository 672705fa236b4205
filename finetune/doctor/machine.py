"""Describe this machine: devices, backends, threads, versions, caches, as text by name.

Nothing here prints or blocks: measuring the size of a cache stops after a second.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations, permutations
from pathlib import Path
from urllib.parse import urlsplit

from finetune.errors import masked
from finetune.runtime import distributed, hub, threads
from finetune.runtime.version import __version__

Facts = dict[str, str | list[str]]
LIBRARIES = (
    *("torch", "transformers", "accelerate", "datasets", "evaluate", "tokenizers"),
    *("huggingface_hub", "numpy"),
)
# An allowlist, so that no token is ever shown.
VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"),
    *("GLOO_DEVICE_TRANSPORT", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_P2P_DISABLE"),
    *("NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_COMM_ID"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_GLOO_LAZY_INIT", "OMP_NUM_THREADS"),
    *("OMP_PROC_BIND", "MKL_NUM_THREADS", "KMP_AFFINITY", "ACCELERATE_MIXED_PRECISION"),
    *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_CPU"),
)
_SECONDS = 1.0


def host() -> Facts:
    """Return the host name, the operating system and the Python version."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "python": platform.python_version(),
    }


def devices() -> Facts:
    """Return the devices that training would use, and which GPUs have peer access."""
    import torch

    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type == "cpu":
        return {"none": "training runs on the CPU"}
    count = torch.accelerator.device_count()
    if kind.type != "cuda":
        return {f"{kind.type} {index}": "through torch.accelerator" for index in range(count)}
    found: Facts = {}
    for index in range(count):
        each = torch.cuda.get_device_properties(index)
        found[f"cuda {index}"] = (
            f"{each.name}, {each.total_memory / 2**30:.0f} GiB, "
            f"compute capability {each.major}.{each.minor}"
        )
    if count > 1:
        found["peers"] = peers(count, torch.cuda.can_device_access_peer)
        found["P2P"] = peer_advice(os.environ.get("NCCL_P2P_DISABLE"))
    return found


def peers(count: int, can: Callable[[int, int], bool]) -> str:
    """Return which pairs of ``count`` GPUs have peer access; ``can(a, b)`` checks one direction."""
    access = {
        f"{one}-{other}": can(one, other) and can(other, one)
        for one, other in combinations(range(count), 2)
    }
    if len(access) > 6 and len(set(access.values())) == 1:
        return f"{'yes' if access['0-1'] else 'no'}, between all {count}"
    if len(access) > 6:
        return f"yes, except {', '.join(pair for pair, yes in access.items() if not yes)}"
    return ", ".join(f"{pair} {'yes' if yes else 'no'}" for pair, yes in access.items())


def has_peer_access() -> bool:
    """Return whether any GPU of this machine reports peer access to another."""
    import torch

    pairs = permutations(range(torch.cuda.device_count()), 2)
    return any(torch.cuda.can_device_access_peer(*pair) for pair in pairs)


def peer_advice(value: str | None) -> str:
    """Return the effect of the current value of ``NCCL_P2P_DISABLE``."""
    if value not in (None, "", "0"):
        return (
            f"NCCL_P2P_DISABLE={value}: GPUs communicate through host memory even with peer "
            "access, which is slower; unset it unless collectives hang without it"
        )
    return (
        "NCCL_P2P_DISABLE is not set, and need not be: NCCL detects missing peer access. "
        "Set it only if access is reported and collectives still hang"
    )


def backends() -> Facts:
    """Return the backends that this torch supports, and the one a process group would use here."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return {"none": "this torch is built without torch.distributed"}
    names = ("nccl", "gloo", "mpi", "ucc", "xccl")
    built = [name for name in names if dist.is_backend_available(name)]
    kind = torch.accelerator.current_accelerator() or torch.device("cpu")
    return {
        "available": ", ".join(built),
        "missing": ", ".join(name for name in names if name not in built),
        "chosen": f"{dist.get_default_backend_for_device(kind)}, for {kind.type}",
    }


def computing() -> Facts:
    """Return the CPU cores, and how many threads each process gets."""
    import torch
    from joblib import cpu_count

    me, value = distributed.ranks(), os.environ.get("OMP_NUM_THREADS")
    origin = "" if value is None or threads.set_by_user() else ", the default of launchers"
    counts = sorted({1, 2, me.local_world_size, torch.accelerator.device_count() or 1})
    return {
        "cores": f"{cpu_count(only_physical_cores=True)} physical, {cpu_count()} logical available "
        f"to this process; {os.cpu_count()} logical in total",
        "OMP_NUM_THREADS": f"{value}{origin}" if value is not None else "not set",
        "torch": f"{torch.get_num_threads()} in this process",
        "fair share": "; ".join(
            f"{count} process{'es' * (count > 1)}: {threads.fair_share(count)} each"
            for count in counts
        ),
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries and, on GPU builds, of CUDA, HIP and NCCL."""
    import torch

    # `doctor` compares all of these across ranks
    found = {"python": platform.python_version(), "finetune": __version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    drivers = {"CUDA": torch.version.cuda, "HIP": torch.version.hip}
    found |= {name: number for name, number in drivers.items() if number}
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables of :data:`VARIABLES` that are set, as ``NAME=value``."""
    return [f"{name}={environment[name]}" for name in VARIABLES if name in environment]


def reach(environment: Mapping[str, str] = os.environ) -> Facts:
    """Return whether the Hub is reachable; a password in the endpoint is not shown."""
    endpoint = hub.endpoint(environment)
    shown = masked(endpoint)
    if hub.offline(environment):
        return {"endpoint": shown, "reach": "not checked: HF_HUB_OFFLINE is set"}
    over = ""
    if proxy := hub.proxy(endpoint):
        over = f" (checked only the proxy {urlsplit(proxy).hostname})"
    answers = "accepts connections" if hub.answers(endpoint) else "no answer within a second"
    return {"endpoint": shown, "reach": f"{answers}{over}"}


def caches(environment: Mapping[str, str] = os.environ) -> Facts:
    """Return the cache directories of the libraries, their sizes, and the free disk space."""
    found: Facts = {
        name: f"{place}: {size(place)}, {free(place)} free"
        for name, place in hub.caches(environment).items()
    }
    return {**found, "here": f"{Path.cwd()}: {free(Path.cwd())} free"}


def size(directory: Path) -> str:
    """Return the total size of a directory; a lower bound if counting takes more than a second."""
    if not os.path.isdir(directory):
        return "does not exist yet"
    total, until = 0, time.monotonic() + _SECONDS
    for place, _, names in os.walk(directory):
        for name in names:
            if time.monotonic() > until:
                return f"more than {_gib(total)} (counting stopped after {_SECONDS:.0f} s)"
            with contextlib.suppress(OSError):  # removed while it was counted
                total += os.lstat(os.path.join(place, name)).st_size
    return _gib(total)


def free(place: Path) -> str:
    """Return the free space of the file system of a path, which need not exist yet."""
    existing = next(path for path in (place, *place.absolute().parents) if os.path.exists(path))
    return _gib(shutil.disk_usage(existing).free)


def _gib(octets: int) -> str:
    return f"{octets / 2**30:,.{1 if octets >= 2**30 else 3}f} GiB"
