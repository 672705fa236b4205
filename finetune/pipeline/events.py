"""What a function of the pipeline reports while it works, to the callback that it is given.

    finetune.train("yelp", embedded=True, progress=print)

Only rank 0 reports. Each event is a dataclass; ``str()`` of it is a line for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finetune.runtime import distributed

if TYPE_CHECKING:
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
        return f"training {self.settings.name}: {rows:,} rows, {self.steps:,} steps"


@dataclass(frozen=True)
class Collated(Event):
    """The end of a dry run: one batch, by the name of the model's input."""

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
        shown = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.values.items()
        ]
        return f"step {self.step:,} of {self.max_steps:,}: {', '.join(shown)}"


@dataclass(frozen=True)
class Finished(Event):
    """The run has its model, metrics and predictions; its report and its model card are being
    written. ``profiled`` tells whether steps were.
    """

    run: Run
    profiled: bool

    def __str__(self) -> str:
        scores = ", ".join(
            f"{name} {value:.4f}"
            for name, value in self.run.metrics.test.items()
            if isinstance(value, float)
        )
        return f"finished: {scores}; saved to {self.run.path}"


@dataclass(frozen=True)
class Predicted(Event):
    """More rows of an input are predicted.

    Attributes:
        position: How far into the input, in the unit of ``total``.
        total: Size of the input: bytes of a text file, rows of any other; None if unknown.
        rows: Rows done.
        counted: Whether the unit is rows.
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
