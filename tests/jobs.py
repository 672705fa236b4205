"""Jobs that a test starts beside itself, several at a time: what they say, and how they end."""

import contextlib
import itertools
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.conftest import HANGS, ROOT, SCRIPTS

TORCHRUN = [str(SCRIPTS / "torchrun")]


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


class Job:
    """A command that runs."""

    def __init__(self, words: Sequence[str | Path], cwd: Path, env: Mapping[str, str]) -> None:
        self.cwd = cwd
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            list(map(str, words)),
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._watch = threading.Thread(target=self._process.wait, daemon=True)
        self._watch.start()

    def wait_for(self, words: str) -> None:
        """Until it says a line with these; what it said before is dropped."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if words in line:
                return
        raise AssertionError(f"it ended without {words!r}: {self._said_in_error()}")

    def say(self, text: str) -> None:
        """To whichever of its processes reads."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def processes(self) -> list[psutil.Process]:
        """It and everything it has started."""
        if self._process.poll() is not None:  # another may have its number by now
            return []
        try:
            this = psutil.Process(self._process.pid)
            return [this, *this.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def ended(self) -> "subprocess.CompletedProcess[str]":
        """Wait for its end; fail if it hangs."""
        assert self._process.stdout is not None
        self._watch.join(HANGS)
        late = self._watch.is_alive()
        if late:
            self.kill()
        said, in_error = self._process.stdout.read(), self._said_in_error()
        assert not late, f"it went on for {HANGS} s: {said}{in_error}"
        return subprocess.CompletedProcess(
            self._process.args, self._process.returncode, said, in_error
        )

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._watch.join()

    def _said_in_error(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


class Jobs:
    """Starts jobs."""

    def __init__(self) -> None:
        self.started: list[Job] = []

    def start(
        self, words: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None
    ) -> Job:
        self.started.append(Job(words, cwd, env or {}))
        return self.started[-1]


@contextlib.contextmanager
def jobs() -> Iterator[Jobs]:
    """None of them outlives the block."""
    every = Jobs()
    try:
        yield every
    finally:
        for job in every.started:
            job.kill()
