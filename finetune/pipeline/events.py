"""What a function of the pipeline reports while it works, to the callback that it is given.

    finetune.train("yelp", embedded=True, progress=print)

Only rank 0 reports. Each event is a dataclass; ``str()`` of it is a line for people.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finetune.recipe import catalog
from finetune.runtime import activity, distributed

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from finetune.config.settings import Settings
    from finetune.runs.run import Run
    from finetune.training.arguments import FinetuneArguments

#: Seconds without an event after which long work is reported.
_SECONDS = 30.0
#: How a logged value is shown, where that is not its name and four digits.
_FORMATS = {
    "epoch": "epoch {:.2f}",
    "learning_rate": "lr {:.3g}",
    "grad_norm": "grad_norm {:.3g}",
    "rows_per_second": "{:,.0f} samples/s",
}
#: The speed of an evaluation, as the library names it, which a line leaves out.
_UNSEEN = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")


@dataclass(frozen=True)
class Event:
    """Something that happened."""


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
        rows = len(self.settings.recipe.splits["train"])
        name = catalog.display_name(type(self.settings.recipe))
        return f"training {name}: {rows:,} rows, {self.steps:,} steps"


@dataclass(frozen=True)
class Collated(Event):
    """The end of a dry run: one collated batch, by the name of the model's input."""

    batch: Mapping[str, torch.Tensor]

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.batch.items())
        return f"one collated batch: {shapes}"


@dataclass(frozen=True)
class Noted(Event):
    """A sentence that the user should know."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


class MovedAside(Noted):
    """A run that was in the directory is now in another."""


class Interrupted(Noted):
    """Ctrl-C: the sentence says how to go on."""


@dataclass(frozen=True)
class Logged(Event):
    """The trainer logged or evaluated: the values by name, after ``step`` optimizer steps."""

    step: int
    max_steps: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        """One line: ``step 120/480  epoch 0.50  loss 0.3421  lr 1.8e-05  152 samples/s``."""
        words = [f"step {self.step:>{len(str(self.max_steps))}}/{self.max_steps}"]
        values = {name: value for name, value in self.values.items() if not name.endswith(_UNSEEN)}
        if "epoch" in values:
            words.append(_format("epoch", values.pop("epoch")))
        if "eval_loss" in values:
            words.append("validation")
        words += [_format(name.removeprefix("eval_"), value) for name, value in values.items()]
        return "  ".join(words)


def _format(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and name in _FORMATS:
        return _FORMATS[name].format(value)
    return f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"


@dataclass(frozen=True)
class Advanced(Event):
    """Work that takes a while is so far; reported when there was no event for 30 seconds.

    Attributes:
        work: What is done, like ``tokenizing train``.
        done: How many units of it.
        total: How many there are; None if that is unknown.
        unit: Their name: rows, bytes, steps or batches.
    """

    work: str
    done: int
    total: int | None
    unit: str

    def __str__(self) -> str:
        if not self.total:
            return f"{self.work}: {self.done:,} {self.unit}"
        share = f"({self.done / self.total:.0%})"
        if self.unit == "bytes":
            return f"{self.work}: {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB {share}"
        return f"{self.work}: {self.done:,} of {self.total:,} {self.unit} {share}"


@dataclass(frozen=True)
class Predicted(Event):
    """So many ``rows`` of an input are predicted, of ``total``; None for standard input."""

    rows: int
    total: int | None

    def __str__(self) -> str:
        share = f" ({self.rows / self.total:.0%})" if self.total else ""
        return f"{self.rows:,} rows predicted{share}"


@dataclass(frozen=True)
class Finished(Event):
    """The run has its model, metrics and predictions, and unless writing it failed its report.

    Attributes:
        run: The run.
        profiled: Whether steps were profiled.
        page: ``report.html``; None if it could not be written.
    """

    run: Run
    profiled: bool
    page: Path | None = None

    def __str__(self) -> str:
        scores = ", ".join(
            f"{name} {value:.4f}"
            for name, value in self.run.metrics.test.items()
            if isinstance(value, float)
        )
        report = f"; report: {self.page}" if self.page else ""
        return f"finished: {scores}; saved to {self.run.path}{report}"


Progress = Callable[[Event], object]


def ignore(event: Event) -> None:
    """Take an event and do nothing with it."""


def on_rank_zero(progress: Progress) -> Progress:
    """Return ``progress`` on rank 0, and :func:`ignore` on the others."""
    return progress if distributed.ranks().rank == 0 else ignore


def throttle(progress: Progress, kind: type[Event] = Advanced) -> Progress:
    """Return ``progress``, which gets an event of ``kind`` only after 30 seconds without events."""
    last = time.monotonic()

    def report(event: Event) -> None:
        nonlocal last
        seconds = time.monotonic()
        if not isinstance(event, kind) or seconds - last >= _SECONDS:
            last = seconds
            progress(event)

    return report


@contextlib.contextmanager
def telling(progress: Progress) -> Iterator[Progress]:
    """Give ``progress`` as rank 0 calls it, and report long work inside the block to it."""
    report = on_rank_zero(throttle(progress))
    with activity.listening(
        lambda *work: report(Advanced(*work)), lambda text: report(Noted(text))
    ):
        yield report
