"""What a process computes with: the precision of matrix products, and its threads."""

import os

import torch
from joblib import cpu_count

from finetune.runtime import distributed


def prefers_bf16(device_type: str) -> bool:
    """Return whether a device is known to multiply bf16 faster than fp32.

    That is ``cuda`` from Ampere on, and a ``cpu`` with AMX, or with AVX512-BF16 if it is not
    Intel's: two cores of a Xeon (model 207) whose AMX the hypervisor hides reached 168 GFLOP/s in
    bf16 and 302 in fp32. Of other devices nothing is known.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device_type != "cpu":
        return False
    has = torch.cpu.get_capabilities()
    has_fast_bf16 = has.get("avx512_bf16") and not str(has.get("cpu_name", "")).startswith("Intel")
    return bool(has.get("amx_bf16") or has_fast_bf16)


def automatic_precision(device_type: str) -> str:
    """Return what ``--precision auto`` takes: what ``accelerate`` was told, or what is fast."""
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    # "no" is also what its launcher says if nobody chose; on a CPU it computes nothing in fp16
    if requested == "bf16" or (requested == "fp16" and device_type != "cpu"):
        return requested
    return "bf16" if prefers_bf16(device_type) else "fp32"


def use_threads(num_threads: int | None) -> int:
    """Compute with this many threads from here on, and return how many they are.

    None stands for what the user set in the environment, or else a fair share: of the physical
    cores, or of the logical ones that this process may use where a container or an affinity mask
    allows it fewer (``joblib.cpu_count``). ``torchrun`` and ``accelerate launch`` set the variable
    to 1 for every process, so that two on a machine of 64 cores would leave 62 of them idle: under
    a launcher a 1 counts as unset, since nobody can tell who set it.
    """
    is_launched = distributed.under_launcher()
    if num_threads is None and not is_launched:
        return torch.get_num_threads()  # the library's own choice: every core, or what is set
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if num_threads is None and variable.isdecimal() and variable != "1":
        num_threads = int(variable)
    if not num_threads:
        cores = int(cpu_count(only_physical_cores=True))
        num_threads = max(1, cores // distributed.ranks().local_world_size)
    if is_launched:  # for worker processes, and against accelerate's own guess
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    torch.set_num_threads(num_threads)
    return num_threads
