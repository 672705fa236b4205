"""Ports and environments of the ranks that a test starts."""

import contextlib
import itertools
import os
import socket

#: A range for each of the workers that run beside each other, and elsewhere in it each time.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(16_000 + 4_000 * (_WORKER % 4) + os.getpid() % 3_000)


def free_port() -> int:
    """One below those that the system gives to whoever asks for any, so that it stays free."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there are more ports")


def rank_without_launcher(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment of a rank that is alone on its machine, as a cluster would start it."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
