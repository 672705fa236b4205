"""The directory that a run may have: its own, an empty one, or one whose run is moved aside."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from finetune.errors import UserError

MANIFEST = "run.json"
PROFILE = Path("profile", "profile.json")


def make_way(directory: Path, checkpoint: str | None) -> str | None:
    """Make room for a run, unless it goes on with the one that is there.

    Args:
        directory: Of the run.
        checkpoint: The one to go on with, if any.

    Returns:
        A sentence about what was moved, or None.
    """
    if checkpoint is not None and Path(checkpoint).resolve().parent == directory.resolve():
        return None
    return clear_way(directory)


def clear_way(directory: Path) -> str | None:
    """Make room for a new run: one that is there is moved aside, and nothing is ever deleted.

    Returns:
        A sentence about what was moved, or None.

    Raises:
        UserError: if the directory holds something that is no run.
    """
    if directory.name in ("", ".."):  # `.` has no name to put a number behind
        directory = directory.resolve()
    refuse_foreign(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return None
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    manifest = _manifest(directory)
    directory.rename(aside)
    sentence = f"the run that was in {directory} is now in {aside}"
    if manifest.get("status") != "finished" and any(aside.glob("checkpoint-*")):
        sentence += (
            "; it had not finished: to go on with it, add "
            f"`--output_dir {aside} --resume_from_checkpoint last`"
        )
    return sentence


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something else than a run, or one that is still going on."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "cannot be written to" if existing.is_dir() else "is a file"
        raise UserError(f"--output_dir {directory}: {existing} {reason}")
    if not directory.exists() or not any(directory.iterdir()):
        return
    if (directory / MANIFEST).exists():
        _refuse_living(directory)
    elif not any(directory.glob("checkpoint-*")):  # what a trainer leaves that no command started
        raise UserError(
            f"--output_dir {directory} holds files but no run; "
            "name another directory, or an empty one"
        )


def _refuse_living(directory: Path) -> None:
    """Two processes that write into one directory would mix two runs."""
    manifest = _manifest(directory)
    process = manifest.get("process", {})
    if manifest.get("status") != "running" or process.get("host") != platform.node():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process["pid"] != os.getpid():
            os.kill(process["pid"], 0)
            raise UserError(
                f"--output_dir {directory}: a run is going on there (process {process['pid']}); "
                "name another directory"
            )


def _manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
