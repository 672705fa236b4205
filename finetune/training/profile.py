"""A few steps under torch's profiler: a trace, and a table of where their time went."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, schedule
from transformers import TrainerCallback, TrainerState

from finetune.runtime import distributed
from finetune.runtime.files import refuse_link, replacing, to_json, write_whole
from finetune.training.speed import PREFIX, Mark, Meter

DIRECTORY = "profile"
TABLE, TRACE = "profile.json", "trace.json"
PHASES = ("data", "forward", "backward", "communication", "optimizer")
#: Steps that are not profiled: memory is allocated in them, kernels are chosen.
BEFORE = 2
_OPERATORS = 15
_COLLECTIVES = ("gloo:", "nccl", "c10d::")


class Profile(TrainerCallback):
    """Profiles ``steps`` steps after the first two, and writes ``profile/`` into the directory.

    ``trace.json`` is rank 0's, for ``chrome://tracing`` or Perfetto; ``profile.json`` says how long
    a step was in each phase, which operators took it, and how fast the steps were. An accelerator
    is waited for after every phase meanwhile, so that its time belongs to the phase.

    ``meter`` is that of the trainer; ``model`` and ``devices`` are those of its summary.
    """

    def __init__(
        self, steps: int, meter: Meter, model: torch.nn.Module | None, devices: int
    ) -> None:
        self.steps, self.meter, self.model, self.devices = steps, meter, model, devices
        self.written = False
        self._profiler: profile | None = None
        self._since: Mark | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start, if there are steps enough; of a run that is resumed there may not be."""
        self.written, self._since = False, None
        if state.max_steps - state.global_step < self.steps + BEFORE:
            return
        on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *on_gpu],
            schedule=schedule(wait=BEFORE - 1, warmup=1, active=self.steps, repeat=1),
            on_trace_ready=lambda found: self._write(found, Path(args.output_dir or "")),
        )
        self._profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after the last of them."""
        if self._profiler is None:
            return
        self._profiler.step()
        if self._profiler.step_num == BEFORE:
            self._since, self.meter.waits = self.meter.mark(), True
        elif self._profiler.step_num == BEFORE + self.steps:
            self._end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop early, and write what there is."""
        self._end()

    def _end(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
        self._profiler, self.meter.waits = None, False

    def _write(self, found: profile, output_dir: Path) -> None:
        self.written = self._since is not None
        if not self.written:
            return
        speed = self.meter.summary(self.model, self.devices, self._since)
        if distributed.ranks().rank:
            return
        table = output_dir / DIRECTORY / TABLE
        refuse_link(table.parent)
        table.parent.mkdir(parents=True, exist_ok=True)
        with replacing(table.with_name(TRACE)) as new:
            found.export_chrome_trace(str(new))
        events = list(found.events() or ())  # type: ignore[no-untyped-call]
        steps, phases = where(events)
        content = {
            "steps": steps,
            "milliseconds": phases,
            "operators": _operators(found, steps),
            "speed": speed,
        }
        write_whole(table, to_json(content, indent=2) + "\n")


def where(events: Iterable[FunctionEvent]) -> tuple[int, dict[str, float]]:
    """Return how many steps torch's profiler saw, and milliseconds of a step by phase.

    Communication is the time in which a collective was under way and nothing else: what goes on
    beside the backward pass costs nothing. ``other`` is what is in no phase, and ``step`` all of
    it. ``idle`` is the time in which no kernel ran, where there is an accelerator; it is contained
    in the phases.
    """
    of_host = [each for each in events if each.device_type == DeviceType.CPU]
    kernels = [e for e in events if e.device_type != DeviceType.CPU and not e.is_user_annotation]
    steps = [each for each in of_host if each.name == f"{PREFIX}step"]
    main = {each.thread for each in steps}
    begins = min(each.time_range.start for each in steps)
    length = round(max(each.time_range.end for each in steps) - begins)

    def painted(these: Iterable[FunctionEvent]) -> np.ndarray:
        """Which microseconds they cover."""
        covered = np.zeros(length, dtype=bool)
        for each in these:
            first, last = each.time_range.start - begins, each.time_range.end - begins
            covered[max(0, round(first)) : max(0, round(last))] = True
        return covered

    def collective(event: FunctionEvent) -> bool:
        return event.name.startswith(_COLLECTIVES)

    phase = np.full(length, -1, dtype=np.int8)
    for name in sorted(PHASES, key="backward".__ne__):  # the others may lie in it
        these = (e for e in of_host if e.name == PREFIX + name and e.thread in main)
        phase[painted(these)] = PHASES.index(name)
    if kernels:
        under_way = painted(each for each in kernels if collective(each))
        busy = painted(each for each in kernels if not collective(each))
    else:
        here = (e for e in of_host if e.thread in main and not e.is_async)
        under_way = painted(each for each in of_host if collective(each) and each.is_async)
        busy = painted(each for each in here if _computes(each))
    phase[under_way & ~busy] = PHASES.index("communication")
    inside = painted(steps)  # not an evaluation or a checkpoint between them

    def of_a_step(where: np.ndarray) -> float:
        return float(np.sum(where & inside) / len(steps) / 1000)

    found = {name: of_a_step(phase == number) for number, name in enumerate(PHASES)}
    found["other"], found["step"] = of_a_step(phase == -1), of_a_step(inside)
    if kernels:
        found["idle"] = of_a_step(~(busy | under_way))
    return len(steps), found


def _computes(event: FunctionEvent) -> bool:
    """Whether it is an operator, and not a range around others that may wait for a collective."""
    return event.name.startswith(("aten::", "mkldnn::")) or not event.cpu_children


def _operators(found: profile, steps: int) -> list[dict[str, Any]]:
    """Return the slowest, kernels where there are some: milliseconds and calls of a step."""
    averages = [each for each in found.key_averages() if not each.is_user_annotation]
    on_device = [each for each in averages if each.device_type != DeviceType.CPU]

    def took(each: Any) -> float:
        return float(each.self_device_time_total if on_device else each.self_cpu_time_total)

    return [
        {"name": each.key, "milliseconds": took(each) / 1000 / steps, "calls": each.count / steps}
        for each in sorted(on_device or averages, key=took, reverse=True)[:_OPERATORS]
    ]
