"""Make room for a run in its output directory: an earlier run there is moved aside."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from finetune.errors import UserError
from finetune.training.manifest import status_and_process


def clear_way(directory: Path, checkpoint: str | None = None) -> str | None:
    """Make room for a run: move an earlier one aside; nothing is ever deleted.

    Returns:
        A sentence about what was moved, or None. Nothing is moved if the run resumes from a
        ``checkpoint`` in that directory.

    Raises:
        UserError: if the directory holds something other than a run.
    """
    if checkpoint is not None and Path(checkpoint).resolve().parent == directory.resolve():
        return None
    if directory.name in ("", ".."):  # `.` has no name to put a number behind
        directory = directory.resolve()
    refuse_foreign(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return None
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    known = status_and_process(directory)
    finished = known is not None and known[0] == "finished"
    directory.rename(aside)
    sentence = f"moved the run in {directory} to {aside}"
    if not finished and any(aside.glob("checkpoint-*")):
        sentence += (
            "; it had not finished: to resume it, add "
            f"`--output_dir {aside} --resume_from_checkpoint last`"
        )
    return sentence


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something other than a run, or a run still in progress.

    Two processes that write into one directory would mix two runs.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "cannot be written to" if existing.is_dir() else "is a file"
        raise UserError(f"--output_dir {directory}: {existing} {reason}")
    if not directory.exists() or not any(directory.iterdir()):
        return
    known = status_and_process(directory)
    if known is not None and known[0] == "running":
        process = known[1]
        if process is None or process.host != platform.node() or process.pid == os.getpid():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, 0)
            raise UserError(
                f"--output_dir {directory}: a run is in progress there (process {process.pid}); "
                "use another directory"
            )
    elif known is None and not any(directory.glob("checkpoint-*")):
        # checkpoints alone are what a trainer leaves that no command started
        raise UserError(f"--output_dir {directory} holds files but no run: use another directory")
