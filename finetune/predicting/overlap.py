"""Read and write while a model computes: each in a thread of its own, a chunk or two ahead."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_MOST_WAITING = 2


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield items, of which a thread makes the next one meanwhile; not of a stream that may wait
    for its user, as the thread could not be ended.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="read") as pool:
        following: Future[Any] = pool.submit(next, items, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, items, end)
            yield item


@contextlib.contextmanager
def behind(work: Callable[..., object]) -> Iterator[Callable[..., None]]:
    """Give a function that has a thread do the ``work``, one call after the other.

    It waits while two calls are not done, and raises what an earlier one has raised; so does the
    end of the context, unless there is an error already.
    """
    waiting: deque[Future[Any]] = deque()

    def submit(*given: Any) -> None:
        while len(waiting) >= _MOST_WAITING or (waiting and waiting[0].done()):
            waiting.popleft().result()
        waiting.append(pool.submit(work, *given))

    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool:
        yield submit
        while waiting:
            waiting.popleft().result()
