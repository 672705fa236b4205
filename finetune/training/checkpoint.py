"""Complete checkpoints, and a directory for one run at a time.

``Trainer`` writes ``checkpoint-N/``. When every process has written its part and all of it is on
the disk, ``checkpoint.json`` lists the files with sizes and checksums. A directory without it, or
that does not match it, is not a complete checkpoint and is never resumed from.

A checksum shows damage, not malice: whoever can write the files can write ``checkpoint.json`` too.
So pickles are searched for code before they are loaded.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
import xxhash
from torch.distributed.checkpoint import metadata as sharding
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers.trainer_pt_utils import safe_globals

from finetune.errors import UserError
from finetune.runtime import files
from finetune.training.manifest import MANIFEST, Record

STATE = "trainer_state.json"  # of the library: steps, history, best metric
#: Files that the libraries may load from a checkpoint; an editor or a system adds others.
_LOADED = re.compile(r"(.*/)?(\.metadata|[^./][^/]*\.(pt|pth|bin|safetensors|json|distcp))")
#: What the pickle `.metadata` is made of, besides data types and the classes of its module.
_IN_METADATA = {
    *("torch.distributed.checkpoint.filesystem._StorageInfo", "torch.serialization._get_layout"),
    *("torch.Size", "pathlib.PosixPath", "collections.OrderedDict"),
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """``checkpoint.json``."""

    NAME = "checkpoint.json"

    step: int  # of the optimizer, the last one that is done
    files: dict[str, dict[str, Any]]  # by path: ``{"bytes": ..., "xxh3_128": ...}``
    configuration: dict[str, Any]  # that a resume has to share, see `pipeline/resumption.py`
    pending: dict[str, Any] = field(default_factory=dict)  # losses since the last log, its step
    schema: int = 1


def complete(path: Path, **facts: Any) -> None:
    """Flush a checkpoint that all processes have written to the disk, and describe it, with the
    other ``facts`` of a :class:`Checkpoint`.
    """
    names = sorted(_files(path))
    for name in names:
        _flush(path / name)
    files = {name: _describe(path / name) for name in names}
    Checkpoint(step=number(path), files=files, **facts).write(path)
    for new in (path / Checkpoint.NAME, path, path.parent):
        _flush(new)


def list_checkpoints(directory: Path, *, complete: bool = False) -> list[Path]:
    """Return the checkpoints of a run by their names, those of most steps first; ``complete``
    leaves those out that have no ``checkpoint.json``, without reading a file.

    While a step is saved again, its first checkpoint is ``replaced-checkpoint-N``, which counts
    after the new one.
    """
    paths = [path for path in directory.glob("*checkpoint-*") if number(path) and path.is_dir()]
    if complete:
        paths = [path for path in paths if (path / Checkpoint.NAME).exists()]
    return sorted(paths, key=lambda path: (-number(path), path.name))


def number(path: Path) -> int:
    """Return the steps in the name of a checkpoint; 0 if it is no such name."""
    match = re.fullmatch(r"(?:replaced-)?checkpoint-([0-9]+)", path.name)
    return int(match[1]) if match else 0


def problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, like ``optimizer.pt is missing``, or None; every byte
    of it is read.

    Raises:
        UserError: If a file cannot be read, which is no damage.
    """
    if not (path / Checkpoint.NAME).exists():
        return f"it has no {Checkpoint.NAME}: it was never completed, or is of another trainer"
    try:
        content = Checkpoint.read(path)
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
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    return None


def newest_complete(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint of a run, and what is wrong with those after it."""
    problems: list[str] = []
    for path in list_checkpoints(directory):
        if (reason := problem(path)) is None:
            return path, problems
        problems.append(f"{path} is damaged ({reason})")
    return None, problems


def set_aside(path: Path, prefix: str) -> Path:
    """Rename a checkpoint, so that nothing takes it for one: ``damaged-checkpoint-9``."""
    return path.rename(_free_path(path.with_name(f"{prefix}-{path.name}")))


def _free_path(path: Path) -> Path:
    paths = (path.with_name(f"{path.name}.{count}") for count in itertools.count(1))
    return next(free for free in itertools.chain([path], paths) if not free.exists())


def occupy(directory: Path, *, moves_aside: bool = False) -> str | None:
    """Take a directory, made if it is not there, for this process until it ends; raise a
    ``UserError`` if a run is in progress there, on this machine or another.

    With ``moves_aside`` an earlier run is moved out of the way, and a sentence about that returned.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files.lock(directory)
    except TimeoutError as error:
        process = (directory / files.LOCK).read_text(errors="replace")
        raise UserError(
            f"--output_dir {directory}: a run is in progress there ({process}); "
            "wait for it or stop it, or use another directory"
        ) from error
    except OSError as error:
        raise UserError(f"--output_dir {directory} cannot be locked: {error}") from error
    if not moves_aside or not _content(directory):
        return None
    if directory.name in ("", ".."):  # `.` has no name to put a number behind
        directory = directory.resolve()
    aside = _free_path(directory)
    files.unlock(directory)
    directory.rename(aside)
    occupy(directory)
    return f"moved the run in {directory} to {aside}"


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something other than a run, or a run still in progress."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"--output_dir {directory}: {existing} is a file or cannot be written to")
    if files.is_locked(directory):
        occupy(directory)  # which refuses it unless it is ours
    # checkpoints alone are what a trainer leaves that no command started
    is_run = (directory / MANIFEST).exists() or any(directory.glob("checkpoint-*"))
    if _content(directory) and not is_run:
        raise UserError(f"--output_dir {directory} holds files but no run: use another directory")


def _content(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*") if path.name != files.LOCK]


def refuse_code(checkpoint: str | Path) -> None:
    """Refuse a checkpoint whose pickles hold more than tensors and numbers.

    torch loads optimizer, scheduler and random states as ``weights_only``, so that a class or
    function in them is never called; here it is found without loading, and named. The sharded
    states of FSDP it loads without that: their ``.metadata``, and what is no tensor in the shards.

    Raises:
        UserError: With the file and what it holds.
    """
    for path in sorted(Path(checkpoint).rglob("*")):
        names: list[str] = []
        try:
            if path.name == ".metadata":
                names = _find_globals_of_shards(path)
            elif path.suffix in (".pt", ".pth", ".bin") and path.name != "training_args.bin":
                names = _find_globals(path)  # the arguments are never loaded
        except Exception as error:  # whatever is in it
            names = [str(error).partition("\n")[0]]
        if names:
            raise UserError(
                f"{path} holds more than tensors, or was not written by torch "
                f"({', '.join(sorted(names))}); nothing in it was run: resume from a checkpoint "
                "that you wrote"
            )


def _find_globals(file: Path | IO[bytes]) -> list[str]:
    with safe_globals():  # type: ignore[no-untyped-call]  # NumPy, for random states
        return list(get_unsafe_globals_in_checkpoint(file))


def _find_globals_of_shards(path: Path) -> list[str]:
    """Look at what torch would unpickle of the shards that a ``.metadata`` describes."""
    with path.open("rb") as file:
        metadata = _Metadata(file).load()
    names: list[str] = []
    for index, place in metadata.storage_data.items():
        if isinstance(metadata.state_dict_metadata[index.fqn], sharding.BytesStorageMetadata):
            with (path.parent / place.relative_path).open("rb") as shard:
                shard.seek(place.offset)
                names += _find_globals(io.BytesIO(shard.read(place.length)))
    return names


class _Metadata(pickle.Unpickler):
    """Makes nothing but what torch writes into a ``.metadata``."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        member = vars(sharding).get(name) if module == sharding.__name__ else None
        is_allowed = is_dtype or getattr(member, "__module__", None) == sharding.__name__
        if not is_allowed and f"{module}.{name}" not in _IN_METADATA:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return {"bytes": path.stat().st_size, "xxh3_128": checksum}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
