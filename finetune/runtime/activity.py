"""Progress of long work, reported to whoever listens; nobody does by default.

What works through rows calls :func:`advance`, and what has to wait calls :func:`say`. The pipeline
listens and makes events of it; how often they are shown is decided there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Takes the name of the work, how much of it is done, how much there is (None: unknown), the unit.
Listener = Callable[[str, int, int | None, str], object]
_listeners: ContextVar[tuple[Listener, Callable[[str], object]] | None]
_listeners = ContextVar("listeners", default=None)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Report that ``done`` of ``total`` units of a piece of work are done."""
    if listeners := _listeners.get():
        listeners[0](work, done, total, unit)


def say(sentence: str) -> None:
    """Report at once why nothing goes on."""
    if listeners := _listeners.get():
        listeners[1](sentence)


@contextlib.contextmanager
def listening(listener: Listener, hearer: Callable[[str], object]) -> Iterator[None]:
    """Hand progress inside the block to ``listener``, and sentences to ``hearer``."""
    token = _listeners.set((listener, hearer))
    try:
        yield
    finally:
        _listeners.reset(token)
