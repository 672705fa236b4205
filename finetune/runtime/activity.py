"""Progress of long work, reported to whoever listens; nobody does by default.

What works through rows calls :func:`advance`, and what has to wait calls :func:`say`. The pipeline
listens and makes events of it; how often they are shown is decided there.
"""

from collections.abc import Callable
from contextvars import ContextVar

#: Takes a sentence, or what :func:`advance` takes.
listener: ContextVar[Callable[..., object] | None] = ContextVar("listener", default=None)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Report that ``done`` of ``total`` (None: unknown) units of a piece of work are done."""
    if report := listener.get():
        report(work, done, total, unit)


def say(sentence: str) -> None:
    """Report at once why nothing goes on."""
    if report := listener.get():
        report(sentence)
