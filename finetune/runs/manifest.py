"""``run.json`` and ``metrics.json``: what a run writes down, typed."""

import math
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from finetune.statistics.metrics import Statistics
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
class Metrics(Record):
    """``metrics.json``."""

    NAME = METRICS
    RESTORE = _restore_scores

    validation: dict[str, Any]  # of the model that was kept
    test: dict[str, Any]
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each, on the test rows
    statistics: Statistics
    schema: int = SCHEMA
