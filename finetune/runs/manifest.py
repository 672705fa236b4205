"""``run.json`` and ``metrics.json``: what a run writes down, typed."""

import math
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from finetune.statistics.results import Statistics
from finetune.training.record import MANIFEST, SCHEMA, Data, Launch, Process, Record

METRICS = "metrics.json"


def _restore_scores(content: dict[str, Any]) -> dict[str, Any]:
    """Return numbers with NaN where JSON, which has none, says null."""
    if any(not isinstance(value, (int, float, NoneType)) for value in content.values()):
        return content
    return {name: math.nan if value is None else value for name, value in content.items()}


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
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
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Metrics(Record):
    """``metrics.json``."""

    NAME = METRICS
    RESTORE = _restore_scores

    validation: dict[str, Any]  # of the saved model
    test: dict[str, Any]
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, on the test rows
    statistics: Statistics
    schema: int = SCHEMA
