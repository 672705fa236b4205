"""Report the progress of long operations to :data:`listener`.

A loop over rows calls :func:`advance`; code that has to wait calls :func:`say`. The pipeline sets
the listener and turns these calls into events; it also decides how often an event is shown.
"""

from collections.abc import Callable
from contextvars import ContextVar

#: Called with a sentence, or with the arguments of :func:`advance`; None discards them.
listener: ContextVar[Callable[..., object] | None] = ContextVar("listener", default=None)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Report that ``done`` of ``total`` units of ``work`` are done; None if unknown."""
    if report := listener.get():
        report(work, done, total, unit)


def say(sentence: str) -> None:
    """Report a sentence at once, e.g. what the process waits for."""
    if report := listener.get():
        report(sentence)
