"""``--num_processes COUNT``: run a command in several processes of this machine.

They are started as ``torchrun --standalone --nproc_per_node=COUNT`` starts them, by the same agent.
Two things are better: the exit status is that of the process that failed first, and the cause is
printed once, without the agent's own report.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from finetune.cli import console
from finetune.config.settings import typed_options
from finetune.errors import UserError, counted
from finetune.runtime import distributed, stopping


def start_processes(verb: str, words: Sequence[str]) -> None:
    """Run a command in the processes of ``--num_processes``, and exit when they have ended.

    It returns if this process has to run the command: it is one of them, or the only one.

    Args:
        verb: The verb of the command.
        words: The words after it. The number may also be in the config file.

    Raises:
        SystemExit: With the status of the process that failed first; with 75 if a signal stopped a
            training, or 128 and the number of the signal if it stopped another command; with 1
            if a signal ended one of the processes.
        UserError: If the number is none, or if a launcher has started this process.
    """
    number = typed_options(["num_processes"], words)[0].get("num_processes")
    if number is None or distributed.is_worker():
        return
    world_size = distributed.ranks().world_size
    if distributed.under_launcher() or world_size > 1:
        raise UserError(
            f"--num_processes {number}: a launcher has started this command in "
            f"{counted(world_size, 'process')}: leave out the flag, or the launcher"
        )
    count = _parse_count(str(number))  # a config file may have a list
    if count == 1:
        return
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    signals = []
    for handled in (*stopping.SIGNALS, signal.SIGQUIT):
        if signal.getsignal(handled) != signal.SIG_IGN:  # SIGHUP is ignored under nohup
            signals.append(handled.name)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        role=distributed.ROLE,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle=",".join(signals),
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; the cores are shared later
    # as in this process, the current directory is not on the path of `python -P` and `finetune`
    if sys.flags.safe_path or Path(sys.argv[0]).name == "finetune":
        os.environ["PYTHONSAFEPATH"] = "1"
    # torch replaces ${local_rank} in words
    words = [word.replace("$", "$$") for word in words]
    logging.disable(logging.ERROR)  # the agent's own messages
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "finetune", verb, *words)
        status = 0
    except SignalException as stop:
        status = stopping.STATUS
        if verb in ("evaluate", "predict", "doctor"):
            status = 128 + stop.sigval
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        status = failure.exitcode
        if status < 0:
            name = signal.Signals(-status).name
            console.print_stderr(f"error: {name} ended the process of rank {rank}")
            status = 1
    raise SystemExit(status)


def _parse_count(number: str) -> int:
    """Return the number of processes for a value of the flag."""
    if number in ("gpu", "auto"):
        import torch

        gpus = torch.accelerator.device_count()
        if number == "gpu" and not gpus:
            raise UserError("--num_processes gpu: torch finds no GPU: expected a number, or auto")
        return max(1, gpus)
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"--num_processes {number}: expected 1 or more, gpu or auto")
    return int(number)
