"""Calls of the network that have no timeout of their own, bounded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
SECONDS = 1.0


def within(seconds: float, call: Callable[[], Answer]) -> Answer | None:
    """The answer of a call; None if it fails with ``OSError`` or takes longer."""
    answers: list[Answer] = []

    def attempt() -> None:
        try:
            answers.append(call())
        except OSError:
            return

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def resolve(name: str) -> list[str]:
    """The addresses of a name, in the resolver's order; none if it takes longer than a second."""

    def look_up() -> list[str]:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in entries]

    return within(SECONDS, look_up) or []


def accepts(host: str, port: int) -> bool:
    """Whether a connection to this port can be made within a second, its name looked up."""

    def connect() -> bool:
        with socket.create_connection((host, port), timeout=SECONDS):
            return True

    return within(SECONDS, connect) or False
