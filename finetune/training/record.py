"""Dataclasses that are written as JSON files, and those that describe a training.

Each file has a ``schema``, which grows when a field changes its meaning. A file without a schema is
older than schemas are: it is read, and the fields that it lacks are empty. A newer one is refused
by name. Importing this module does not import torch.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

from finetune.errors import UserError
from finetune.runtime.files import to_json, write_whole

MANIFEST = "run.json"  # a directory that has it is a run
SCHEMA = 1


class Record:
    """A dataclass whose fields can be read by key too, as in its JSON: ``run.metrics["test"]``."""

    NAME: ClassVar[str]  # of its file in a run or checkpoint
    RESTORE: ClassVar[Callable[[dict[str, Any]], Any] | None] = None  # ``object_hook`` of ``json``

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the file in a directory.

        Raises:
            UserError: If it is damaged, or of a schema that this release does not know.
        """
        path = directory / cls.NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"), object_hook=cls.RESTORE)
            if (schema := content.get("schema", 0)) > SCHEMA:
                hint = f"expected at most {SCHEMA}; install the release that wrote it"
                raise UserError(f"{path} has schema {schema}: {hint}")
            record: Self = _from_json(cls, content)
            return record
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            message = f"{path} is damaged, or not written by this toolkit: {error}"
            raise UserError(message) from error

    def write(self, directory: Path) -> None:
        """Write the file, whole or not at all."""
        content = dataclasses.asdict(self)  # type: ignore[call-overload]
        directory.mkdir(parents=True, exist_ok=True)
        # a metric of the user's may be a number of NumPy
        text = to_json(content, indent=2, default=lambda v: getattr(v, "item", v.__str__)())
        write_whole(directory / self.NAME, text + "\n")


def _from_json(kind: Any, content: Mapping[str, Any]) -> Any:
    """Return a dataclass from JSON; names that it does not have are left out."""
    types = get_type_hints(kind)
    values = {name: content[name] for name in types if name in content}
    for name, value in values.items():
        if dataclasses.is_dataclass(types[name]):
            values[name] = _from_json(types[name], value)
    return kind(**values)


@dataclass(frozen=True, kw_only=True)
class Data(Record):
    """The data of a run."""

    source: str  # where it came from, as text
    rows: dict[str, int]  # of each split
    fingerprint: str  # a hash of the content and order of the rows
    notes: list[str] = field(default_factory=list)  # rows that were dropped, and the like
    findings: list[dict[str, Any]] = field(default_factory=list)  # of ``check``
    tested_in: str = "test"  # the split of the source that has the test rows
    corrections: list[dict[str, Any]] = field(default_factory=list)  # --relabel, --exclude: by file
    revision: str | None = None  # the commit on the Hub; None for other sources
    split_how: str = ""  # how splits were made, as text; empty if the source has all of them


@dataclass(frozen=True, kw_only=True)
class Launch(Record):
    """How a run was launched."""

    parallel_mode: str  # ``one device``, ``DataParallel on N GPUs``, or the class of torch
    world_size: int
    machines: int
    n_gpu: int  # of a process
    device: str  # of rank 0
    precision: str  # of the matrix products


@dataclass(frozen=True, kw_only=True)
class Process(Record):
    """The process that writes a run, rank 0."""

    host: str
    pid: int
    started: str | None = None  # ISO 8601, UTC
    job: str | None = None  # the id of the scheduler or launcher, which may restart it
