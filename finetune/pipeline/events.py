"""What a function of the pipeline reports while it works, to the callback that it is given.

    finetune.train("yelp", embedded=True, progress=print)

Only rank 0 reports. There are three kinds of message: a sentence (:class:`Noted`), progress of work
that takes a while, and the milestones of a training. ``str()`` of each is a line for people.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finetune.runtime import activity, distributed

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from finetune.config.settings import Settings
    from finetune.runs.run import Run
    from finetune.training.arguments import FinetuneArguments

#: How a logged value is shown, where that is not its name and four digits.
_FORMATS = {
    "epoch": "epoch {:.2f}",
    "learning_rate": "lr {:.3g}",
    "grad_norm": "grad_norm {:.3g}",
    "rows_per_second": "{:,.0f} samples/s",
}
#: The speed of an evaluation, as the library names it, which a line leaves out.
SPEED = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")


@dataclass(frozen=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True)
class Noted(Event):
    """A sentence that the user should know."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


class MovedAside(Noted):
    """A run that was in the directory is now in another."""


@dataclass(frozen=True)
class Interrupted(Noted):
    """A signal ended the work: the sentence says how to go on."""

    has_run: bool = True  # whether a run had begun


@dataclass(frozen=True)
class Advanced(Event):
    """So much of some ``work`` is done, in units like rows, bytes or steps; ``total`` is None if it
    is unknown. Reported when there was no event for 30 seconds.
    """

    work: str
    done: int
    total: int | None
    unit: str

    def __str__(self) -> str:
        share = f" of {self.total:,} ({self.done / self.total:.0%})" if self.total else ""
        return f"{self.work}: {self.done:,}{share} {self.unit}"


@dataclass(frozen=True)
class Predicted(Event):
    """So many ``rows`` of an input are predicted, of ``total``; None for standard input."""

    rows: int
    total: int | None

    def __str__(self) -> str:
        return str(Advanced("predicted", self.rows, self.total, "rows"))


@dataclass(frozen=True)
class Logged(Event):
    """The trainer logged or evaluated: the values by name, after ``step`` optimizer steps."""

    step: int
    max_steps: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        """One line: ``step 120/480  epoch 0.50  loss 0.3421  lr 1.8e-05  152 samples/s``."""
        words = [f"step {self.step:>{len(str(self.max_steps))}}/{self.max_steps}"]
        for name in sorted(self.values, key=lambda name: name != "epoch"):
            if not name.endswith(SPEED):
                words += ["validation"] * (name == "eval_loss")
                words.append(_format(name.removeprefix("eval_"), self.values[name]))
        return "  ".join(words)


def _format(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and name in _FORMATS:
        return _FORMATS[name].format(value)
    return f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"


@dataclass(frozen=True)
class Started(Event):
    """Everything is checked and loaded; the training of so many optimizer ``steps`` begins, with
    the arguments as resolved for this launch. In a dry run there is no model.
    """

    settings: Settings
    arguments: FinetuneArguments
    steps: int
    model: torch.nn.Module | None

    def __str__(self) -> str:
        return f"training {self.settings.name}: {self.steps:,} steps"


@dataclass(frozen=True)
class Collated(Event):
    """The end of a dry run: one collated batch, by the name of the model's input."""

    batch: Mapping[str, torch.Tensor]

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.batch.items())
        return f"one collated batch: {shapes}"


@dataclass(frozen=True)
class Finished(Event):
    """The run has its model, metrics and predictions."""

    run: Run
    profiled: bool  # whether steps were profiled
    page: Path | None = None  # `report.html`; None if it could not be written

    def __str__(self) -> str:
        scores = ", ".join(_format(*score) for score in self.run.metrics.test.items())
        page = f"; report: {self.page}" if self.page else ""
        return f"finished: {scores}; saved to {self.run.path}{page}"


Progress = Callable[[Event], object]


def ignore(event: Event) -> None:
    """Take an event and do nothing with it."""


def on_rank_zero(progress: Progress) -> Progress:
    """Return ``progress`` on rank 0, and :func:`ignore` on the others."""
    return progress if distributed.is_main_process() else ignore


def throttle(progress: Progress, kind: type[Event] = Advanced) -> Progress:
    """Return ``progress``, which gets an event of ``kind`` only after 30 seconds without events."""
    last = time.monotonic()

    def report(event: Event) -> None:
        nonlocal last
        seconds = time.monotonic()
        if not isinstance(event, kind) or seconds - last >= 30:
            last = seconds
            progress(event)

    return report


@contextlib.contextmanager
def telling(progress: Progress) -> Iterator[Progress]:
    """Give ``progress`` as rank 0 calls it, and report long work inside the block to it."""
    report = on_rank_zero(throttle(progress))
    token = activity.listener.set(
        lambda *facts: report(Advanced(*facts) if len(facts) > 1 else Noted(*facts))
    )
    try:
        yield report
    finally:
        activity.listener.reset(token)
