"""Find the checkpoint to resume from, and refuse to resume a different training.

Checkpoints are verified before anything is written; an incomplete one is renamed, with a message.
Every checkpoint stores the configuration of its training, see `provenance.py`, and a resume is
refused if it differs.
"""

import contextlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.errors import UserError, suggestion
from finetune.runs.checkpoints import (
    STATE,
    find_damage,
    find_newest_complete,
    list_checkpoints,
    set_aside,
    step_of,
)
from finetune.runs.provenance import REPORTED_CHANGES
from finetune.runs.records import Checkpoint, Manifest, Metrics
from finetune.runtime import distributed

_LENGTH = ("num_train_epochs", "max_steps")
#: What decides the weights of a model: other ones do not fit its checkpoints.
_FIXED = {"layers"}


@dataclass(frozen=True)
class Resumption:
    """What a training continues from. A new run has no path and is not in place."""

    path: Path | None  # the verified checkpoint; None to start from the beginning
    directory: Path  # the directory of the run
    manifest: Manifest | None = None  # of the run
    configuration: Mapping[str, Any] = field(default_factory=dict)  # stored in the checkpoint
    in_place: bool = True  # whether the run continues in `directory`, which is not moved aside then
    notes: list[str] = field(default_factory=list)  # sentences for the user

    @property
    def step(self) -> int:
        """The optimizer steps up to the checkpoint."""
        if self.path is None:
            return 0
        return step_of(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run is finished, unless an earlier checkpoint of it is to be resumed."""
        if self.manifest is None or self.manifest.status != "finished":
            return False
        is_newest = self.path in (None, *list_checkpoints(self.directory)[:1])
        has_results = Metrics.exists_in(self.directory) or self.manifest.not_scored is not None
        return is_newest and has_results

    def require_state(self) -> None:
        """Raise a ``UserError`` if there is no state to continue a training from."""
        if self.path is None and self.finished:
            raise UserError(
                f"--resume: {self.directory} is finished and has no checkpoint to resume: "
                "leave out --resume to start again (the run is moved aside)"
            )
        if self.path is not None and "scheduler.pt" not in Checkpoint.read(self.path).files:
            raise UserError(
                f"{self.path} was saved with --save_only_model and has no optimizer state, so it "
                f"cannot be resumed; to train its model further, start a run with --model "
                f"{self.path}"
            )

    def changes(self, configuration: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the entries that differ in another configuration: old and new value by name."""
        changes = {}
        for name, value in configuration.items():
            if name in self.configuration and self.configuration[name] != value:
                changes[name] = self.configuration[name], value
        return changes

    def extended_by(self, configuration: Mapping[str, Any]) -> bool:
        """Return whether the run is finished, and to be trained for more epochs or steps."""
        if not self.finished or not self.configuration:
            return False
        epochs, steps = (self.configuration[name] for name in _LENGTH)
        if steps > 0:
            return bool(configuration["max_steps"] > steps)
        return bool(configuration["max_steps"] <= 0 and configuration["num_train_epochs"] > epochs)

    def refuse_changes(
        self, configuration: Mapping[str, Any], allow_changed: str | None
    ) -> str | None:
        """Refuse a resume with another configuration, except for what the user allows.

        Args:
            configuration: The configuration now.
            allow_changed: The names in ``--allow_changed``, separated by commas.

        Returns:
            A sentence with the accepted changes, which may affect the result; None without changes.

        Raises:
            UserError: With one line for each entry that differs.
        """
        allowed = {name.strip() for name in (allow_changed or "").split(",")} - {""}
        names = {*self.configuration, *configuration}
        if unknown := sorted(allowed - names):
            raise UserError(
                *(f"--allow_changed: unknown name '{n}'{suggestion(n, names)}" for n in unknown)
            )
        is_longer = self.extended_by(configuration)
        if is_longer:
            allowed.update(_LENGTH)
        # changes that an earlier resume accepted, and that no checkpoint has stored yet
        accepted = {} if self.manifest is None else self.manifest.configuration
        refused = {}
        changes = []
        for name, (old, new) in self.changes(configuration).items():
            before, now = f"{old!s:.60}", f"{new!s:.60}"
            changes.append(f"{name}: {now} instead of {before}")
            is_accepted = name in allowed | REPORTED_CHANGES or accepted.get(name, old) == new
            if name in _FIXED or not is_accepted:
                refused[name] = (
                    f"{self.path or self.directory} was trained with {name} {before}, now it is "
                    f"{now}"
                )
        if refused:
            hint = f"or accept the new ones: --allow_changed {','.join(refused)}"
            if _FIXED & set(refused):
                hint = "or start another run, with another --output_dir"
            *lines, last = refused.values()
            raise UserError(*lines, f"{last}\nhint: restore the old values, {hint}")
        if not changes:
            return None
        sentence = f"resumed with {', '.join(changes)}"
        if is_longer:
            sentence += (
                "; the result differs from a run of this length in one go, because its schedule "
                "differs"
            )
        return sentence


def requested_checkpoint(resume: bool, path: str | None, output_dir: Path) -> str | None:
    """Return what to resume, for :func:`find_checkpoint`; None to start a new run.

    A job that was restarted resumes its own run only, not another one in the directory.

    Args:
        resume: The value of ``--resume``.
        path: The value of ``--resume_from_checkpoint``.
        output_dir: The output directory, which may not exist yet.

    Raises:
        UserError: If the number of restarts is none.
    """
    if resume:
        return "resume"
    is_restarted = False
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        count = os.environ.get(name) or "0"
        if not count.isdecimal():
            raise UserError(f"{name}={count}: expected the number of restarts of the job; unset it")
        is_restarted = is_restarted or int(count) > 0
    if is_restarted and (not path or list_checkpoints(output_dir)):
        with contextlib.suppress(UserError):  # an unreadable run is not of this job
            if _is_run_of_this_job(_read_manifest(output_dir)):
                return "resume"
    return path


def _is_run_of_this_job(manifest: Manifest | None) -> bool:
    if manifest is None:
        return False
    job = (manifest.process.job or "").split()
    this_job = (distributed.job() or "").split()
    if manifest.process.host != platform.node() and job[:1] == ["torchrun"]:
        return job[:2] == this_job[:2]  # each machine has its own torchrun agent
    return job == this_job


def find_checkpoint(request: str | None, output_dir: Path, *, renames: bool = False) -> Resumption:
    """Find the checkpoint to continue from.

    Args:
        request: ``resume``, ``last`` or ``true``, a path, or None to start a new run.
        output_dir: The output directory, which may not exist yet.
        renames: Whether to rename incomplete checkpoints.

    Raises:
        UserError: If a checkpoint was requested and there is no complete one.
    """
    if request is None:
        return Resumption(None, output_dir, in_place=False)
    if request not in ("resume", "last", "true", "True"):
        return _continue_from_path(request, output_dir)
    manifest = _read_manifest(output_dir)
    paths = list_checkpoints(output_dir)
    newest, problems = find_newest_complete(output_dir)
    # a run may have been killed while it saved its first checkpoint
    has_none = not any(map(Checkpoint.exists_in, paths))
    starts_again = request == "resume" and has_none and (manifest is not None or not paths)
    if renames and (newest is not None or starts_again):
        for number, problem in enumerate(problems):  # in checkpoints newer than `newest`
            renamed = set_aside(paths[number], "damaged")
            problems[number] = f"{problem}: renamed to {renamed.name}"
    if newest is not None:
        return _continue_from(newest, problems)
    start = Resumption(None, output_dir, manifest, in_place=output_dir.exists(), notes=problems)
    if manifest is not None and not paths and start.finished:
        return replace(start, configuration=manifest.configuration)
    if starts_again:
        return start
    flag = "--resume" if request == "resume" else "--resume_from_checkpoint last"
    hint = "leave out the flag to start from the beginning"
    first = f"{flag}: no complete checkpoint in {output_dir}"
    raise UserError("; ".join([first, *problems, hint]))


def _continue_from_path(request: str, output_dir: Path) -> Resumption:
    path = Path(request).expanduser().resolve()
    flag = f"--resume_from_checkpoint {request}"
    if not (path / STATE).exists():
        raise UserError(f"{flag}: expected 'last' or a directory with a {STATE}")
    if (damage := find_damage(path)) is not None:
        newest, _ = find_newest_complete(path.parent)
        hint = "no other checkpoint is complete"
        if newest:
            hint = f"type {newest} instead"
        raise UserError(f"{flag} is damaged ({damage}): {hint}")
    is_in_place = path.parent == output_dir.resolve()
    return replace(_continue_from(path, []), in_place=is_in_place)


def agree_on_checkpoint(resumption: Resumption) -> Resumption:
    """Return the newest checkpoint that is complete on every machine, each with its own disk.

    Raises:
        UserError: In every process, if machines have checkpoints but none in common.
    """
    steps = distributed.gather(resumption.step)
    if len(set(steps)) == 1:
        return resumption
    paths = list_checkpoints(resumption.directory)
    complete = {path.name for path in paths if find_damage(path) is None}
    common = set.intersection(*distributed.gather(complete))
    newest = next((path for path in paths if path.name in common), None)
    if newest is None:
        raise UserError(
            f"--output_dir {resumption.directory}: expected a checkpoint that is complete on every "
            f"machine, found steps {steps} by rank: copy one checkpoint to every machine, or "
            "remove the directory on all of them to start again"
        )
    return _continue_from(newest, resumption.notes)


def _continue_from(path: Path, notes: list[str]) -> Resumption:
    configuration = Checkpoint.read(path).configuration
    best = json.loads((path / STATE).read_text(encoding="utf-8"))["best_global_step"]
    if best and not Checkpoint.exists_in(path.with_name(f"checkpoint-{best}")):
        note = (
            f"the best checkpoint so far, checkpoint-{best}, is missing or incomplete: unless a "
            "better one follows, the model of the last step is saved"
        )
        notes = [*notes, note]
    manifest = _read_manifest(path.parent)
    return Resumption(path, path.parent, manifest, configuration, notes=notes)


def _read_manifest(directory: Path) -> Manifest | None:
    if not Manifest.exists_in(directory):
        return None
    try:
        return Manifest.read(directory)
    except UserError as error:
        raise UserError(f"{error}; remove this file to resume from the checkpoints") from error
