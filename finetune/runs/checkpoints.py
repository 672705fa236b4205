"""The checkpoints of a run: list, verify, complete, rename and delete them.

When every process has written its part of ``checkpoint-N/`` and all of it is on the disk,
``checkpoint.json`` is written, with the size and checksum of each file. A directory without it, or
whose files differ from it, is not a complete checkpoint: training never resumes from it. While a
step is saved again, its first checkpoint is called ``replaced-checkpoint-N``.

A checksum shows damage but no manipulation: whoever can change a file can change
``checkpoint.json`` too. So pickles are searched for code before they are loaded.
"""

import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint import metadata as sharding
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers.trainer_pt_utils import safe_globals

from finetune.errors import UserError, first_line
from finetune.runs.directory import free_path
from finetune.runs.records import Checkpoint
from finetune.runtime.files import flush, hash_file

STATE = "trainer_state.json"  # written by Trainer: steps, history, best metric
#: Files that the libraries may load from a checkpoint. Others, like ``.DS_Store``, are ignored.
_LOADED = re.compile(r"(.*/)?(\.metadata|[^./][^/]*\.(pt|pth|bin|safetensors|json|distcp))")
#: Globals in the pickle ``.metadata`` besides dtypes and the classes of torch's metadata module.
_IN_METADATA = {
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    "pathlib.PosixPath",
    "collections.OrderedDict",
}


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run, complete or not, newest first."""
    paths = [path for path in directory.glob("*checkpoint-*") if step_of(path) and path.is_dir()]
    return sorted(paths, key=lambda path: (-step_of(path), path.name))


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint; 0 for other names."""
    match = re.fullmatch(r"(?:replaced-)?checkpoint-([0-9]+)", path.name)
    return int(match[1]) if match else 0


def begin_checkpoint(path: Path) -> None:
    """Make room for a checkpoint. An earlier one of the same step is kept under another name until
    :func:`delete_replaced` is called; an incomplete one is deleted.
    """
    if Checkpoint.exists_in(path):
        set_aside(path, "replaced")
    shutil.rmtree(path, ignore_errors=True)


def complete_checkpoint(
    path: Path, configuration: Mapping[str, Any], pending: dict[str, Any]
) -> None:
    """Flush a checkpoint that all processes have written, and add ``checkpoint.json``."""
    files = _describe_files(path)
    for name in files:
        flush(path / name)
    step = step_of(path)
    Checkpoint(step=step, files=files, configuration=configuration, pending=pending).write(path)
    flush(path)
    flush(path.parent)


def delete_replaced(directory: Path) -> None:
    """Delete the checkpoints of a run that were saved again."""
    for replaced in directory.glob("replaced-checkpoint-*"):
        shutil.rmtree(replaced, ignore_errors=True)


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None; every byte is read. A file that may not be
    read raises a ``UserError``: it need not be damaged.
    """
    if not Checkpoint.exists_in(path):
        return f"it has no {Checkpoint.NAME}: it is incomplete, or was saved by another trainer"
    try:
        checkpoint = Checkpoint.read(path)
        if checkpoint.step != step_of(path):
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


def find_newest_complete(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint of a run, and what is wrong with newer ones."""
    problems: list[str] = []
    for path in list_checkpoints(directory):
        if (reason := find_damage(path)) is None:
            return path, problems
        problems.append(f"{path} is damaged ({reason})")
    return None, problems


def set_aside(path: Path, prefix: str) -> Path:
    """Rename a checkpoint so that it is not used: ``damaged-checkpoint-9``."""
    return path.rename(free_path(path.with_name(f"{prefix}-{path.name}")))


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
            names = [first_line(error)]
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
            checksum = hash_file(path, xxhash.xxh3_128)
            files[name] = {"bytes": path.stat().st_size, "xxh3_128": checksum}
    return files
