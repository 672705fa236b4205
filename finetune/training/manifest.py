"""``run.json`` and ``metrics.json``: what a run writes down, typed, written and read here only.

Each has a ``schema``, which grows when a field changes its meaning. A file without one is older
than schemas are: it is read, and the fields that it lacks are empty. A newer one is refused by
name. Importing this imports no torch.
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
from finetune.runtime.files import to_json, write_whole

SCHEMA = 1
MANIFEST = "run.json"
METRICS = "metrics.json"


def _restore_scores(content: dict[str, Any]) -> dict[str, Any]:
    """Return numbers with NaN where JSON, which has none, says null."""
    if any(not isinstance(value, (int, float, NoneType)) for value in content.values()):
        return content
    return {name: math.nan if value is None else value for name, value in content.items()}


class Record:
    """A dataclass that can be read like the JSON it is written as: ``run.metrics["test"]``; with a
    ``NAME`` it is that file in the directory of a run.
    """

    NAME: ClassVar[str]
    RESTORE: ClassVar[Callable[[dict[str, Any]], Any] | None] = None  # an object of the JSON

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the record of some content, without the names that it does not have."""
        kinds = get_type_hints(cls)
        names = {option.name for option in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {name: content[name] for name in names & content.keys()}
        for name, value in values.items():
            if isinstance(kinds[name], type) and issubclass(kinds[name], Record):
                values[name] = kinds[name].from_json(value)
        return cls(**values)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the file of a run.

        Raises:
            UserError: if it is damaged, or of a schema that this release does not know.
        """
        path = directory / cls.NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"), object_hook=cls.RESTORE)
            if (schema := content.get("schema", 0)) > SCHEMA:
                hint = f"expected at most {SCHEMA}; install the release that wrote it"
                raise UserError(f"{path} has schema {schema}: {hint}")
            return cls.from_json(content)
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


@dataclass(frozen=True, kw_only=True)
class Data(Record):
    """The data of a run."""

    source: str  # where it came from, for people
    rows: dict[str, int]  # of each split
    fingerprint: str  # a hash of what the rows hold, in their order
    notes: list[str] = field(default_factory=list)  # what was dropped or is unusual
    findings: list[dict[str, Any]] = field(default_factory=list)  # of ``check``
    tested_in: str = "test"  # the split of the source that the test rows are in
    corrections: list[dict[str, Any]] = field(default_factory=list)  # --relabel, --exclude: by file
    revision: str | None = None  # the commit on the Hub; None if it did not come from there
    split_how: str = ""  # how rows were split off, for people; empty if the source has all splits


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
    """The process that writes a run, rank 0: the name of its machine, and its number there."""

    host: str
    pid: int
    started: str | None = None  # ISO 8601, UTC
    job: str | None = None  # of the scheduler or launcher, which may start it again


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """``run.json``. The fields from ``steps`` on are known once training has ended."""

    NAME = MANIFEST

    status: str  # running, finished, interrupted, diverged or failed
    recipe: str  # the words that find it again
    command: str  # starts the same training again
    options: dict[str, Any]  # of the recipe
    embedded_overrides: dict[str, Any]  # what ``--embedded`` changed
    arguments: dict[str, Any]  # of the training
    labels: list[str]  # in the order of their numbers; none in a regression
    scoring: dict[str, Any]  # local metrics, with arguments; none if the recipe computes its own
    data: Data
    launch: Launch
    versions: dict[str, str]  # of the toolkit, Python and the libraries
    git_revision: str | None  # of the toolkit's checkout, if it runs from one
    process: Process
    task: str  # see ``finetune.tasks``
    #: What the task knows of the training rows: mean and deviation of numbers.
    task_facts: dict[str, Any] = field(default_factory=dict)
    model_revision: str | None = None  # of the base model on the Hub, if it is from there
    steps: int | None = None  # of the optimizer, in all
    steps_before: int = 0  # the run was resumed
    stopped_early: str | None = None  # why, if it was before the last step
    stopped_by: str | None = None  # the signal that interrupted it
    failure: str | None = None  # why, where the status is diverged or failed
    train_loss: float | None = None  # mean over the steps since it was started or resumed
    train_seconds: float | None = None  # since then too
    finished: str | None = None  # the end of training: ISO 8601, UTC
    configuration: dict[str, Any] = field(default_factory=dict)  # that a resume has to share
    resumed: list[dict[str, Any]] = field(default_factory=list)  # each time: step, from, changes
    speed: dict[str, Any] = field(default_factory=dict)  # samples/s and tokens/s
    best_step: int | None = None  # whose checkpoint was kept as the best
    history: list[dict[str, Any]] = field(default_factory=list)  # losses and evaluations by step
    temperature: float | None = None  # fitted on the validation rows; 1 if none is needed
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Statistics(Record):
    """What the test rows say beyond the metrics of the recipe.

    An interval is ``{"value": ..., "low": ..., "high": ...}``, a 95% confidence interval; its ends
    are NaN, null in the file, where there are too few rows. What does not apply, as classes in a
    regression, is None.
    """

    rows: int
    metrics: dict[str, Any]  # an interval for each
    beyond: dict[str, dict[str, Any]]  # by baseline: intervals of the difference in each metric
    classes: dict[str, Any] | None = None  # precision, recall, F1, areas and support of each
    confusion: list[list[int]] | None = None  # counts, true by predicted; up to 200 classes
    top_k: dict[str, Any] | None = None  # how often the true class is among the k most probable
    calibration: dict[str, Any] | None = None  # error, bins; temperature, None if none helps
    ordered: dict[str, Any] | None = None  # metrics of classes that have an order
    targets: dict[str, Any] | None = None  # of several numbers: the metrics of each
    thresholds: dict[str, float] | None = None  # by label, fitted on validation rows and folded in
    together: list[list[int]] | None = None  # rows that have both of two labels; up to 100 labels
    notes: list[str] = field(default_factory=list)  # what was bounded, left out or went wrong


@dataclass(frozen=True, kw_only=True)
class Metrics(Record):
    """``metrics.json``."""

    NAME = METRICS
    RESTORE = _restore_scores

    validation: dict[str, Any]  # of the model that was kept
    test: dict[str, Any]
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each, on the test rows
    statistics: Statistics
    schema: int = SCHEMA
