"""Ports and environment variables for the ranks that a test starts, and waiting for them."""

import contextlib
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable

#: A range of ports for each pytest worker, with a different start in each process.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(16_000 + 4_000 * (_WORKER % 4) + os.getpid() % 3_000)


def free_port() -> int:
    """Return a free port below the ephemeral range, so the system does not assign it."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def rank_without_launcher(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment of the only rank on a machine, as a cluster sets it."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def wait_until(is_so: Callable[[], object], job: "subprocess.Popen[str] | None" = None) -> None:
    """Wait until a condition holds, and assert that the job runs until then."""
    end = time.monotonic() + 300
    while not is_so():
        assert job is None or job.poll() is None, job.communicate()
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.005)
