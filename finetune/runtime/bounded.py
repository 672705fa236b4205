"""Calls of the network that have no timeout of their own, bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
SECONDS = 1.0


def within(seconds: float, call: Callable[[], Answer]) -> Answer | None:
    """Return the answer of a call, or None if it fails with ``OSError`` or takes longer."""
    answers: list[Answer] = []

    def attempt() -> None:
        with contextlib.suppress(OSError):
            answers.append(call())

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def accepts(host: str, port: int) -> bool:
    """Return whether a connection to this port is made within a second, the look-up included."""
    connection = within(SECONDS, lambda: socket.create_connection((host, port), timeout=SECONDS))
    if connection is not None:
        connection.close()
    return connection is not None
