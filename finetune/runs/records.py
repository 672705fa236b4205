"""The JSON files of a run, typed: ``run.json``, ``metrics.json`` and ``checkpoint.json``.

Each file has a ``schema``, which grows when a field changes its meaning. A file without a schema is
older than schemas are: it is read, and the fields that it lacks are empty. A newer one is refused
by name. Importing this module does not import torch.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self, get_type_hints

from finetune.errors import UserError
from finetune.runtime.files import to_json_values, write_whole
from finetune.statistics.results import Part, Statistics

MANIFEST = "run.json"  # a directory that has it is a run
METRICS = "metrics.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class JsonFile(Part):
    """A dataclass that is a file."""

    NAME: ClassVar[str]  # of the file in a run or checkpoint
    RESTORE: ClassVar[Callable[[dict[str, Any]], Any] | None] = None  # ``object_hook`` of ``json``

    schema: int = SCHEMA

    @classmethod
    def exists_in(cls, directory: Path) -> bool:
        """Return whether a directory has the file."""
        return (directory / cls.NAME).exists()

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
                raise UserError(
                    f"{path} has schema {schema}: expected at most {SCHEMA}; install the release "
                    "that wrote it"
                )
            record: Self = _from_json(cls, content)
            return record
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{path} is damaged, or not written by this toolkit: {error}"
            ) from error

    def write(self, directory: Path) -> None:
        """Write the file, whole or not at all."""
        content = dataclasses.asdict(self)
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(to_json_values(content), indent=2)
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
class Data(Part):
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
class Launch(Part):
    """How a run was launched."""

    parallel_mode: str  # ``one device``, ``DataParallel on N GPUs``, or the class of torch
    world_size: int
    machines: int
    n_gpu: int  # of a process
    device: str  # of rank 0
    precision: str  # of the matrix products


@dataclass(frozen=True, kw_only=True)
class Process(Part):
    """The process that writes a run, rank 0."""

    host: str
    pid: int
    started: str | None = None  # ISO 8601, UTC
    job: str | None = None  # the id of the scheduler or launcher, which may restart it


@dataclass(frozen=True, kw_only=True)
class Manifest(JsonFile):
    """``run.json``. The fields from ``steps`` on are known once training has ended."""

    NAME = MANIFEST

    status: str  # running, finished, interrupted, diverged or failed; of trials validated or pruned
    recipe: str  # its name, or the path of its file
    command: str  # starts the same training again
    options: dict[str, Any]  # of the recipe
    embedded_overrides: dict[str, Any]  # options that ``--embedded`` set
    arguments: dict[str, Any]  # of the training
    labels: list[str]  # in the order of their ids; empty in a regression
    scoring: dict[str, Any]  # local metrics with their arguments; empty if the recipe has its own
    data: Data
    launch: Launch
    versions: dict[str, str]  # of the toolkit, Python and the libraries
    git_revision: str | None  # of the checkout of the toolkit, if it is not installed
    process: Process
    task: str  # see ``finetune.tasks``
    #: What the task takes from the training rows: mean and standard deviation of targets.
    task_facts: dict[str, Any] = field(default_factory=dict)
    model_revision: str | None = None  # commit of the base model; None if it is not from the Hub
    steps: int | None = None  # optimizer steps in total
    steps_before: int = 0  # the step from which the run was resumed
    stopped_early: str | None = None  # why it stopped before the last step
    stopped_by: str | None = None  # the signal that interrupted it
    failure: str | None = None  # why the status is diverged or failed
    train_loss: float | None = None  # mean over the steps since the start or resume
    train_seconds: float | None = None  # since the start or resume
    finished: str | None = None  # when training ended, ISO 8601, UTC
    configuration: dict[str, Any] = field(default_factory=dict)  # must not change on a resume
    resumed: list[dict[str, Any]] = field(default_factory=list)  # step, from, differences
    speed: dict[str, Any] = field(default_factory=dict)  # samples/s and tokens/s
    best_step: int | None = None  # the step of the best checkpoint, which is the saved model
    history: list[dict[str, Any]] = field(default_factory=list)  # losses and evaluations by step
    temperature: float | None = None  # fitted on the validation rows; 1 changes nothing
    not_scored: str | None = None  # why there are no metrics, if all rows are trained on (--refit)

    @property
    def saw_validation(self) -> bool:
        """Whether the model was trained on the validation rows, too."""
        return bool(self.arguments.get("final_epochs") or self.not_scored)


def _restore_scores(content: dict[str, Any]) -> dict[str, Any]:
    """Return numbers with NaN where JSON, which has none, says null."""
    if any(not isinstance(value, (int, float, NoneType)) for value in content.values()):
        return content
    return {name: math.nan if value is None else value for name, value in content.items()}


@dataclass(frozen=True, kw_only=True)
class Metrics(JsonFile):
    """``metrics.json``."""

    NAME = METRICS
    RESTORE = _restore_scores

    validation: dict[str, Any]  # of the saved model
    test: dict[str, Any]
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, on the test rows
    statistics: Statistics


@dataclass(frozen=True, kw_only=True)
class Checkpoint(JsonFile):
    """``checkpoint.json``."""

    NAME = "checkpoint.json"

    step: int  # of the optimizer, the last completed one
    files: dict[str, dict[str, Any]]  # by path: ``{"bytes": ..., "xxh3_128": ...}``
    configuration: Mapping[str, Any]  # what a resume must not change, see `provenance.py`
    pending: dict[str, Any] = field(default_factory=dict)  # losses since the last log
