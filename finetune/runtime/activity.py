"""Report the progress of long operations to :data:`listener`.

A loop over rows calls :func:`advance`; code that has to wait calls :func:`say`. The pipeline sets
the listener; it also decides how often an event is shown.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Noted:
    """A sentence for the user."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Advanced:
    """Progress of long work."""

    work: str
    done: int
    total: int | None  # None if unknown
    unit: str = "rows"

    def __str__(self) -> str:
        share = ""
        if self.total:
            share = f" of {self.total:,} ({self.done / self.total:.0%})"
        return f"{self.work}: {self.done:,}{share} {self.unit}"


#: Called with each event.
listener: ContextVar[Callable[[Any], object]] = ContextVar("listener", default=lambda _: None)


def emit(event: Any) -> None:
    """Report an event, one of these or of the pipeline."""
    listener.get()(event)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Report that ``done`` of ``total`` units of ``work`` are done; None if unknown."""
    emit(Advanced(work, done, total, unit))


def say(sentence: str) -> None:
    """Report a sentence at once, e.g. what the process waits for."""
    emit(Noted(sentence))
