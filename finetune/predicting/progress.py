"""How far a prediction is, in the units of its input."""

from __future__ import annotations

import threading
from collections.abc import Callable

from finetune.data.files import Chunk

#: Takes the position in the input and the rows that are done.
Tell = Callable[[float, int], object]


class Position:
    """Moves smoothly, as a chunk of long texts takes a minute; several threads may move it.

    Args:
        tell: Is told the position after each batch.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._position, self._step = 0.0, 0.0
        self._rows = self._before = 0

    def begin(self, chunk: Chunk) -> None:
        """The next rows are those of this chunk."""
        self._step, self._before = (chunk.end - self._position) / len(chunk), self._rows

    def advance(self, rows: int) -> None:
        """So many more are done."""
        with self._lock:
            self._position += rows * self._step
            self._rows += rows
            self._tell(self._position, self._rows)

    def end(self, chunk: Chunk) -> None:
        """All of the chunk are done, here or by another process."""
        with self._lock:
            self._position, self._rows = float(chunk.end), self._before + len(chunk)
            self._tell(self._position, self._rows)
