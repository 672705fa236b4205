"""Check that the ranks of a job can communicate, and time their all-reduces.

A broadcast from rank 0 that every rank verifies, and timed all-reduces of the sizes that occur in
training. Every rank calls these, inside the process group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

# DDP sends gradients in buckets, the first of 1 and the others of 25 MB; MiniLM-L6 has 91 MB of
# them in fp32.
MEGABYTES = (1, 25, 91)
_MOST, _SECONDS_EACH, _LONGEST = 20, 0.7, 2.0


@dataclass(frozen=True)
class Speed:
    """The speed of all-reduces of one size."""

    octets: int  # bytes on each rank
    seconds: float  # median of several, on rank 0
    world_size: int

    @property
    def algorithm(self) -> float:
        """Algorithm bandwidth in GB/s: size over time."""
        return self.octets / self.seconds / 1e9

    @property
    def bus(self) -> float:
        """Bus bandwidth in GB/s: what each link carries, comparable with the peak of the hardware.

        As nccl-tests define it (doc/PERFORMANCE.md there): algorithm bandwidth x 2 (n - 1) / n.
        """
        return self.algorithm * 2 * (self.world_size - 1) / self.world_size


def broadcast() -> int:
    """Broadcast from rank 0, and return how many ranks received it intact."""
    expected = torch.arange(4096, dtype=torch.float32, device=device())
    held = expected.clone() if dist.get_rank() == 0 else torch.zeros_like(expected)
    dist.broadcast(held, src=0)
    right = torch.tensor(float(torch.equal(held, expected)), device=expected.device)
    dist.all_reduce(right)
    return int(right.item())


def all_reduces() -> Iterator[Speed]:
    """Time all-reduces of increasing size; stop before one that would take too long here."""
    world_size, seconds_per_octet = dist.get_world_size(), 0.0
    for megabytes in MEGABYTES:
        values = torch.ones(megabytes * 250_000, device=device())
        repetitions = _agreed_repetitions(values.nbytes * seconds_per_octet)
        if repetitions == 0:
            return
        _timed(values)
        assert values[0].item() == world_size, values[0]
        values.zero_()  # sums of sums would overflow
        seconds = statistics.median(_timed(values) for _ in range(repetitions))
        seconds_per_octet = seconds / values.nbytes
        yield Speed(values.nbytes, seconds, world_size)


def device() -> torch.device:
    """Return the device for this rank's tensors: its accelerator, or the CPU if only gloo works."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or dist.get_default_backend_for_device(kind) == "gloo":
        return torch.device("cpu")
    return torch.device(kind.type, torch.accelerator.current_device_index())


def _agreed_repetitions(expected_seconds: float) -> int:
    """Let rank 0 decide: several if they are fast, one if slow, none if very slow."""
    number = min(_MOST, max(1, int(_SECONDS_EACH / max(expected_seconds, 1e-9))))
    told = torch.tensor(0 if expected_seconds > _LONGEST else number, device=device())
    dist.broadcast(told, src=0)
    return int(told.item())


def _timed(values: torch.Tensor) -> float:
    started = time.perf_counter()
    dist.all_reduce(values)
    if values.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - started
