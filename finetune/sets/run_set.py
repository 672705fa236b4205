"""A set of runs: a directory whose runs share their splits.

runs/sentiment-seeds/
  set.json                  what the runs have in common
  seed-42/ seed-43/         or trial-000/ trial-001/ of a search; each is a run
  study.journal             of a search: the trials, for Optuna
  report.html plots/        what the set says
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers import TrainerCallback

from finetune.config.settings import Settings
from finetune.errors import UserError
from finetune.pipeline.events import Advanced, Progress, Started, emit, reporting
from finetune.pipeline.preparation import Prepared, prepare_job
from finetune.pipeline.train import run_training
from finetune.recipe.run import Run
from finetune.runs.provenance import REPORTED_CHANGES
from finetune.runs.records import MANIFEST, JsonFile
from finetune.runtime import distributed
from finetune.sets import SET, is_set
from finetune.training.options import OF_EVALUATIONS, without_none

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


Kind = Literal["repeat", "search"]


@dataclass(frozen=True, kw_only=True)
class SetManifest(JsonFile):
    """``set.json``."""

    NAME = SET

    kind: Kind
    recipe: str  # its name, or the path of its file
    command: str  # continues the set
    metric: str  # chooses the best checkpoint of a run, and the best run of a search
    greater_is_better: bool
    configuration: dict[str, Any]  # what the runs have in common; the same command must have it
    space: dict[str, str]  # of a search: distribution by option
    winner: str | None = None  # of a search: the trial that was evaluated on the test rows
    optimism: float | None = None  # of its validation score; None if that is not known


@dataclass(frozen=True)
class RunSet:
    """A set of runs in a directory."""

    path: Path

    @classmethod
    def load(cls, path: str | Path | RunSet, *, trust_recipe: bool = False) -> RunSet:
        """Return the set in ``path``; a set is returned unchanged. For ``trust_recipe`` see
        :meth:`Run.load`.

        Raises:
            UserError: If the directory has no ``set.json``.
        """
        run_set = path
        if not isinstance(run_set, RunSet):
            run_set = cls(Path(run_set).expanduser())
        if not is_set(run_set.path):
            raise UserError(f"{path} is not the directory of a set of runs: no {SET}")
        for run in run_set.runs[:1]:  # all have the same recipe
            Run.load(run.path, trust_recipe=trust_recipe)
        return run_set

    @property
    def manifest(self) -> SetManifest:
        """``set.json``."""
        return SetManifest.read(self.path)

    @property
    def runs(self) -> list[Run]:
        """The runs of the set, in the order of their numbers."""
        paths = []
        for file in self.path.glob(f"*/{MANIFEST}"):
            if re.fullmatch(r"(seed|trial)-\d+", file.parent.name):
                paths.append(file.parent)
        return list(map(Run, sorted(paths, key=lambda path: int(path.name.split("-")[1]))))


_SAME = "leave it out; the same command continues a set of runs"
#: The end of the default directory of a set.
_SUFFIXES = {"repeat": "seeds", "search": "search"}
#: Options that a set of runs does not have, and why.
_REFUSED = {
    "resume": _SAME,
    "resume_from_checkpoint": _SAME,
    "dry_run": "leave it out; to check options and data: python -m finetune check RECIPE",
    "refit": "leave it out; train the best run again by `python -m finetune RECIPE`, with --refit",
    "max_minutes": "use --num_train_epochs: the runs of a set are compared at equal epochs",
}


def prepare_set(
    kind: Kind,
    base: Settings,
    changes: Mapping[str, Any],
    typed: Mapping[str, Any],
    progress: Progress,
) -> Prepared:
    """Check the settings and prepare the data of a run of a set, and report its start block; every
    process calls this, and is in the process group then.

    Args:
        kind: The verb, which is also the name of the function.
        base: The settings that the runs share.
        changes: The options of the run.
        typed: The options of the verb; those that are None are left out.
        progress: Called with each event.

    Returns:
        The data. Its settings have the directory of the set, ``--output_dir`` or
        ``runs/RECIPE-SUFFIX``, and the command that continues it.

    Raises:
        UserError: If there are flags that a set has no use for, or mistakes in options or data.
    """
    for name, reason in _REFUSED.items():
        if base.user_options.get(name):
            raise UserError(f"--{name}: {reason}")
    directory = base.output_dir
    if "output_dir" not in base.user_options:
        directory = Path(f"{directory}-{_SUFFIXES[kind]}")
    options = without_none(typed)
    if base.command.startswith("finetune.train("):
        words = "".join(f", {name}={value!r}" for name, value in options.items())
        command = f"{base.command[:-1]}{words})".replace("finetune.train", f"finetune.{kind}", 1)
    else:
        flags = shlex.join(f"--{name}={value}" for name, value in options.items())
        command = f"{base.command.replace('-m finetune', f'-m finetune {kind}', 1)} {flags}"
    if kind == "search" and base.user_options.get("final_epochs") is None:
        changes = {**changes, "final_epochs": 0}  # the trials are judged by the validation rows
    # another process may train in the directory of the first run
    unused = {"output_dir": str(directory / "preparation"), "dry_run": True}
    with reporting(progress):
        prepared = prepare_job(base.with_options({**changes, **unused}))
        training = {**prepared.settings.training, "output_dir": str(directory)}
        settings = replace(prepared.settings, training=training, command=command)
        emit(Started(settings, settings.arguments, prepared.steps, model=None))
    return replace(prepared, settings=settings)


def open_set(
    kind: Kind,
    prepared: Prepared,
    space: Mapping[str, BaseDistribution] | None = None,
) -> RunSet:
    """Write ``set.json`` unless it is there; every process calls this, in the process group.

    Args:
        kind: The kind of set.
        prepared: From :func:`prepare_set`.
        space: The values of the options that differ between the runs of a search.

    Raises:
        UserError: If the directory has other files, or another set.
    """
    settings = prepared.settings
    values = settings.values
    texts = {name: str(distribution) for name, distribution in (space or {}).items()}
    metric = str(values.metric_for_best_model).removeprefix("eval_")
    compared = {n: v for n, v in prepared.configuration.items() if n not in REPORTED_CHANGES}
    for name in OF_EVALUATIONS:
        compared[name] = getattr(values, name)
    manifest = SetManifest(
        kind=kind,
        recipe=settings.name,
        command=settings.command,
        metric=metric,
        greater_is_better=bool(settings.arguments.greater_is_better),  # resolved by the library
        configuration={n: v for n, v in compared.items() if n not in texts},
        space=texts,
    )
    distributed.main_process_first(lambda: _write_or_compare(settings.output_dir, manifest))
    return RunSet(settings.output_dir)


def _write_or_compare(directory: Path, manifest: SetManifest) -> None:
    if not is_set(directory):
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"--output_dir {directory} holds other files: use another directory")
        return manifest.write(directory)
    present = SetManifest.read(directory)
    if present.kind != manifest.kind:
        raise UserError(f"{directory} is a set of `{present.kind}`: use another --output_dir")
    old = {"space": present.space, **present.configuration}
    new = {"space": manifest.space, **manifest.configuration}
    mistakes = []
    for name in {**old, **new}:
        value, new_value = old.get(name), new.get(name)
        if value != new_value:
            mistakes.append(f"{directory} has runs with {name} {value}, now it is {new_value}")
    if mistakes:
        raise UserError(*mistakes, "type the same command again, or use another --output_dir")


def run_one(settings: Settings, progress: Progress, pruning: TrainerCallback | None = None) -> Run:
    """Train a run of a set; ``progress`` is called for long work only, not with its results."""
    try:
        return run_training(
            settings, lambda event: isinstance(event, Advanced) and progress(event), pruning
        )
    except KeyboardInterrupt as stop:
        stop.args = ("interrupted; to continue, type the same command again",)
        raise
