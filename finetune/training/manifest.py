"""``run.json`` and ``metrics.json``: what a run writes down, typed, written and read here only.

Each has a ``schema``, which grows when a field changes its meaning. A file without one is older
than schemas are; it is read, and the fields that it lacks are empty. A file of a newer schema is
refused by name.

Importing this imports no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from finetune.errors import UserError
from finetune.runtime.files import write_whole

SCHEMA = 1
MANIFEST, METRICS = "run.json", "metrics.json"


class Record:
    """A dataclass that can be read like the JSON it is written as: ``run.metrics["test"]``."""

    def __getitem__(self, name: str) -> Any:
        if name not in {each.name for each in dataclasses.fields(self)}:  # type: ignore[arg-type]
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        """Return whether the field is there and has a value."""
        return isinstance(name, str) and getattr(self, name, None) is not None


@dataclass(frozen=True, kw_only=True)
class Data(Record):
    """The data of a run.

    Attributes:
        source: Where it came from, for people.
        rows: How many rows each split has.
        fingerprint: A hash of what the rows hold, in their order.
        notes: What was dropped or is unusual.
        revision: The commit on the Hub; None if it did not come from there.
    """

    source: str
    rows: dict[str, int]
    fingerprint: str
    notes: list[str] = field(default_factory=list)
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Launch(Record):
    """How a run was launched.

    Attributes:
        parallel_mode: ``one device``, ``DataParallel on N GPUs``, ``DistributedDataParallel`` or
            ``FullyShardedDataParallel``.
        world_size: Processes.
        machines: Machines.
        n_gpu: GPUs of a process.
        device: Of rank 0.
        precision: Of the matrix products.
    """

    parallel_mode: str
    world_size: int
    machines: int
    n_gpu: int
    device: str
    precision: str


@dataclass(frozen=True, kw_only=True)
class Process(Record):
    """The process that writes a run: rank 0.

    Attributes:
        host: Name of its machine.
        pid: Its number there.
    """

    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """``run.json``. The fields from ``steps`` on are known once training has ended.

    Attributes:
        status: ``running``, ``finished``, ``interrupted`` or ``failed``.
        recipe: The words that find the recipe again.
        command: What starts the same training again.
        options: Of the recipe.
        embedded_overrides: What ``--embedded`` changed.
        arguments: The training arguments.
        labels: Names of the classes in the order of their numbers; none in a regression.
        ordered_labels: Whether that order means something.
        scoring: The local metrics and their arguments; none if the recipe computes its own.
        data: The data.
        launch: How it was launched.
        versions: Of the toolkit, Python and the libraries.
        git_revision: Of the toolkit's checkout, if it runs from one.
        process: The process that writes the run.
        model_revision: The commit of the base model on the Hub; None if it is not from there.
        steps: Optimizer steps in all.
        steps_before: Those done before the run was resumed.
        train_loss: Mean over the steps since the run was started or resumed.
        train_seconds: Since the run was started or resumed.
        speed: Throughput, FLOPs and seconds by phase.
        best_step: The step whose checkpoint was kept as the best.
        history: What was logged and evaluated, by step.
        temperature: Of the probabilities, fitted on the validation rows.
        baseline_seconds: What the baselines took.
        schema: Of this file.
    """

    status: str
    recipe: str
    command: str
    options: dict[str, Any]
    embedded_overrides: dict[str, Any]
    arguments: dict[str, Any]
    labels: list[str]
    ordered_labels: bool
    scoring: dict[str, Any]
    data: Data
    launch: Launch
    versions: dict[str, str]
    git_revision: str | None
    process: Process
    model_revision: str | None = None
    steps: int | None = None
    steps_before: int = 0
    train_loss: float | None = None
    train_seconds: float | None = None
    speed: dict[str, Any] = field(default_factory=dict)
    best_step: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    temperature: float | None = None
    baseline_seconds: float | None = None
    schema: int = SCHEMA

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read ``run.json`` of a run.

        Raises:
            UserError: if it is damaged, or of a schema that this release does not know.
        """
        content = _read(directory / MANIFEST)
        for name, kind in (("data", Data), ("launch", Launch), ("process", Process)):
            if isinstance(content.get(name), dict):
                content[name] = _filled(kind, content[name], directory / MANIFEST)
        manifest: Self = _filled(cls, content, directory / MANIFEST)
        return manifest

    def write(self, directory: Path) -> None:
        """Write ``run.json``, whole or not at all."""
        _write(self, directory / MANIFEST)


@dataclass(frozen=True, kw_only=True)
class Statistics(Record):
    """What the test rows say beyond the metrics of the recipe.

    An interval is ``{"value": ..., "low": ..., "high": ...}``, a 95% confidence interval. What does
    not apply, as classes in a regression, is None and is not written.

    Attributes:
        rows: How many test rows.
        metrics: An interval for each metric.
        beyond: For each baseline, an interval of the difference in each metric.
        classes: For each class precision, recall, F1 and areas, with its support.
        confusion: Counts, true by predicted.
        top_k: How often the true class is among the k most probable.
        calibration: Calibration error, bins, temperature.
        coverage: Accuracy on the most confident share of the rows.
        ordered: Metrics of classes that have an order.
    """

    rows: int
    metrics: dict[str, Any]
    beyond: dict[str, dict[str, Any]]
    classes: dict[str, Any] | None = None
    confusion: list[list[int]] | None = None
    top_k: dict[str, Any] | None = None
    calibration: dict[str, Any] | None = None
    coverage: list[dict[str, Any]] | None = None
    ordered: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Metrics(Record):
    """``metrics.json``.

    Attributes:
        validation: Of the model that was kept.
        test: On the test rows.
        baseline: The same metrics of each baseline, on the same rows.
        statistics: Intervals, baselines, calibration; None until they are computed.
        schema: Of this file.
    """

    validation: dict[str, Any]
    test: dict[str, Any]
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)
    statistics: Statistics | None = None
    schema: int = SCHEMA

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read ``metrics.json`` of a run.

        Raises:
            UserError: if it is damaged, or of a schema that this release does not know.
        """
        content = _read(directory / METRICS)
        if content.get("statistics") is not None:
            content["statistics"] = _filled(Statistics, content["statistics"], directory / METRICS)
        metrics: Self = _filled(cls, content, directory / METRICS)
        return metrics

    def write(self, directory: Path) -> None:
        """Write ``metrics.json``, whole or not at all."""
        _write(self, directory / METRICS)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: expected an object, found {str(content)[:40]}")
    schema = content.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema}, and this release reads schemas up to {SCHEMA}: install "
            "the release that wrote it"
        )
    return {**content, "schema": SCHEMA}


def _filled(kind: type[Any], content: Mapping[str, Any], path: Path) -> Any:
    fields = {each.name: each for each in dataclasses.fields(kind)}
    needed = {
        name
        for name, each in fields.items()
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    if missing := sorted(needed - set(content)):
        raise UserError(
            f"{path} lacks {', '.join(missing)}: it was not written by this toolkit, or by a "
            "release too old to be read; train the run again"
        )
    return kind(**{name: value for name, value in content.items() if name in fields})


def _write(record: Any, path: Path) -> None:
    content = dataclasses.asdict(record)
    if isinstance(content.get("statistics"), dict):
        content["statistics"] = {
            name: value for name, value in content["statistics"].items() if value is not None
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2, default=str) + "\n")
