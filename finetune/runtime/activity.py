"""How far a long piece of work is, told to whoever listens; nobody does by default.

What works through rows calls :func:`advance`, wherever it is, and what has to wait says so by
:func:`say`. The pipeline listens and makes events of it; how often they are shown is decided there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Takes the name of the work, how much of it is done, how much there is (None: unknown), the unit.
Listener = Callable[[str, int, int | None, str], object]


def _nobody(work: str, done: int, total: int | None, unit: str) -> None:
    """Hear nothing."""


_listener: ContextVar[Listener] = ContextVar("listener", default=_nobody)
_hearer: ContextVar[Callable[[str], object]] = ContextVar("hearer", default=str)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Tell that ``done`` of ``total`` units of a piece of work are done."""
    _listener.get()(work, done, total, unit)


def say(sentence: str) -> None:
    """Tell at once why nothing goes on."""
    _hearer.get()(sentence)


@contextlib.contextmanager
def listening(listener: Listener, hearer: Callable[[str], object] = str) -> Iterator[None]:
    """Hand what is told inside the block to ``listener``, and what is said to ``hearer``."""
    tokens = _listener.set(listener), _hearer.set(hearer)
    try:
        yield
    finally:
        _listener.reset(tokens[0])
        _hearer.reset(tokens[1])
