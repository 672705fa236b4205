"""What a training continues from, and whether it is the training that was interrupted.

A checkpoint is verified before anything else changes; one that is not complete is renamed, and that
is printed. What decides the result (data, seed, model, batch, schedule) is the configuration of a
training: every checkpoint has it, and a resume is refused where it differs. What decides only where
and how fast a training runs may change.
"""

import contextlib
import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.config.settings import Settings
from finetune.data.digests import fingerprint
from finetune.errors import UserError, counted, suggestion
from finetune.models.pretrained import commit
from finetune.pipeline.results import versions
from finetune.recipe import scoring
from finetune.runs.manifest import METRICS, Manifest
from finetune.runtime import distributed
from finetune.runtime.files import to_json
from finetune.runtime.importing import read_source
from finetune.training import checkpoint
from finetune.training.arguments import ArgumentValues
from finetune.training.checkpoint import Checkpoint
from finetune.training.record import MANIFEST

#: Training arguments that may change; every other one is part of the configuration.
_FREE = {
    *("output_dir", "resume", "resume_from_checkpoint", "allow_changed", "early_stopping_patience"),
    "grace_seconds",
    *("per_device_train_batch_size", "per_device_eval_batch_size", "num_threads", "use_cpu"),
    *("profile", "baseline", "debug", "skip_memory_metrics", "precision"),
    *("report_to", "run_name", "project", "disable_tqdm", "include_for_metrics", "local_rank"),
    *("accelerator_config", "torch_empty_cache_steps"),
}
#: How the names of others begin.
_FREE_PREFIXES = ("log", "hub_", "push_to_hub", "trackio_", "eval_", "save_", "dataloader_", "ddp_")
#: Options of a recipe that may change: where rows are, which are compared, and how fast they are
#: tokenized.
_FREE_OPTIONS = ("dataset", "dataset_revision", "preprocessing_num_workers")
#: Entries of the configuration that may change, which is announced.
_ANNOUNCED = {"launch", "gradient_accumulation_steps", "commit", *versions()}
_LENGTH = ("num_train_epochs", "max_steps")


@dataclass(frozen=True)
class Resumption:
    """What a training continues from; of a new run there is no path, and it is not in place."""

    path: Path | None  # the checkpoint, verified; None to start from the beginning
    directory: Path  # of the run that it belongs to
    manifest: Manifest | None = None  # that run's
    configuration: Mapping[str, Any] = field(default_factory=dict)  # that of the checkpoint
    in_place: bool = True  # whether it continues in that directory; nothing is moved aside then
    notes: list[str] = field(default_factory=list)  # what the user should know

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return 0 if self.path is None else checkpoint.number(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and has its results; not if an earlier checkpoint of it
        was asked for.
        """
        is_ended = self.manifest is not None and self.manifest.status == "finished"
        is_newest = self.path in (None, *checkpoint.list_checkpoints(self.directory)[:1])
        return is_ended and is_newest and (self.directory / METRICS).exists()

    def require_state(self) -> None:
        """Raise a ``UserError`` if nothing can be trained from this."""
        if self.path is None and self.finished:
            raise UserError(
                f"--resume: {self.directory} is finished and has no checkpoint to go on from: "
                "leave --resume out to start again (the run is moved aside)"
            )
        if self.path is not None and "scheduler.pt" not in Checkpoint.read(self.path).files:
            raise UserError(
                f"{self.path} was saved with --save_only_model: it has no optimizer state, so "
                f"nothing can be resumed from it; its model can be trained further as --model "
                f"{self.path}"
            )

    def changes(self, current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the entries that differ in another configuration: before and now, by name."""
        return {
            name: (self.configuration[name], value)
            for name, value in current.items()
            if name in self.configuration and self.configuration[name] != value
        }

    def extended_by(self, current: Mapping[str, Any]) -> bool:
        """Return whether a finished run is to be trained for more epochs, or steps."""
        if not self.finished or not self.configuration:
            return False
        epochs, steps = (self.configuration[name] for name in _LENGTH)
        if steps > 0:
            return bool(current["max_steps"] > steps)
        return bool(current["max_steps"] <= 0 and current["num_train_epochs"] > epochs)


def requested(values: ArgumentValues, output_dir: Path) -> str | None:
    """Return what is to be resumed: ``resume``, ``last``, a path, or None to begin a new run.

    A job that was started again continues its own run, not whatever is in the directory.

    Raises:
        UserError: If both flags are given.
    """
    path: str | None = values.resume_from_checkpoint
    if values.resume and path:
        raise UserError(
            "--resume and --resume_from_checkpoint are mutually exclusive: --resume continues from "
            "the newest checkpoint, and starts where there is none"
        )
    if values.resume:
        return "resume"
    if distributed.was_restarted() and (not path or checkpoint.list_checkpoints(output_dir)):
        with contextlib.suppress(UserError):  # a run that cannot be read is not this job's
            if _is_run_of_this_job(_read_manifest(output_dir)):
                return "resume"
    return "last" if path in ("true", "True") else path


def _is_run_of_this_job(manifest: Manifest | None) -> bool:
    if manifest is None:
        return False
    job = (manifest.process.job or "").split()
    this_job = (distributed.job() or "").split()
    if manifest.process.host != platform.node() and job[:1] == ["torchrun"]:
        return job[:2] == this_job[:2]  # the agent of torchrun is another there
    return job == this_job


def find(request: str | None, output_dir: Path, *, renames: bool = False) -> Resumption:
    """Return what to continue from.

    Args:
        request: From :func:`requested`.
        output_dir: Where the run is, or will be.
        renames: Whether checkpoints that are not complete may be renamed.

    Raises:
        UserError: If there is nothing to continue from, or nothing complete.
    """
    if request is None:
        return Resumption(None, output_dir, in_place=False)
    if request not in ("resume", "last"):
        path = Path(request).expanduser().resolve()
        flag = f"--resume_from_checkpoint {request}"
        if not (path / checkpoint.STATE).exists():
            raise UserError(f"{flag}: expected 'last' or a directory with a {checkpoint.STATE}")
        if (reason := checkpoint.problem(path)) is not None:
            newest, _ = checkpoint.newest_complete(path.parent)
            raise UserError(f"{flag} is damaged ({reason}); complete is: {newest or 'none'}")
        is_in_place = path.parent == output_dir.resolve()
        return replace(_continue_from(path, path.parent, []), in_place=is_in_place)
    manifest = _read_manifest(output_dir)
    paths = checkpoint.list_checkpoints(output_dir)
    newest, problems = checkpoint.newest_complete(output_dir)
    # killed while it saved the first one
    has_none = not any((path / Checkpoint.NAME).exists() for path in paths)
    starts_again = request == "resume" and has_none and (manifest is not None or not paths)
    if renames and (newest is not None or starts_again):
        problems = [
            f"{problem}: renamed to {checkpoint.set_aside(path, 'damaged').name}"
            for path, problem in zip(paths, problems, strict=False)  # those after the newest
        ]
    if newest is not None:
        return _continue_from(newest, output_dir, problems)
    start = Resumption(None, output_dir, manifest, in_place=output_dir.exists(), notes=problems)
    if manifest is not None and not paths and start.finished:
        return replace(start, configuration=manifest.configuration)
    if starts_again:
        return start
    flag = "--resume" if request == "resume" else "--resume_from_checkpoint last"
    reasons = [f"{flag}: no complete checkpoint in {output_dir}", *problems]
    raise UserError("; ".join([*reasons, "leave the flag out to start from the beginning"]))


def agree_on_checkpoint(resumption: Resumption, output_dir: Path) -> Resumption:
    """Go back to the newest checkpoint that is complete on every machine, which has its own disk.

    Raises:
        UserError: On every process, if a machine has none where others have one.
    """
    steps = distributed.gather(resumption.step)
    if len(set(steps)) == 1:
        return resumption
    paths = checkpoint.list_checkpoints(output_dir)
    complete = {path.name for path in paths if checkpoint.problem(path) is None}
    common = set.intersection(*distributed.gather(complete))
    newest = next((path for path in paths if path.name in common), None)
    if newest is None:
        raise UserError(
            f"--output_dir {output_dir}: the ranks have checkpoints of steps {steps}, and none is "
            "complete on every machine: copy one to every machine, or remove the directory on all "
            "of them to start again"
        )
    return _continue_from(newest, output_dir, resumption.notes)


def _continue_from(path: Path, directory: Path, notes: list[str]) -> Resumption:
    saved = Checkpoint.read(path)
    best = json.loads((path / checkpoint.STATE).read_text(encoding="utf-8"))["best_global_step"]
    if best and not (directory / f"checkpoint-{best}" / Checkpoint.NAME).exists():
        gone = f"the best checkpoint so far, checkpoint-{best}, is gone or not complete: unless a "
        notes = [*notes, f"{gone}better one comes, the model of the last step is saved"]
    return Resumption(path, directory, _read_manifest(directory), saved.configuration, notes=notes)


def _read_manifest(directory: Path) -> Manifest | None:
    if not (directory / MANIFEST).exists():
        return None
    try:
        return Manifest.read(directory)
    except UserError as error:
        raise UserError(f"{error}; without that file, its checkpoints can be resumed") from error


def configuration(settings: Settings) -> dict[str, Any]:
    """Return what decides the result of a training, and what is announced, as JSON has it."""
    recipe = settings.recipe
    file = Path(settings.name)  # absolute if it is one of the user's
    options = {option.name: getattr(recipe, option.name) for option in dataclasses.fields(recipe)}
    for name in _FREE_OPTIONS:
        options.pop(name, None)
    model = str(options.get("model") or "")
    directory = Path(model or "-").expanduser()
    if directory.exists():
        options["model"] = str(directory.resolve())
    if recipe.metrics:
        options["metrics"] = ",".join(recipe.known_scoring)  # files are compared by their hashes
    entries = {
        "launch": counted(distributed.ranks().world_size, "process"),
        **versions(),
        "commit": commit(model, options.get("model_revision")),  # of a model on the Hub
        "recipe": settings.name,
        "recipe_file": read_source(file, "recipe")[1] if file.is_absolute() else None,
        **{  # of the files of a local model but its weights, which a checkpoint has
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(directory.glob("*"))
            if path.suffix in (".json", ".txt", ".model") and path.name not in (MANIFEST, METRICS)
        },
        "metric_files": {
            name: read_source(path, "metric")[1]
            for name, path in scoring.files_of(recipe.known_scoring).items()
        },
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": {name: len(rows) for name, rows in recipe.splits.items()},
        "labels": recipe.labels,
        **options,
    }
    for name, value in vars(settings.values).items():
        if name not in _FREE and not name.startswith(_FREE_PREFIXES):
            entries[name] = value
    text = to_json(entries, default=lambda value: getattr(value, "value", None) or str(value))
    canonical: dict[str, Any] = json.loads(text)
    return canonical


def refuse_changes(
    resumption: Resumption, current: Mapping[str, Any], values: ArgumentValues
) -> str | None:
    """Refuse to resume another training, except for the names in ``--allow_changed``.

    Returns:
        A sentence with what is accepted and can move the result, if there is something.

    Raises:
        UserError: One line for each entry that differs.
    """
    allowed = {name.strip() for name in (values.allow_changed or "").split(",")} - {""}
    names = {*resumption.configuration, *current}
    if unknown := sorted(allowed - names):
        raise UserError(
            *(f"--allow_changed: unknown name '{n}'{suggestion(n, names)}" for n in unknown)
        )
    if resumption.extended_by(current):
        allowed.update(_LENGTH)
    # what was accepted when the run was continued before, and is in no checkpoint yet
    accepted = {} if resumption.manifest is None else resumption.manifest.configuration
    refused = {}
    texts = []
    for name, (old, new) in resumption.changes(current).items():
        before, now = _shorten(old), _shorten(new)
        texts.append(f"{name}: {now} instead of {before}")
        if name not in allowed | _ANNOUNCED and accepted.get(name, old) != new:
            trained = f"{resumption.path or resumption.directory} was trained with {name}"
            refused[name] = f"{trained} {before}, now it is {now}"
    if refused:
        hint = "hint: to resume, restore them, or train on with the new ones: --allow_changed"
        *lines, last = refused.values()
        raise UserError(*lines, f"{last}\n{hint} {','.join(refused)}")
    longer = "; it differs from a training of that length in one go, as the schedule does"
    is_longer = resumption.extended_by(current)
    return f"resumed with {', '.join(texts)}{longer * is_longer}" if texts else None


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
