"""Report the progress of long operations to :data:`listener`.

A loop over rows calls :func:`advance`; code that has to wait calls :func:`say`. The pipeline sets
the listener and turns these calls into events; it also decides how often an event is shown.
"""

from collections.abc import Callable
from contextvars import ContextVar

#: Called with a sentence, the arguments of :func:`advance`, or an event of the pipeline.
listener: ContextVar[Callable[..., object]] = ContextVar("listener", default=lambda *_: None)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Report that ``done`` of ``total`` units of ``work`` are done; None if unknown."""
    listener.get()(work, done, total, unit)


def say(sentence: str) -> None:
    """Report a sentence at once, e.g. what the process waits for."""
    listener.get()(sentence)
