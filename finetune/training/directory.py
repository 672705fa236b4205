"""Make room for a run in its output directory, which one run at a time has for itself."""

from __future__ import annotations

import os
from pathlib import Path

from finetune.errors import UserError
from finetune.runtime import lock
from finetune.training.manifest import status_and_process


def occupy(directory: Path) -> None:
    """Take a directory, made if it is not there, for this process until it ends.

    Raises:
        UserError: if a run is in progress there, on this machine or another.
    """
    if lock.is_mine(directory):
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(directory)
    except BlockingIOError as error:
        raise UserError(in_progress(directory)) from error
    except OSError as error:
        raise UserError(f"--output_dir {directory} cannot be locked: {error}") from error


def in_progress(directory: Path) -> str:
    """Return the sentence about a run that is in progress in a directory."""
    holder = lock.holder(directory)
    if not holder and (status := status_and_process(directory)) and (process := status[1]):
        holder = f"process {process.pid} on {process.host}"
        holder += f", started {process.started}" if process.started else ""
    holder = f" ({holder})" if holder else ""
    return (
        f"--output_dir {directory}: a run is in progress there{holder}; wait for it or stop it, or "
        "use another directory"
    )


def clear_way(directory: Path) -> str | None:
    """Make room for a new run: move an earlier one aside; nothing is ever deleted.

    Returns:
        A sentence about what was moved, or None.

    Raises:
        UserError: if the directory holds something other than a run, or one that is in progress.
    """
    if directory.name in ("", ".."):  # `.` has no name to put a number behind
        directory = directory.resolve()
    refuse_foreign(directory)
    occupy(directory)
    if not _content(directory):
        return None
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    status = status_and_process(directory)
    finished = status is not None and status[0] == "finished"
    lock.release(directory)
    directory.rename(aside)
    occupy(directory)
    sentence = f"moved the run in {directory} to {aside}"
    if not finished and any(aside.glob("checkpoint-*")):
        sentence += f"; it had not finished: to resume it, add `--output_dir {aside} --resume`"
    return sentence


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something other than a run, or a run still in progress.

    Two processes that write into one directory would mix two runs.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "cannot be written to" if existing.is_dir() else "is a file"
        raise UserError(f"--output_dir {directory}: {existing} {reason}")
    if directory.is_symlink() and not directory.exists():
        raise UserError(f"--output_dir {directory} is a link to nothing: {os.readlink(directory)}")
    if not directory.exists() or not _content(directory):
        return
    if lock.is_held(directory) and not lock.is_mine(directory):
        raise UserError(in_progress(directory))
    # checkpoints alone are what a trainer leaves that no command started
    if status_and_process(directory) is None and not any(directory.glob("checkpoint-*")):
        raise UserError(f"--output_dir {directory} holds files but no run: use another directory")


def _content(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name != lock.NAME]
