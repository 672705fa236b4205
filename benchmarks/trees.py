"""Run commands of a checkout of this repository and measure time and memory."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@dataclass(frozen=True)
class Finished:
    """A process that ended with the expected status.

    Attributes:
        output: The text of standard output and standard error.
        seconds: The time from start to end.
        memory: The peak resident memory of the largest process, in MiB.
    """

    output: str
    seconds: float
    memory: float


def run(
    words: Sequence[str | Path],
    scratch: Path,
    tree: Path = ROOT,
    kill_at: Path | None = None,
    devices: str | None = None,
    limit: float | None = None,
) -> Finished:
    """Run ``python WORDS`` with the packages of a tree and a cache in ``scratch``.

    With ``kill_at``, the process is killed as soon as that file exists. With ``devices``, it sees
    these GPUs only. After ``limit`` seconds it gets SIGTERM.

    Raises:
        RuntimeError: If the process fails or ends before the kill; has the end of its output.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    paths = [str(tree.resolve()), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HOME": str(scratch / "cache"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    command, log = [sys.executable, *map(str, words)], scratch / "log"
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=scratch, env=environment, stdout=file, stderr=file)
        while kill_at is not None and not kill_at.exists() and process.poll() is None:
            time.sleep(0.01)
        if kill_at is not None:
            process.kill()
        if limit is not None:
            timer = threading.Timer(limit, os.kill, (process.pid, signal.SIGTERM))
            timer.start()
        _, status, used = os.wait4(process.pid, 0)
        if limit is not None:
            timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    output = log.read_text(encoding="utf-8")
    if process.returncode != (0 if kill_at is None else -signal.SIGKILL):
        raise RuntimeError(f"{command}: exit status {process.returncode}\n{output[-3000:]}")
    seconds = time.perf_counter() - started
    return Finished(output, seconds, used.ru_maxrss / 2**10)


def processor() -> str:
    """Return the name of the processor and the number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"
