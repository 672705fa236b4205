"""Dynamic batching: the rows that arrive while the model computes are its next batch."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


class QueueFull(Exception):
    """As many rows are waiting as may wait; the client should try again later."""


@dataclass
class _Request:
    future: asyncio.Future[list[Any]]  # its answers, when there are all
    answers: list[Any]
    missing: int  # answers

    def take(self, number: int, answer: Any) -> None:
        """Take the answer, or an exception, for a row."""
        if self.future.done():  # the client has left, or another row has failed
            return
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
            return
        self.answers[number] = answer
        self.missing -= 1
        if not self.missing:
            self.future.set_result(self.answers)


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
        self._waiting: deque[tuple[_Request, int, Any]] = deque()
        self._has_arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(1)

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
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        request = _Request(future, [None] * len(rows), len(rows))
        self._waiting.extend((request, number, row) for number, row in enumerate(rows))
        self._has_arrived.set()
        return await future

    async def run(self) -> None:
        """Compute batches until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_arrived.wait()
            batch: list[tuple[_Request, int, Any]] = []
            while self._waiting and len(batch) < self._max_rows:
                waiting = self._waiting.popleft()
                if not waiting[0].future.done():
                    batch.append(waiting)
            if not self._waiting:
                self._has_arrived.clear()
            if batch:
                rows = [row for _, _, row in batch]
                answers = await loop.run_in_executor(self._executor, self._answers, rows)
                for (request, number, _), answer in zip(batch, answers, strict=True):
                    request.take(number, answer)

    def _answers(self, rows: list[Any]) -> Sequence[Any]:
        """Return an answer, or an exception, for each row: a row that cannot be computed does not
        spoil those of other requests.
        """
        try:
            return self._predict(rows)
        except Exception as error:
            if len(rows) == 1:
                return [error]
            return [answer for row in rows for answer in self._answers([row])]
