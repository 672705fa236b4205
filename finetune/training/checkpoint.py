"""Complete checkpoints, and a lock on the output directory.

When every process has written its part of ``checkpoint-N/`` and all of it is on the disk,
``checkpoint.json`` is written, with the size and checksum of each file. A directory without it, or
whose files differ from it, is not a complete checkpoint: training never resumes from it.

A checksum shows damage but no manipulation: whoever can change a file can change
``checkpoint.json`` too. So pickles are searched for code before they are loaded.
"""

import hashlib
import itertools
import os
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint import metadata as sharding
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers.trainer_pt_utils import safe_globals

from finetune.errors import UserError
from finetune.runtime import files
from finetune.training.record import MANIFEST, Record

STATE = "trainer_state.json"  # written by Trainer: steps, history, best metric
#: Files that the libraries may load from a checkpoint. Others, like ``.DS_Store``, are ignored.
_LOADED = re.compile(r"(.*/)?(\.metadata|[^./][^/]*\.(pt|pth|bin|safetensors|json|distcp))")
#: Globals in the pickle ``.metadata`` besides dtypes and the classes of torch's metadata module.
_IN_METADATA = {
    *("torch.distributed.checkpoint.filesystem._StorageInfo", "torch.serialization._get_layout"),
    *("torch.Size", "pathlib.PosixPath", "collections.OrderedDict"),
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """``checkpoint.json``."""

    NAME = "checkpoint.json"

    step: int  # of the optimizer, the last completed one
    files: dict[str, dict[str, Any]]  # by path: ``{"bytes": ..., "xxh3_128": ...}``
    configuration: dict[str, Any]  # what a resume must not change, see `pipeline/resumption.py`
    pending: dict[str, Any] = field(default_factory=dict)  # losses since the last log
    schema: int = 1


def complete(path: Path, **facts: Any) -> None:
    """Flush a checkpoint that all processes have written, and add ``checkpoint.json``."""
    files = _describe_files(path)
    for name in files:
        _flush(path / name)
    Checkpoint(step=number(path), files=files, **facts).write(path)
    for directory in (path, path.parent):
        _flush(directory)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run, complete or not, newest first. While a step is saved again,
    its first checkpoint is called ``replaced-checkpoint-N``.
    """
    paths = [path for path in directory.glob("*checkpoint-*") if number(path) and path.is_dir()]
    return sorted(paths, key=lambda path: (-number(path), path.name))


def number(path: Path) -> int:
    """Return the step in the name of a checkpoint; 0 for other names."""
    match = re.fullmatch(r"(?:replaced-)?checkpoint-([0-9]+)", path.name)
    return int(match[1]) if match else 0


def problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None; every byte is read. A file that may not be
    read raises a ``UserError``: it need not be damaged.
    """
    if not (path / Checkpoint.NAME).exists():
        return f"it has no {Checkpoint.NAME}: it is incomplete, or was saved by another trainer"
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
    """Return the newest complete checkpoint of a run, and what is wrong with newer ones."""
    problems: list[str] = []
    for path in list_checkpoints(directory):
        if (reason := problem(path)) is None:
            return path, problems
        problems.append(f"{path} is damaged ({reason})")
    return None, problems


def set_aside(path: Path, prefix: str) -> Path:
    """Rename a checkpoint so that it is not used: ``damaged-checkpoint-9``."""
    return path.rename(_free_path(path.with_name(f"{prefix}-{path.name}")))


def _free_path(path: Path) -> Path:
    paths = (path.with_name(f"{path.name}.{count}") for count in itertools.count(1))
    return next(free for free in itertools.chain([path], paths) if not free.exists())


def occupy(directory: Path, *, moves_aside: bool = False) -> str | None:
    """Create a directory if necessary and lock it until ``files.unlock`` or the end of the process.

    With ``moves_aside`` an earlier run in it is renamed, and a sentence that says so is returned.

    Raises:
        UserError: If a run is in progress there, on this machine or another.
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
    if directory.name in ("", ".."):  # `.` has no name to append a number to
        directory = directory.resolve()
    files.unlock(directory)
    aside = directory.rename(_free_path(directory))
    occupy(directory)
    return f"moved the run in {directory} to {aside}"


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds other files than a run, or a run that is in progress."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"--output_dir {directory}: {existing} is a file or cannot be written to")
    if files.is_locked(directory):
        occupy(directory)  # which refuses it unless it is ours
    # `recipe.trainer()` leaves checkpoints without a run.json
    is_run = (directory / MANIFEST).exists() or any(directory.glob("checkpoint-*"))
    if _content(directory) and not is_run:
        raise UserError(f"--output_dir {directory} holds files but no run: use another directory")


def _content(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*") if path.name != files.LOCK]


def refuse_code(checkpoint: str | Path) -> None:
    """Refuse a checkpoint whose pickles hold more than tensors and numbers.

    Trainer loads optimizer, scheduler and random states with ``weights_only=True``, so code in them
    never runs; here it is found and named. The ``.metadata`` of FSDP has no such protection.

    Raises:
        UserError: With the file and what it holds.
    """
    for path in sorted(Path(checkpoint).rglob("*")):
        names: list[str] = []
        try:
            if path.name == ".metadata":
                with path.open("rb") as file:
                    _Metadata(file).load()
            elif path.suffix in (".pt", ".pth", ".bin") and path.name != "training_args.bin":
                with safe_globals():  # type: ignore[no-untyped-call]  # NumPy, for random states
                    names = get_unsafe_globals_in_checkpoint(path)
        except Exception as error:  # the file may hold anything
            names = [str(error).partition("\n")[0]]
        if names:
            raise UserError(
                f"{path} holds more than tensors, or was not written by torch "
                f"({', '.join(sorted(names))}); nothing in it was run: resume from a checkpoint "
                "that you wrote"
            )


class _Metadata(pickle.Unpickler):
    """Loads the classes that torch writes into a ``.metadata``, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        member = vars(sharding).get(name) if module == sharding.__name__ else None
        is_allowed = is_dtype or getattr(member, "__module__", None) == sharding.__name__
        if not is_allowed and f"{module}.{name}" not in _IN_METADATA:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of each file of a checkpoint except ``checkpoint.json``."""
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
