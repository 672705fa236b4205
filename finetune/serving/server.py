"""Run the server until a signal ends it; requests that have arrived are answered first."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from finetune.errors import UserError
from finetune.export.predictor import Predictor
from finetune.serving.app import DEFAULT_LIMITS, Limits, create_app

_HEAD_SECONDS = 10  # for the first line and the headers of a request to arrive
_SHUTDOWN_SECONDS = 30


class _Protocol(HttpToolsProtocol):
    """Closes a connection on which no whole head of a request arrives: uvicorn (0.54) would wait
    forever, and slow clients would hold all connections.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the head of the first request."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """Start to wait for the head of a request, whose first byte has arrived."""
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        UserError: If the port is in use, or the host is not of this machine.
    """
    try:
        return socket.create_server((host, port), reuse_port=False)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}") from error


def serve(
    model: Predictor,
    opened: socket.socket,
    ready: Callable[[], None],
    limits: Limits = DEFAULT_LIMITS,
    api_key: str | None = None,
) -> None:
    """Serve a model until SIGINT or SIGTERM; requests that have arrived are answered first.

    ``ready`` is called once the model is loaded and has predicted a row.
    """
    model([("ready?",) * model.columns], all_probabilities=True)  # loads it: not the first request
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # each connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        create_app(model, limits, api_key),
        http=_Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    ready()
    uvicorn.Server(config).run(sockets=[opened])
