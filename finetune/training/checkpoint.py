"""Complete checkpoints, and a directory for one run at a time.

When every process has written its part of ``checkpoint-N/`` and all of it is on the disk,
``checkpoint.json`` lists the files with sizes and checksums. A directory without it, or that does
not match it, is not a complete checkpoint and is never resumed from.

A checksum shows damage, not malice: whoever can write the files can write ``checkpoint.json`` too.
So pickles are searched for code before they are loaded.
"""

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
    pending: dict[str, Any] = field(default_factory=dict)  # losses since the last log
    schema: int = 1


def complete(path: Path, **facts: Any) -> None:
    """Flush a checkpoint that all processes have written to the disk, and describe it, with the
    other ``facts`` of a :class:`Checkpoint`.
    """
    files = _describe_files(path)
    for name in files:
        _flush(path / name)
    Checkpoint(step=number(path), files=files, **facts).write(path)
    for new in (path / Checkpoint.NAME, path, path.parent):
        _flush(new)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run by their names, complete or not, those of most steps first.
    While a step is saved again, ``replaced-checkpoint-N`` is its first one.
    """
    paths = [path for path in directory.glob("*checkpoint-*") if number(path) and path.is_dir()]
    return sorted(paths, key=lambda path: (-number(path), path.name))


def number(path: Path) -> int:
    """Return the steps in the name of a checkpoint; 0 if it is no such name."""
    match = re.fullmatch(r"(?:replaced-)?checkpoint-([0-9]+)", path.name)
    return int(match[1]) if match else 0


def problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None; every byte of it is read. A file that cannot
    be read is no damage but a ``UserError``.
    """
    if not (path / Checkpoint.NAME).exists():
        return f"it has no {Checkpoint.NAME}: it was never completed, or is of another trainer"
    try:
        checkpoint = Checkpoint.read(path)
        if checkpoint.step != number(path):
            return f"it was saved at step {checkpoint.step} and renamed"
        saved = checkpoint.files
        present = _describe_files(path)
        for name in sorted({*filter(_LOADED.fullmatch, present), *saved}):
            if present.get(name) != saved.get(name):
                return f"{name} is missing, or not as it was saved"
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
    except OSError as error:
        reason = f"cannot be locked: {error}"
        if isinstance(error, TimeoutError):
            process = (directory / files.LOCK).read_text(errors="replace")
            reason = f"a run is in progress there ({process}): stop it, or use another directory"
        raise UserError(f"--output_dir {directory}: {reason}") from error
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
    for path in directory.glob("checkpoint-*"):
        if number(path) and not path.is_dir():
            raise UserError(f"{path} is a file, and a checkpoint may get this name: move it")
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


def _describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of each file of a checkpoint but ``checkpoint.json``."""
    files = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if name != Checkpoint.NAME and path.is_file():
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
            files[name] = {"bytes": path.stat().st_size, "xxh3_128": checksum}
    return files


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
