"""Ways to do the same, each in a process of its own, that take turns.

What one way sets for its process (threads, the allocator, precision) does not help another so, and
a busy machine disturbs all of them alike. Only one way computes at a time.
"""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Called once in the process; what it returns is called at every turn.
Make = Callable[..., Callable[[], Any]]
Work = tuple[Make, tuple[Any, ...]]


@dataclass
class Way:
    """What one way took, turn by turn.

    Attributes:
        clock: Seconds of each turn.
        processor: Seconds of all cores in each turn.
        answers: What each turn returned; of several processes, a tuple.
        memory: Peak of the process in MiB; of several, the largest.
    """

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    memory: float = 0.0

    @property
    def seconds(self) -> float:
        """The median turn."""
        return statistics.median(self.clock)

    @property
    def processor_seconds(self) -> float:
        """Of the median turn."""
        return statistics.median(self.processor)


def take(ways: Mapping[str, Work | list[Work]], rounds: int, *, warm_up: int = 0) -> dict[str, Way]:
    """Let every way take its turn, round after round.

    Args:
        ways: By name: a function at the top of its module, and what it is called with; or several,
            in processes that take each turn together.
        rounds: How many turns each has.
        warm_up: Turns before those, which do not count.
    """
    context = multiprocessing.get_context("spawn")
    found: dict[str, Way] = {}
    lines: dict[str, list[Any]] = {}
    processes = []
    for name, way in ways.items():
        lines[name] = []
        for make, arguments in way if isinstance(way, list) else [way]:
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
            process.start()
            theirs.close()
            lines[name].append(mine)
            processes.append(process)
        for line in lines[name]:
            line.recv()  # it is ready; the next one loads its model in peace
        found[name] = Way()
    for turn in range(warm_up + rounds):
        for name, group in lines.items():
            for line in group:
                line.send(True)
            clock, processor, answers, memory = zip(*(line.recv() for line in group), strict=True)
            if turn >= warm_up:
                found[name].clock.append(max(clock))
                found[name].processor.append(sum(processor))
                together = isinstance(ways[name], list)
                found[name].answers.append(answers if together else answers[0])
                found[name].memory = max(memory)
    for group in lines.values():
        for line in group:
            line.send(False)
    for process in processes:
        process.join()
    return found


def _serve(line: Any, make: Make, arguments: tuple[Any, ...]) -> None:
    sys.stdout = sys.stderr  # a trainer prints a line for each training
    turn = make(*arguments)
    line.send(True)
    while line.recv():
        started = time.perf_counter(), time.process_time()
        answer = turn()
        took = time.perf_counter() - started[0], time.process_time() - started[1]
        line.send((*took, answer, peak_memory()))


def peak_memory() -> float:
    """Resident, of this process, in MiB.

    Linux hands the peak that ``getrusage`` tells down from the parent, that in ``/proc`` it does
    not.
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
