"""Complete checkpoints: ``checkpoint-N/`` as ``Trainer`` writes it, then ``checkpoint.json``.

``checkpoint.json`` lists the files with sizes and checksums, and is written when every process has
written its part and all of it is on the disk. A directory without it, or that does not match it, is
not a complete checkpoint and is never resumed from.

A checksum shows damage, not malice: whoever can write the files can write ``checkpoint.json`` too.
Importing this imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from finetune.errors import UserError
from finetune.training.manifest import File

STATE = "trainer_state.json"  # of the library: steps, history, best metric
#: Files that the libraries may load from a checkpoint; an editor or a system adds others.
_LOADED = re.compile(r"(.*/)?(\.metadata|[^./][^/]*\.(pt|pth|bin|safetensors|json|distcp))")
_NAME = re.compile(r"checkpoint-([0-9]+)", re.ASCII)
_BLOCK = 1 << 22  # bytes
_REPLACED = "replaced-"


@dataclass(frozen=True, kw_only=True)
class Checkpoint(File):
    """``checkpoint.json``.

    Attributes:
        step: Optimizer steps that are done.
        world_size: Processes of the training that saved it.
        files: By path in the checkpoint: ``{"bytes": ..., "xxh3_128": ...}``.
        configuration: What a training that resumes from here has to share; see
            :mod:`finetune.pipeline.changes`.
        configuration_hash: Of it.
        pending: What the step still had to do when it was saved, and the loss since the last log;
            see :meth:`finetune.training.trainer.Trainer.pending`.
    """

    NAME = "checkpoint.json"
    RECORDS = {}

    step: int
    world_size: int
    files: dict[str, dict[str, Any]]
    configuration: dict[str, Any]
    configuration_hash: str
    pending: dict[str, Any] = field(default_factory=dict)
    schema: int = 1


def complete(
    path: Path, world_size: int, configuration: Mapping[str, Any], pending: Mapping[str, Any]
) -> None:
    """Flush a checkpoint that all processes have written to the disk, and describe it.

    Args:
        path: ``.../checkpoint-N``.
        world_size: The processes that wrote it.
        configuration: See :class:`Checkpoint`.
        pending: Likewise.
    """
    step = number(path)
    assert step is not None
    names = sorted(_files(path))
    for name in names:
        _flush(path / name)
    Checkpoint(
        step=step,
        world_size=world_size,
        files={name: _describe(path / name) for name in names},
        configuration=dict(configuration),
        configuration_hash=_hash(configuration),
        pending=dict(pending),
    ).write(path)
    for directory in (path / Checkpoint.NAME, path, path.parent):
        _flush(directory)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run by their names, those of most steps first."""
    if not directory.is_dir():
        return []
    paths = [path for path in directory.iterdir() if number(path) is not None and path.is_dir()]
    return sorted(paths, key=lambda path: -(number(path) or 0))


def number(path: Path) -> int | None:
    """Return the steps in the name of a checkpoint; None if it is no such name."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None; every byte of it is read.

    Returns:
        A clause that names the file: ``optimizer.pt is missing``.

    Raises:
        UserError: If a file cannot be read, which is no damage.
    """
    if not (path / Checkpoint.NAME).exists():
        return f"it has no {Checkpoint.NAME}: it was never completed, or is of another trainer"
    try:
        content = Checkpoint.read(path)
        if number(path) != content.step:
            return f"{Checkpoint.NAME} is of checkpoint-{content.step}"
        if _hash(content.configuration) != content.configuration_hash:
            return f"{Checkpoint.NAME} was changed"
        names = _files(path) - {Checkpoint.NAME}
        for name in sorted(names | content.files.keys()):
            if name not in names:
                return f"{name} is missing"
            if name not in content.files:
                if _LOADED.fullmatch(name):
                    return f"{name} was not there when it was saved"
            elif (facts := _describe(path / name)) != content.files[name]:
                return f"{name} does not match its checksum ({facts['bytes']:,} bytes)"
    except UserError as error:
        return str(error).removeprefix(f"{path}/")
    except (KeyError, TypeError, AttributeError) as error:
        return f"{Checkpoint.NAME} cannot be read: {error!r}"
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    return None


def newest_complete(directory: Path, at_most: int | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint of a run, and what is wrong with those after it.

    Args:
        directory: Of the run.
        at_most: The most steps that it may have; None for any.
    """
    problems: list[str] = []
    for path in list_checkpoints(directory):
        if at_most is not None and (number(path) or 0) > at_most:
            continue
        reason = problem(path)
        if reason is None:
            return path, problems
        problems.append(f"{path} is damaged ({reason})")
    return None, problems


def set_aside(path: Path, prefix: str) -> Path:
    """Rename a checkpoint, so that nothing takes it for one: ``damaged-checkpoint-9``.

    Raises:
        UserError: If it cannot be renamed.
    """
    new, count = path.with_name(f"{prefix}-{path.name}"), 1
    while new.exists():
        new, count = path.with_name(f"{prefix}-{path.name}.{count}"), count + 1
    try:
        path.rename(new)
    except OSError as error:
        raise UserError(f"{path} cannot be renamed: {error.strerror}") from error
    return new


def set_replaced_aside(path: Path) -> Path | None:
    """Rename a complete checkpoint whose step is about to be saved again; None if there is none."""
    if not (path / Checkpoint.NAME).exists():
        return None
    return path.rename(path.with_name(f"{_REPLACED}{path.name}"))


def restore_replaced(directory: Path) -> None:
    """Bring back what :func:`set_replaced_aside` renamed where the new one was not completed."""
    for replaced in directory.glob(f"{_REPLACED}checkpoint-*"):
        path = replaced.with_name(replaced.name.removeprefix(_REPLACED))
        if (path / Checkpoint.NAME).exists():
            shutil.rmtree(replaced)
        else:
            shutil.rmtree(path, ignore_errors=True)
            replaced.rename(path)


def rotate(directory: Path, limit: int | None, best: Path | None) -> None:
    """Delete the oldest checkpoints beyond ``limit``, but neither the newest nor the best.

    Args:
        directory: Of the run.
        limit: Checkpoints that stay; all if None or 0.
        best: The best checkpoint, which stays.
    """
    paths = list_checkpoints(directory)
    if not limit or not paths:
        return
    protected = {path.resolve() for path in (paths[0], best) if path is not None}
    surplus = max(0, len(paths) - max(limit, len(protected)))
    for path in [path for path in reversed(paths) if path.resolve() not in protected][:surplus]:
        (path / Checkpoint.NAME).unlink(missing_ok=True)  # first, so that no half of it counts
        shutil.rmtree(path, ignore_errors=True)


def _hash(configuration: Mapping[str, Any]) -> str:
    """Return a hash of a configuration, whatever the order of its names."""
    text = json.dumps(configuration, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _describe(path: Path) -> dict[str, Any]:
    checksum = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return {"bytes": path.stat().st_size, "xxh3_128": checksum.hexdigest()}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
