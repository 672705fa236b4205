"""How far a long piece of work is, told to whoever listens; nobody does by default.

What works through rows calls :func:`advance`, wherever it is. The pipeline listens and makes events
of it; how often they are shown is decided there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

#: Takes the name of the work, how much of it is done, how much there is (None: unknown), the unit.
Listener = Callable[[str, int, int | None, str], object]
Result = TypeVar("Result")


def _nobody(work: str, done: int, total: int | None, unit: str) -> None:
    """Hear nothing."""


_listener: ContextVar[Listener] = ContextVar("listener", default=_nobody)


def advance(work: str, done: int, total: int | None, unit: str = "rows") -> None:
    """Tell that ``done`` of ``total`` units of a piece of work are done."""
    _listener.get()(work, done, total, unit)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hand what is told inside the block to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def counted(call: Callable[..., Result], work: str, total: int) -> Callable[..., Result]:
    """Return ``call``, a function of a batch of columns, that tells how many rows went through."""
    done = 0

    def counting(batch: dict[str, Any], *args: Any, **kwargs: Any) -> Result:
        nonlocal done
        result = call(batch, *args, **kwargs)
        done += len(next(iter(batch.values())))
        advance(work, done, total)
        return result

    return counting
