"""Refuse code in the files of a checkpoint before any of them is loaded.

Optimizer, scheduler and random states are pickles. torch loads them as ``weights_only``, so that a
class or function in them is never called; here it is found without loading, and named. The sharded
states of FSDP it loads without that: their ``.metadata``, and what is no tensor in the shards.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers.trainer_pt_utils import safe_globals

from finetune.errors import UserError

_SUFFIXES = (".pt", ".pth", ".bin")
_NEVER_LOADED = "training_args.bin"
_METADATA = ".metadata"  # of torch.distributed.checkpoint
_ITS_MODULE = "torch.distributed.checkpoint.metadata"
_IN_METADATA = {
    *((_ITS_MODULE, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_ITS_MODULE, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata")),
    *((_ITS_MODULE, name) for name in ("ChunkStorageMetadata", "TensorProperties")),
    (_ITS_MODULE, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("collections", "OrderedDict"),
}


def refuse_code(checkpoint: str | Path) -> None:
    """Refuse a checkpoint whose pickles hold more than tensors and numbers.

    Raises:
        UserError: one line for each file.
    """
    mistakes = []
    for path in sorted(Path(checkpoint).rglob("*")):
        if path.name == _METADATA:
            find_globals: Callable[[Path], list[str]] = _globals_of_shards
        elif path.suffix in _SUFFIXES and path.name != _NEVER_LOADED:
            find_globals = _globals_of_archive
        else:
            continue
        try:
            names = find_globals(path)
        except _Foreign as error:
            names = [str(error)]
        except Exception as error:  # whatever is in it
            first = str(error).partition("\n")[0].partition(". ")[0]
            written = "torch.distributed.checkpoint" if path.name == _METADATA else "torch.save"
            mistakes.append(f"{path} cannot be read as a file of {written}: {first}")
            continue
        if names:
            mistakes.append(
                f"{path} holds more than tensors: {', '.join(sorted(names))}; nothing in it was "
                "run. Resume from a checkpoint that you wrote"
            )
    if mistakes:
        raise UserError(*mistakes)


def _globals_of_archive(file: Path | IO[bytes]) -> list[str]:
    with safe_globals():  # type: ignore[no-untyped-call]  # NumPy, for random states
        return list(get_unsafe_globals_in_checkpoint(file))


def _globals_of_shards(path: Path) -> list[str]:
    """Look at what torch would unpickle of the shards that a ``.metadata`` describes."""
    with path.open("rb") as file:
        metadata = _Metadata(file).load()
    names: list[str] = []
    for index, place in metadata.storage_data.items():
        if isinstance(metadata.state_dict_metadata[index.fqn], BytesStorageMetadata):
            with (path.parent / place.relative_path).open("rb") as shard:
                shard.seek(place.offset)
                names += _globals_of_archive(io.BytesIO(shard.read(place.length)))
    return names


class _Foreign(Exception):
    """Names what does not belong into a ``.metadata``."""


class _Metadata(pickle.Unpickler):
    """Makes nothing but what torch writes into a ``.metadata``."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        if not is_dtype and (module, name) not in _IN_METADATA:
            raise _Foreign(f"{module}.{name}")
        return super().find_class(module, name)
