"""Ways to do the same, each in a process of its own, that take turns.

What one way sets for its process (threads, the allocator, precision) does not help another, and a
busy machine disturbs all of them alike. Only one way computes at a time.
"""

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Work:
    """What a process does at each turn: what ``make(*arguments)`` returned once."""

    make: Callable[..., Callable[[], Any]]
    arguments: tuple[Any, ...]
    tree: Path = ROOT  # the checkout whose toolkit is imported
    environment: Mapping[str, str] = field(default_factory=dict)  # set before the imports


@dataclass
class Turns:
    """What the turns of one way took; of several processes, together."""

    clock: list[float] = field(default_factory=list)  # seconds
    processor: list[float] = field(default_factory=list)  # of all cores and child processes
    answers: list[Any] = field(default_factory=list)  # of the first process
    memory: float = 0.0  # peak of a process in MiB

    @property
    def seconds(self) -> float:
        """Of the median turn."""
        return statistics.median(self.clock)

    @property
    def processor_seconds(self) -> float:
        """Of the median turn."""
        return statistics.median(self.processor)

    def ratio(self, base: "Turns") -> float:
        """Return the median of the ratios to the clock of ``base``, round by round."""
        return statistics.median(b / a for a, b in zip(base.clock, self.clock, strict=True))


def take(ways: Mapping[str, list[Work]], rounds: int, *, warm_up: int = 0) -> dict[str, Turns]:
    """Let every way, processes that take each turn together, take its turn, round after round.

    The first ``warm_up`` rounds do not count.
    """
    context = multiprocessing.get_context("spawn")
    turns = {name: Turns() for name in ways}
    pipes: dict[str, list[Any]] = {name: [] for name in ways}
    processes: list[Any] = []
    try:
        for name, group in ways.items():
            for work in group:
                pipe, other = context.Pipe()
                process = context.Process(target=_serve, args=(other, work))
                process.start()
                other.close()
                pipes[name].append(pipe)
                processes.append(process)
            for pipe in pipes[name]:  # when it is ready, the next one loads its model alone
                pipe.recv()
        for number in range(warm_up + rounds):
            for name, group in pipes.items():
                for pipe in group:
                    pipe.send(True)
                replies = [pipe.recv() for pipe in group]
                clock, processor, answers, memory = zip(*replies, strict=True)
                if number >= warm_up:
                    turns[name].clock.append(max(clock))
                    turns[name].processor.append(sum(processor))
                    turns[name].answers.append(answers[0])
                turns[name].memory = max(memory)
        for pipe in (pipe for group in pipes.values() for pipe in group):
            pipe.send(False)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return turns


def _serve(pipe: Any, work: Work) -> None:
    sys.stdout = sys.stderr  # a trainer prints a line for each training
    os.environ |= work.environment | {"PYTHONPATH": str(work.tree), "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(work.tree))
    turn = work.make(*work.arguments)
    pipe.send(True)
    while pipe.recv():
        started, processor = time.perf_counter(), sum(os.times()[:4])
        answer = turn()
        took = time.perf_counter() - started, sum(os.times()[:4]) - processor
        pipe.send((*took, answer, peak_memory()))


def peak_memory() -> float:
    """Return the resident memory of this process at its peak, in MiB (Linux only).

    The peak of ``getrusage`` begins with that of the parent.
    """
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> None:
    """Start the peak of this process again (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
