"""Which checkpoint a training goes on from; :mod:`.changes` is about whether it is still the same.

A checkpoint is verified before anything else changes; one that is damaged is renamed and told.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.checkpoint import Checkpoint
from finetune.training.manifest import MANIFEST, METRICS, Manifest, status_and_process

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues


@dataclass(frozen=True)
class Resumption:
    """What a training goes on from.

    Attributes:
        path: The checkpoint, verified; None to start from the beginning.
        directory: The run it belongs to.
        manifest: That run's, where it can be read.
        configuration: What it was made by.
        in_place: Whether it goes on in the directory of the run; nothing is moved aside then.
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
        return 0 if self.path is None else checkpoint.number(self.path) or 0

    @property
    def world_size(self) -> int | None:
        """The processes of the training that saved the checkpoint."""
        return None if self.path is None else Checkpoint.read(self.path).world_size

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and has its results."""
        ended = self.manifest is not None and self.manifest.status == "finished"
        return ended and (self.directory / METRICS).exists()


def wanted(values: ArgumentValues, output_dir: Path) -> str | None:
    """Return what is to be resumed: ``resume``, ``last``, a path, or None to begin a new run.

    A job that was started again goes on with its own run, which is not whatever lies there.

    Raises:
        UserError: if both flags are given.
    """
    named: str | None = values.resume_from_checkpoint
    if named in ("true", "True"):
        named = "last"
    if values.resume and named:
        raise UserError(
            "--resume and --resume_from_checkpoint are mutually exclusive: --resume goes on from "
            "the newest checkpoint, and starts where there is none"
        )
    if values.resume:
        return "resume"
    again = distributed.was_restarted() and _is_of_this_job(output_dir)
    return "resume" if again and (not named or checkpoint.committed(output_dir)) else named


def _is_of_this_job(directory: Path) -> bool:
    known = status_and_process(directory)
    process = known[1] if known is not None else None
    if process is None:
        return False
    theirs, mine = process.job or "", distributed.job() or ""
    if process.host != platform.node() and theirs.startswith("torchrun"):  # its agent is another
        return theirs.split()[:2] == mine.split()[:2]
    return theirs == mine


def find(wish: str | None, output_dir: Path, *, touch: bool) -> Resumption | None:
    """Return what to go on from; damaged checkpoints on the way to it are renamed.

    Args:
        wish: Of :func:`wanted`.
        output_dir: Where the run is, or will be.
        touch: Whether damaged checkpoints may be renamed; else they are only told.

    Returns:
        None for a new run.

    Raises:
        UserError: if there is nothing to go on from, or nothing whole.
    """
    if wish is None:
        return None
    if wish not in ("resume", "last"):
        return _named(Path(wish).expanduser(), output_dir)
    if touch:
        checkpoint.clear(output_dir)  # one that was being replaced is put back
    manifest, known = _manifest(output_dir), checkpoint.committed(output_dir)
    damaged: dict[Path, str] = {}
    for path in known:
        if (reason := checkpoint.problem(path)) is None:
            tell = checkpoint.set_aside if touch else checkpoint.damaged
            notes = [tell(*each) for each in damaged.items()]
            return _from(path, output_dir, manifest, notes)
        damaged[path] = reason
    if manifest is not None and not known:
        ended = Resumption(None, output_dir, manifest, manifest.configuration)
        if ended.finished:
            return ended
    if wish == "resume" and not known:
        return Resumption(None, output_dir, manifest) if output_dir.exists() else None
    flag = "--resume" if wish == "resume" else "--resume_from_checkpoint last"
    told = [f"{flag}: no {'whole ' * bool(known)}checkpoint in {output_dir}"]
    told += [checkpoint.damaged(*each) for each in damaged.items()]
    raise UserError("; ".join([*told, "leave the flag out to start from the beginning"]))


def agreed(found: Resumption | None, output_dir: Path) -> Resumption | None:
    """Go back to the newest checkpoint that is whole on every machine, which each has a disk of.

    Every rank calls it, inside the process group.

    Raises:
        UserError: on every rank, if a machine has none where others do.
    """
    while True:
        steps = distributed.gather(found.step if found is not None else 0)
        if len(set(steps)) == 1:
            return found
        if not (least := min(steps)):
            raise UserError(
                f"--output_dir {output_dir}: rank {steps.index(0)} has no whole checkpoint there, "
                f"and rank {steps.index(max(steps))} has checkpoint-{max(steps)}: copy that to "
                "every machine, or remove the directory on all of them to start again"
            )
        if found is not None and found.step > least:
            known = checkpoint.committed(output_dir)
            older = [path for path in known if (checkpoint.number(path) or 0) <= least]
            whole = next((path for path in older if checkpoint.problem(path) is None), None)
            found = None if whole is None else _from(whole, output_dir, found.manifest, found.notes)


def _named(path: Path, output_dir: Path) -> Resumption:
    flag = f"--resume_from_checkpoint {path}"
    if not (path / checkpoint.STATE).exists():
        raise UserError(f"{flag}: expected 'last' or a directory that holds a {checkpoint.STATE}")
    path = path.resolve()
    if (reason := checkpoint.problem(path)) is not None:
        others = [each for each in checkpoint.committed(path.parent) if each != path]
        whole = next((each for each in others if checkpoint.problem(each) is None), None)
        instead = f"; {whole} is whole" if whole else ""
        raise UserError(f"{flag} is damaged ({reason}){instead}")
    in_place = path.parent == output_dir.resolve()
    return _from(path, path.parent, _manifest(path.parent), [], in_place=in_place)


def _from(
    path: Path,
    directory: Path,
    manifest: Manifest | None,
    notes: list[str],
    *,
    in_place: bool = True,
) -> Resumption:
    saved = Checkpoint.read(path)
    if "scheduler.pt" not in saved.files:
        raise UserError(
            f"{path} was saved with --save_only_model: it has no optimizer state, so nothing can "
            f"be resumed from it; its model can be trained further as --model {path}"
        )
    state = json.loads((path / checkpoint.STATE).read_text(encoding="utf-8"))
    best = state.get("best_global_step")
    kept = directory / f"checkpoint-{best}"
    reason = None
    if best and kept.name != path.name:
        reason = checkpoint.problem(kept) if kept.exists() else "it is gone"
    if reason is not None:
        notes = [
            *notes,
            f"the best checkpoint so far, {kept.name}, cannot be loaded ({reason}): unless a "
            "better one comes, the model of the last step is kept",
        ]
    return Resumption(path, directory, manifest, saved.configuration, in_place, notes)


def _manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a run; None if there is none that can be read."""
    try:
        return Manifest.read(directory) if (directory / MANIFEST).exists() else None
    except UserError:
        return None
