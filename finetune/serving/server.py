"""Run the server until a signal ends it; requests that have arrived are answered first."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import warnings
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from finetune.errors import UserError
from finetune.exporting.predictor import Predictor
from finetune.serving.app import create_app

_HEAD_SECONDS = 10  # for the first line and the headers of the first request to arrive


class _Protocol(HttpToolsProtocol):
    """Closes a connection on which no whole head of a request arrives in time. uvicorn (0.54)
    starts a timer after an answer only, and stops it at any byte: slow clients would hold all
    connections.
    """

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.head_timer = self.loop.call_later(_HEAD_SECONDS, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:  # of the answer before: uvicorn would stop it
            self.head_timer = self.timeout_keep_alive_task
            self.timeout_keep_alive_task = None
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()


class _Server(uvicorn.Server):
    """Ends without tracebacks at a second Ctrl-C, which cancels the requests."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.should_exit and sig == signal.SIGINT:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            for connection in list(self.server_state.connections):  # Python 3.12 waits for them
                connection.transport.abort()
        super().handle_exit(sig, frame)


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: str | None = None,
    trust_recipe: bool = False,
    ready: Callable[[str], object],
) -> None:
    """Serve a run or an export until SIGINT or SIGTERM; requests that have arrived are answered
    first.

    Args:
        run: The directory of a run or of an export.
        host: The address to listen on.
        port: The port to listen on.
        engine: What computes; None for torch, or onnxruntime for an export.
        trust_recipe: See :meth:`Run.load`.
        ready: Called with the address once the model is loaded and has predicted a row.

    Raises:
        UserError: If the model cannot be loaded, or this machine cannot listen on the address.
    """
    key = os.environ.get("FINETUNE_API_KEY")
    key = key and key.strip()  # a secret may end with a line break
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        opened = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}") from error
    # asyncio does not for this socket, and a client would wait 40 ms between head and body
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # cores for the server between batches
    model = Predictor(run, engine, trust_recipe=trust_recipe)
    if not (host in ("localhost", "::1") or host.startswith("127.")):
        access = "with the key" if key else "without a key: see FINETUNE_API_KEY"
        warnings.warn(f"--host {host}: other machines can send requests, {access}", stacklevel=2)
    model([("ready?",) * model.columns])  # loads it: not the first request
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # each connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        create_app(model, api_key=key),
        http=_Protocol,
        loop="asyncio",  # as it is tested, also where uvloop is installed
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # seconds; load balancers close theirs after 60
        timeout_graceful_shutdown=30,
    )
    name = f"[{host}]" if ":" in host else host
    ready(f"{model.engine}: http://{name}:{opened.getsockname()[1]}")
    _Server(config).run(sockets=[opened])
