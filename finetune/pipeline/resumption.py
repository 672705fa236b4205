"""Which checkpoint a training continues from; :mod:`.changes` is about whether it is the same.

A checkpoint is verified before anything else changes; one that is not complete is renamed, and that
is printed.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.checkpoint import Checkpoint
from finetune.training.manifest import MANIFEST, METRICS, Manifest

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues


@dataclass(frozen=True)
class Resumption:
    """What a training continues from.

    Attributes:
        path: The checkpoint, verified; None to start from the beginning.
        directory: The run that it belongs to.
        manifest: That run's, where it can be read.
        configuration: What the checkpoint was made by.
        in_place: Whether it continues in the directory of the run; nothing is moved aside then.
        notes: What the user should know.
    """

    path: Path | None
    directory: Path
    manifest: Manifest | None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    in_place: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return 0 if self.path is None else checkpoint.number(self.path)

    @property
    def world_size(self) -> int | None:
        """The processes of the training that saved the checkpoint."""
        return None if self.path is None else Checkpoint.read(self.path).world_size

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and has its results."""
        is_ended = self.manifest is not None and self.manifest.status == "finished"
        return is_ended and (self.directory / METRICS).exists()


def requested(values: ArgumentValues, output_dir: Path) -> str | None:
    """Return what is to be resumed: ``resume``, ``last``, a path, or None to begin a new run.

    A job that was started again continues its own run, not whatever is in the directory.

    Raises:
        UserError: If both flags are given.
    """
    path: str | None = values.resume_from_checkpoint
    if values.resume and path:
        raise UserError(
            "--resume and --resume_from_checkpoint are mutually exclusive: --resume continues from "
            "the newest checkpoint, and starts where there is none"
        )
    is_restarted = distributed.was_restarted() and _is_of_this_job(output_dir)
    has_checkpoints = bool(checkpoint.list_checkpoints(output_dir))
    if values.resume or (is_restarted and (not path or has_checkpoints)):
        return "resume"
    return "last" if path in ("true", "True") else path


def _is_of_this_job(directory: Path) -> bool:
    try:
        manifest = _read_manifest(directory)
    except UserError:
        return False
    if manifest is None:
        return False
    process = manifest.process
    job, this_job = process.job or "", distributed.job() or ""
    if process.host != platform.node() and job.startswith("torchrun"):  # its agent is another
        return job.split()[:2] == this_job.split()[:2]
    return job == this_job


def find(
    request: str | None, output_dir: Path, *, verifies: bool = True, renames: bool = False
) -> Resumption | None:
    """Return what to continue from.

    Args:
        request: From :func:`requested`.
        output_dir: Where the run is, or will be.
        verifies: Whether this process reads every byte; the others go by the names that are left.
        renames: Whether checkpoints that are not complete may be renamed; else they are only
            reported.

    Returns:
        None for a new run.

    Raises:
        UserError: If there is nothing to continue from, or nothing complete.
    """
    if request is None:
        return None
    if request not in ("resume", "last"):
        return _find_path(Path(request).expanduser(), output_dir, verifies=verifies)
    if renames:
        checkpoint.settle_replaced(output_dir)
    manifest, paths = _read_manifest(output_dir), checkpoint.list_checkpoints(output_dir)
    saved = checkpoint.list_checkpoints(output_dir, complete=True)
    newest, problems = saved[0] if saved else None, list[str]()
    if verifies:
        newest, problems = checkpoint.newest_complete(output_dir)
    # killed while it saved the first one
    starts_again = request == "resume" and not saved and (manifest is not None or not paths)
    if renames and (newest is not None or starts_again):
        problems = [
            f"{problem}: renamed to {checkpoint.set_aside(path, 'damaged').name}"
            for path, problem in zip(paths, problems, strict=False)  # those after the newest
        ]
    if newest is not None:
        return _continue_from(newest, output_dir, manifest, problems)
    if manifest is not None and not paths:
        finished = Resumption(None, output_dir, manifest, manifest.configuration)
        if finished.finished:
            return finished
    if starts_again:
        start = Resumption(None, output_dir, manifest, notes=problems)
        return start if output_dir.exists() else None
    flag = "--resume" if request == "resume" else "--resume_from_checkpoint last"
    reasons = [f"{flag}: no complete checkpoint in {output_dir}", *problems]
    raise UserError("; ".join([*reasons, "leave the flag out to start from the beginning"]))


def agree_on_checkpoint(resumption: Resumption | None, output_dir: Path) -> Resumption | None:
    """Go back to the newest checkpoint that is complete on every machine, which has its own disk.

    Every process calls it, inside the process group.

    Raises:
        UserError: On every process, if a machine has none where others have one.
    """
    steps = distributed.gather(resumption.step if resumption is not None else 0)
    if len(set(steps)) == 1:
        return resumption
    paths = checkpoint.list_checkpoints(output_dir, complete=True)
    common = set.intersection(*distributed.gather({path.name for path in paths}))
    newest = max(common, key=lambda name: checkpoint.number(Path(name)), default=None)
    problem = checkpoint.problem(output_dir / newest) if newest else "there is none"
    problems = [reason for reason in distributed.gather(problem) if reason]
    if newest is None or resumption is None or problems:
        raise UserError(
            f"--output_dir {output_dir}: the ranks have checkpoints of steps {steps}, and none is "
            f"complete on every machine ({problems[0]}): copy one to every machine, or remove the "
            "directory on all of them to start again"
        )
    return _continue_from(output_dir / newest, output_dir, resumption.manifest, resumption.notes)


def _find_path(path: Path, output_dir: Path, *, verifies: bool) -> Resumption:
    flag = f"--resume_from_checkpoint {path}"
    if not (path / checkpoint.STATE).exists():
        raise UserError(f"{flag}: expected 'last' or a directory that holds a {checkpoint.STATE}")
    path = path.resolve()
    if verifies and (reason := checkpoint.problem(path)) is not None:
        newest, _ = checkpoint.newest_complete(path.parent)
        hint = f"; {newest} is complete" if newest else ""
        raise UserError(f"{flag} is damaged ({reason}){hint}")
    is_in_place = path.parent == output_dir.resolve()
    resumption = _continue_from(path, path.parent, _read_manifest(path.parent), [])
    return replace(resumption, in_place=is_in_place)


def _continue_from(
    path: Path, directory: Path, manifest: Manifest | None, notes: list[str]
) -> Resumption:
    saved = Checkpoint.read(path)
    if "scheduler.pt" not in saved.files:
        raise UserError(
            f"{path} was saved with --save_only_model: it has no optimizer state, so nothing can "
            f"be resumed from it; its model can be trained further as --model {path}"
        )
    state = json.loads((path / checkpoint.STATE).read_text(encoding="utf-8"))
    best = directory / f"checkpoint-{state.get('best_global_step') or saved.step}"
    if best.name != path.name and not (best / Checkpoint.NAME).exists():
        notes = [
            *notes,
            f"the best checkpoint so far, {best.name}, is not complete or is gone: unless a better "
            "one comes, the model of the last step is saved",
        ]
    return Resumption(path, directory, manifest, saved.configuration, notes=notes)


def _read_manifest(directory: Path) -> Manifest | None:
    return Manifest.read(directory) if (directory / MANIFEST).exists() else None
