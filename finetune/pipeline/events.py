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
        width = len(str(self.max_steps))
        words = [f"step {self.step:>{width}}/{self.max_steps}"]
        if (epoch := self.values.get("epoch")) is not None:
            words.append(f"epoch {epoch:.2f}")
        if "eval_loss" in self.values:
            scores = {
                name.removeprefix("eval_"): value
                for name, value in self.values.items()
                if name.startswith("eval_") and not name.endswith(_EVALUATION_SPEED)
            }
            words += ["validation", *(_worded(name, scores[name]) for name in scores)]
        else:
            words += [
                _worded(name, value) for name, value in self.values.items() if name != "epoch"
            ]
        return "  ".join(filter(None, words))


#: How the evaluation's own speed is named by the library.
_EVALUATION_SPEED = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")
#: How a logged value is shown, where that is not its name and four significant digits.
_SHOWN = {
    "loss": "loss {:.4f}",
    "learning_rate": "lr {:.3g}",
    "grad_norm": "grad_norm {:.3g}",
    "rows_per_second": "{:,.0f} samples/s",
    "memory_mib": "",
}


def _worded(name: str, value: Any) -> str:
    if name in _SHOWN and isinstance(value, (int, float)):
        return _SHOWN[name].format(value)
    return f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"


@dataclass(frozen=True)
class Advanced(Event):
    """Work that takes a while is so far; see :class:`Seldom` for how often this is told.

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


@dataclass(frozen=True)
class Predicted(Event):
    """More rows of an input are predicted.

    Attributes:
        position: Rows of the input up to the one that is done.
        total: Rows of the input; None for standard input.
        rows: The same as ``position``.
        counted: Whether ``total`` is known.
    """

    position: float
    total: int | None
    rows: int
    counted: bool

    def __str__(self) -> str:
        share = f" ({self.position / self.total:.0%})" if self.total else ""
        return f"{self.rows:,} rows predicted{share}"


Progress = Callable[[Event], object]


def ignore(event: Event) -> None:
    """Take an event and do nothing with it."""


def on_rank_zero(progress: Progress) -> Progress:
    """Return ``progress`` on rank 0, and :func:`ignore` on the others."""
    return progress if distributed.ranks().rank == 0 else ignore


class Seldom:
    """Passes events on; of one kind only those that come when nothing was told for a while.

    The clock decides what rank 0 tells, and nothing that is computed.

    Args:
        progress: Is given the events.
        kind: The events of which most are left out.
        seconds: How long nothing must have been told.
        clock: Tells the seconds.
    """

    def __init__(
        self,
        progress: Progress,
        kind: type[Event] = Advanced,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._kind, self._seconds, self._clock = progress, kind, seconds, clock
        self._last = clock()

    def __call__(self, event: Event) -> None:
        """Pass the event on, or not."""
        seconds = self._clock()
        if isinstance(event, self._kind) and seconds - self._last < self._seconds:
            return
        self._last = seconds
        self._progress(event)


@contextlib.contextmanager
def telling(progress: Progress) -> Iterator[Progress]:
    """Give ``progress`` as rank 0 calls it, and tell it of long work inside the block."""
    seldom = Seldom(progress)
    tell: Progress = on_rank_zero(seldom)
    with activity.listening(lambda *work: tell(Advanced(*work)), lambda text: tell(Noted(text))):
        yield tell
