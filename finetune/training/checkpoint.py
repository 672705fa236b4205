"""Checkpoints that are there whole or not at all: ``checkpoint-N/``, each with a manifest.

A checkpoint is written below ``.uncommitted/``, which neither the library's rotation nor a resume
looks into. When every process has written its part, :func:`commit` adds ``checkpoint.json`` (files,
sizes, checksums), forces all of it to the disk and renames the directory, in one step, to the name
under which it is found. What has another name or no manifest was never committed.

A checksum tells damage, not malice: whoever can write the files can write the manifest too.
Importing this imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from finetune.errors import UserError
from finetune.training.manifest import File

UNCOMMITTED = ".uncommitted"
STATE = "trainer_state.json"  # of the library: steps, history, best metric
#: Files that the libraries may load if they lie in a checkpoint; an editor or a system adds others.
_LOADED = re.compile(r"(.*/)?(\.metadata|[^./][^/]*\.(pt|pth|bin|safetensors|json|distcp))")
_NAME = re.compile(r"checkpoint-([0-9]+)", re.ASCII)
_READ_AT_ONCE = 1 << 22  # bytes


@dataclass(frozen=True, kw_only=True)
class Checkpoint(File):
    """``checkpoint.json``."""

    NAME = "checkpoint.json"
    RECORDS = {}

    step: int
    world_size: int  # of the training that saved it
    #: By path in the checkpoint: ``{"bytes": ..., "xxh3_128": ...}``.
    files: dict[str, dict[str, Any]]
    #: What a training that goes on from here has to share; see ``pipeline.resumption``.
    configuration: dict[str, Any]
    configuration_hash: str
    schema: int = 1


def commit(staged: Path, final: Path, world_size: int, configuration: Mapping[str, Any]) -> None:
    """Describe a checkpoint that all processes have written, force it to disk and rename it.

    Args:
        staged: Where it was written: below :data:`UNCOMMITTED`, on the file system of ``final``.
        final: ``.../checkpoint-N``. One that is there is replaced.
        world_size: The processes that wrote it.
        configuration: See :class:`Checkpoint`.
    """
    step = number(final)
    assert step is not None
    Checkpoint(
        step=step,
        world_size=world_size,
        files={name: _described(staged / name) for name in sorted(_files(staged))},
        configuration=dict(configuration),
        configuration_hash=configuration_hash(configuration),
    ).write(staged)
    for directory, _, names in os.walk(staged):
        for name in [*names, "."]:
            _force_to_disk(Path(directory, name))
    replaced = final.parent / UNCOMMITTED / f"{final.name}.replaced"
    if final.exists():  # see `clear`, where this is interrupted
        final.rename(replaced)
    staged.rename(final)
    _force_to_disk(final.parent)
    shutil.rmtree(final.parent / UNCOMMITTED, ignore_errors=True)  # with what was replaced


def clear(directory: Path) -> None:
    """Remove what a killed training left below :data:`UNCOMMITTED`."""
    uncommitted = directory / UNCOMMITTED
    if uncommitted.is_symlink() or uncommitted.is_file():
        uncommitted.unlink()
    for replaced in uncommitted.glob("*.replaced") if uncommitted.is_dir() else ():
        if not (final := directory / replaced.stem).exists():
            replaced.rename(final)
    shutil.rmtree(uncommitted, ignore_errors=True)


def committed(directory: Path) -> list[Path]:
    """Return the checkpoints of a run by their names, those of most steps first."""
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if number(path) is not None and path.is_dir()]
    return sorted(found, key=lambda path: -(number(path) or 0))


def number(path: Path) -> int | None:
    """Return the steps in the name of a checkpoint; None if it is no such name."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None; every byte of it is read.

    Returns:
        A clause that names the file: ``optimizer.pt is missing``.

    Raises:
        UserError: if this user may not read it, which is no damage.
    """
    try:
        manifest = Checkpoint.read(path)
        if number(path) is None:
            return f"its name is not that of a checkpoint: rename it to checkpoint-{manifest.step}"
        if manifest.step != number(path):
            return f"{Checkpoint.NAME} is of step {manifest.step:,}"
        if configuration_hash(manifest.configuration) != manifest.configuration_hash:
            return f"{Checkpoint.NAME} was changed"
        present = _files(path) - {Checkpoint.NAME}
        for name in sorted(present | manifest.files.keys()):
            if name not in present:
                return f"{name} is missing"
            if name not in manifest.files:
                if _LOADED.fullmatch(name):
                    return f"{name} was not there when it was saved"
                continue
            expected, size = manifest.files[name], (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size:,} bytes, expected {expected['bytes']:,}"
            if _described(path / name) != expected:
                return f"{name} does not match its checksum"
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if state["global_step"] != manifest.step:
            return f"{STATE} is of step {state['global_step']:,}"
    except UserError as error:
        return str(error).removeprefix(f"{path}/")
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        if missing == Checkpoint.NAME:
            return (
                f"it has no {missing}: it was never completed, or is of another trainer or of a "
                "release before checksums"
            )
        return f"{missing} is missing"
    except PermissionError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read: {error!r}"
    return None


def set_aside(path: Path, reason: str) -> str:
    """Rename a damaged checkpoint, so that nothing takes it for a whole one.

    Returns:
        A sentence that says so.
    """
    return f"{damaged(path, reason)}: renamed to {_renamed(path, 'damaged').name}"


def damaged(path: Path, reason: str) -> str:
    """Return the sentence that says so."""
    return f"{path} is damaged ({reason})"


def set_later_aside(directory: Path, step: int) -> list[str]:
    """Rename the checkpoints after a step, from which another training goes on.

    Returns:
        A sentence for each.
    """
    later = [path for path in committed(directory) if (number(path) or 0) > step]
    return [
        f"{path} is not of this continuation: renamed to {_renamed(path, 'later').name}"
        for path in later
    ]


def _renamed(path: Path, prefix: str) -> Path:
    aside, count = path.with_name(f"{prefix}-{path.name}"), 1
    while aside.exists():
        aside, count = path.with_name(f"{prefix}-{path.name}.{count}"), count + 1
    try:
        path.rename(aside)
    except OSError as error:
        raise UserError(f"{path} cannot be renamed: {error.strerror}") from error
    return aside


def rotate(directory: Path, limit: int | None, keep: Path | None) -> None:
    """Delete the oldest checkpoints beyond ``limit``, but neither the newest nor ``keep``.

    Args:
        directory: Of the run.
        limit: Checkpoints that stay; all if None or 0.
        keep: One that stays in any case, the best.
    """
    known = committed(directory)
    if not limit or not known:
        return
    kept = {path.resolve() for path in (known[0], keep) if path is not None}
    surplus = max(0, len(known) - max(limit, len(kept)))
    for path in [path for path in reversed(known) if path.resolve() not in kept][:surplus]:
        remove(path)


def remove(path: Path) -> None:
    """Delete a checkpoint, which loses its name before its first file."""
    uncommitted = path.parent / UNCOMMITTED
    uncommitted.mkdir(exist_ok=True)
    path.rename(Path(tempfile.mkdtemp(dir=uncommitted), path.name))
    shutil.rmtree(uncommitted, ignore_errors=True)


def configuration_hash(configuration: Mapping[str, Any]) -> str:
    """Return a hash of a configuration, whatever the order of its names."""
    text = json.dumps(configuration, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _described(path: Path) -> dict[str, Any]:
    checksum = xxhash.xxh3_128()
    for part in _parts(path):
        checksum.update(part)
    return {"bytes": path.stat().st_size, "xxh3_128": checksum.hexdigest()}


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_READ_AT_ONCE):
            yield part


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
