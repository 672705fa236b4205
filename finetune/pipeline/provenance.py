"""What made a run: the facts that go into ``run.json``, without any secret."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data import sources
from finetune.data.digests import fingerprint
from finetune.recipe import scoring
from finetune.runtime import distributed, hub
from finetune.runtime.importing import HOUSE
from finetune.runtime.version import __version__
from finetune.training.arguments import shards
from finetune.training.manifest import Data, Launch, Manifest, Process

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.config.settings import Settings
    from finetune.recipe import Recipe
    from finetune.training.arguments import ArgumentValues, FinetuneArguments
    from finetune.training.trainer import Trainer

_MOST_IN_HISTORY = 1000
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn")


def manifest(settings: Settings, arguments: FinetuneArguments) -> Manifest:
    """Return what is known when training starts."""
    recipe = settings.recipe
    notes, commit = list(recipe.notes), sources.find_commit(recipe.splits["train"])
    if commit is None and hub.names_repository(recipe.dataset):
        notes.append("which commit of the data set on the Hub was read could not be determined")
    return Manifest(
        status="running",
        recipe=settings.name,
        command=settings.command,
        options=_options(recipe),
        embedded_overrides=settings.overrides,
        arguments=arguments.to_sanitized_dict(),
        labels=recipe.labels,
        scoring=recipe.known_scoring,
        data=Data(
            source=sources.Source(recipe.dataset).describe(),
            rows={name: len(rows) for name, rows in recipe.splits.items()},
            fingerprint=fingerprint(recipe.splits, recipe.input_column),
            notes=notes,
            findings=[finding.facts for finding in recipe.report.findings],
            tested_in="test" if "test" in recipe.source else "train",
            corrections=[*recipe.corrections],
            revision=commit,
            split_how=recipe.split_how,
        ),
        launch=Launch(
            parallel_mode=parallel_mode(arguments),
            world_size=arguments.world_size,
            machines=distributed.machines(),
            n_gpu=arguments.n_gpu,
            device=str(arguments.device),
            precision=precision(arguments),
        ),
        versions=versions(),
        git_revision=git_revision(),
        process=Process(
            host=platform.node(),
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            job=distributed.job(),
        ),
        task=recipe.kind.name,
        task_facts=recipe.kind.facts,
        model_revision=_model_revision(recipe),
    )


def _model_revision(recipe: Recipe) -> str | None:
    """Return the commit on the Hub of the model that is trained further, if there is one."""
    from finetune.models.pretrained import commit

    model = getattr(recipe, "model", None)
    return commit(model, getattr(recipe, "model_revision", None)) if model else None


def versions() -> dict[str, str]:
    """Of the toolkit, of Python, and of the libraries that the figures depend on."""
    return {
        "finetune": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def _options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of the recipe; a path as one that is found from any directory."""
    options = {option.name: getattr(recipe, option.name) for option in dataclasses.fields(recipe)}
    path = Path(recipe.dataset).expanduser()
    is_path = recipe.dataset and path.exists()
    if recipe.metrics:
        options["metrics"] = scoring.with_absolute_paths(recipe.metrics)
    return options | ({"dataset": str(path.resolve())} if is_path else {})


def outcome(trainer: Trainer, loss: float, seconds: float, steps_before: int) -> dict[str, Any]:
    """Return the fields of the manifest that are known when training has ended.

    Loss, seconds and speed are those since it was started or resumed.
    """
    state = trainer.state
    return {
        "steps": state.global_step,
        "steps_before": steps_before,
        "train_loss": loss,
        "train_seconds": round(seconds, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "speed": trainer.throughput.summary(),
        "best_step": state.best_global_step if state.best_model_checkpoint else None,
        "stopped_early": trainer.selection.stop_reason or None,
        "history": thinned(state.log_history),
    }


def thinned(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a history for ``run.json``: every n-th entry of the loss where there are more than
    1,000, with the last, and all others. ``trainer_state.json`` of a checkpoint has every one.
    """
    logged = [number for number, entry in enumerate(history) if "loss" in entry]
    step = -(-len(logged) // _MOST_IN_HISTORY) or 1
    left_out = set(logged[:-1]) - set(logged[::step])
    return [entry for number, entry in enumerate(history) if number not in left_out]


def scores_only(metrics: dict[str, Any], prefix: str) -> dict[str, float]:
    """Return the entries with this prefix, without it, but for those about speed."""
    speed = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix) and not name.endswith(speed)
    }


def parallel_mode(arguments: FinetuneArguments) -> str:
    """``one device``, ``DataParallel``, ``DistributedDataParallel`` or
    ``FullyShardedDataParallel``.
    """
    if shards(arguments):
        return "FullyShardedDataParallel"
    if distributed.ranks().world_size > 1:
        return "DistributedDataParallel"
    devices = distributed.devices_in_training(arguments.use_cpu)
    return f"DataParallel on {devices} GPUs" if devices > 1 else "one device"


def precision(arguments: FinetuneArguments) -> str:
    """Return what the matrix products are computed in."""
    name = "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32"
    return "tf32" if name == "fp32" and arguments.tf32 else name


def steps(arguments: FinetuneArguments | ArgumentValues, rows: Dataset) -> int:
    """Optimizer steps of the training over these prepared rows.

    Raises:
        UserError: if they make none, or smaller ones than there are devices.
    """
    from finetune.training.sampler import GlobalBatchSampler

    an_epoch = len(GlobalBatchSampler(arguments, rows).sizes)
    if arguments.max_steps > 0:
        return arguments.max_steps
    return math.ceil(arguments.num_train_epochs * an_epoch)


def git_revision() -> str | None:
    """Return the revision of the toolkit's checkout, ``-dirty`` if it was changed."""
    if not (HOUSE / ".git").exists():
        return None
    described = subprocess.run(
        ["git", "-C", str(HOUSE), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return described.stdout.strip() or None
