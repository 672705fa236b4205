"""The events that functions of the pipeline report to their ``progress`` callback.

    finetune.train("yelp", embedded=True, progress=print)

Only rank 0 reports. There are three kinds of event: a sentence (:class:`Noted`), the progress of
long work (:class:`Advanced`), and the milestones of a training (:class:`Started`, :class:`Logged`
and :class:`Finished`). ``str()`` of an event is one line of text.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finetune.runtime import activity, distributed
from finetune.runtime.activity import Advanced as Advanced
from finetune.runtime.activity import Noted as Noted
from finetune.runtime.activity import emit as emit

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from finetune.config.settings import Settings
    from finetune.recipe.run import Run
    from finetune.training.arguments import FinetuneArguments

#: The format of each logged value that is not shown as its name and four digits.
_FORMATS = {
    "epoch": "epoch {:.2f}",
    "learning_rate": "lr {:.3g}",
    "grad_norm": "grad_norm {:.3g}",
    "rows_per_second": "{:,.0f} samples/s",
}
#: How ``Trainer`` names the speeds of an evaluation; lines and scores leave them out.
SPEED = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")


@dataclass(frozen=True)
class Logged:
    """The trainer logged ``values`` by name, after ``step`` optimizer steps."""

    step: int
    max_steps: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        """Return a line: ``step 120/480  epoch 0.50  loss 0.3421  lr 1.8e-05  152 samples/s``."""
        words = [f"step {self.step:>{len(str(self.max_steps))}}/{self.max_steps}"]
        for name in sorted(self.values, key=lambda name: name != "epoch"):
            if not name.endswith(SPEED):
                if name == "eval_loss":
                    words.append("validation")
                words.append(_format(name.removeprefix("eval_"), self.values[name]))
        return "  ".join(words)


def _format(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and name in _FORMATS:
        return _FORMATS[name].format(value)
    if isinstance(value, float):
        return f"{name} {value:.4f}"
    return f"{name} {value}"


@dataclass(frozen=True)
class Started:
    """Data and model are checked and loaded, and the training starts."""

    settings: Settings
    arguments: FinetuneArguments  # as resolved for this launch
    steps: int  # of the optimizer, in total
    model: torch.nn.Module | None  # None in a dry run

    def __str__(self) -> str:
        return f"training {self.settings.name}: {self.steps:,} steps"


@dataclass(frozen=True)
class Finished:
    """The run is finished: its model, metrics and predictions are written."""

    run: Run
    page: Path | None = None  # ``report.html``; None if it could not be written

    def __str__(self) -> str:
        scores = self.run.manifest.not_scored
        if scores is None:
            scores = ", ".join(_format(*score) for score in self.run.metrics.test.items())
        page = f"; report: {self.page}" if self.page else ""
        return f"finished: {scores}; saved to {self.run.path}{page}"


Event = Noted | Advanced | Logged | Started | Finished
Progress = Callable[[Event], object]


def ignore(event: Event) -> None:
    """Ignore an event."""


def throttle(progress: Progress) -> Progress:
    """Return ``progress``; progress of long work is shown 30 seconds after the last call."""
    last_call = time.monotonic()

    def throttled(event: Event) -> None:
        nonlocal last_call
        current_time = time.monotonic()
        if not isinstance(event, Advanced) or current_time - last_call >= 30:
            last_call = current_time
            progress(event)

    return throttled


@contextlib.contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Report what happens inside the block to ``progress``, from rank 0 only."""
    call = throttle(progress) if distributed.is_main_process() else ignore
    token = activity.listener.set(call)
    try:
        yield
    finally:
        activity.listener.reset(token)
