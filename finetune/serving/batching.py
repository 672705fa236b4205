"""Dynamic batching: the rows that arrive while the model computes are its next batch."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class QueueFull(Exception):
    """As many rows are waiting as may wait; the client should try again later."""


class Batcher:
    """Predicts the rows of many requests, a batch at a time, in a thread.

    No row waits for others to arrive: a single request is computed at once, alone.

    Args:
        predict: Returns an answer for each row of a batch.
        max_rows: The most rows of a batch.
        max_waiting: The most rows that wait, over all requests.
    """

    def __init__(
        self, predict: Callable[[list[Any]], Sequence[Any]], max_rows: int, max_waiting: int
    ) -> None:
        self._predict = predict
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return len(self._waiting)

    async def predict(self, rows: Sequence[Any]) -> list[Any]:
        """Return the answers to some rows, in their order; if the caller is cancelled, rows that
        still wait are not computed.

        Raises:
            QueueFull: If there is no room for all of them.
        """
        if len(self._waiting) + len(rows) > self._max_waiting:
            raise QueueFull
        futures = [asyncio.get_running_loop().create_future() for _ in rows]
        self._waiting.extend(zip(rows, futures, strict=True))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
        return await asyncio.gather(*futures)

    async def _compute(self) -> None:
        """Compute batches until no row waits."""
        while self._waiting:
            batch: list[tuple[Any, asyncio.Future[Any]]] = []
            while self._waiting and len(batch) < self._max_rows:
                row, future = self._waiting.popleft()
                if not future.done():  # its client waits no longer
                    batch.append((row, future))
            rows = [row for row, _ in batch]
            answers = await asyncio.to_thread(self._answers, rows)
            for (_, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception) and not future.done():
                    future.set_exception(answer)
                elif not future.done():
                    future.set_result(answer)

    def _answers(self, rows: list[Any]) -> Sequence[Any]:
        """Return an answer, or an exception, for each row: a row that cannot be computed does not
        spoil those of other requests.
        """
        try:
            return self._predict(rows) if rows else []
        except Exception as error:
            if len(rows) == 1:
                return [error]
            answers: list[Any] = []
            for row in rows:
                answers += self._answers([row])
            return answers
