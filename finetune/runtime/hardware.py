"""Choose the precision and the number of threads of a process."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from joblib import cpu_count

from finetune.errors import UserError
from finetune.runtime import distributed


def prefers_bf16(device_type: str) -> bool:
    """Return whether matrix products are known to be faster in bf16 than in fp32.

    This holds for ``cuda`` from Ampere on, and for a ``cpu`` with AMX, or with AVX512-BF16 if it is
    not from Intel: two cores of a Xeon (model 207) with AMX hidden by the hypervisor reached
    168 GFLOP/s in bf16 and 302 in fp32. Other devices were not measured.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device_type != "cpu":
        return False
    has = torch.cpu.get_capabilities()
    has_fast_bf16 = has.get("avx512_bf16") and not str(has.get("cpu_name", "")).startswith("Intel")
    return bool(has.get("amx_bf16") or has_fast_bf16)


def automatic_precision(device_type: str) -> str:
    """Return the precision for ``--precision auto``: that of ``accelerate``, or the faster one.

    Raises:
        UserError: If ``accelerate`` has one that is not supported here.
    """
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if requested not in ("no", "bf16", "fp16"):
        raise UserError(
            f"ACCELERATE_MIXED_PRECISION {requested}: expected no, bf16 or fp16 (mixed_precision "
            "of the accelerate config), or --precision"
        )
    # `accelerate launch` also sets "no" if the user chose nothing; on a CPU it ignores fp16
    if requested == "bf16" or (requested == "fp16" and device_type != "cpu"):
        return requested
    return "bf16" if prefers_bf16(device_type) else "fp32"


def use_threads(num_threads: int | None) -> int:
    """Set the number of threads of torch, and return it.

    With None it is ``OMP_NUM_THREADS``, or else this process's share of the cores: of the physical
    ones, or of the logical ones that a container or an affinity mask allows (``joblib.cpu_count``).
    ``torchrun`` and ``accelerate launch`` set ``OMP_NUM_THREADS=1`` for every process, so that two
    processes on 64 cores would leave 62 idle. Under a launcher, 1 therefore counts as unset, since
    the user's own 1 looks the same.
    """
    is_launched = distributed.under_launcher()
    if num_threads is None and not is_launched:
        return torch.get_num_threads()  # the default of torch: OMP_NUM_THREADS or all cores
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if num_threads is None and variable.isdecimal() and variable != "1":
        num_threads = int(variable)
    if not num_threads:
        cores = int(cpu_count(only_physical_cores=True))
        num_threads = max(1, cores // distributed.ranks().local_world_size)
    if is_launched:  # for worker processes; accelerate would set another number
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    torch.set_num_threads(num_threads)
    return num_threads


def batch_executor(device_type: str) -> ThreadPoolExecutor:
    """Return an executor whose threads compute whole batches: on a CPU as many as torch has, each
    on one core; elsewhere one.
    """
    if device_type != "cpu":
        return ThreadPoolExecutor(1)
    # a new thread of torch starts with as many threads of its own as there are cores
    use_one = partial(torch.set_num_threads, 1)
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=use_one)
