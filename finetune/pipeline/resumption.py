"""Find the checkpoint to resume from, and refuse to resume a different training.

Checkpoints are verified before anything is written; an incomplete one is renamed, with a message.
The configuration of a training is everything that decides its result (data, seed, model, batch,
schedule). Every checkpoint stores it, and a resume is refused if it differs. Settings that decide
only where and how fast a training runs may change.
"""

import contextlib
import hashlib
import json
import os
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

#: Training arguments that may change; all others are part of the configuration.
_FREE = {
    *("output_dir", "resume", "resume_from_checkpoint", "allow_changed", "early_stopping_patience"),
    "grace_seconds",
    *("per_device_train_batch_size", "per_device_eval_batch_size", "num_threads", "use_cpu"),
    *("profile", "baseline", "debug", "skip_memory_metrics", "precision"),
    *("report_to", "run_name", "project", "disable_tqdm", "include_for_metrics", "local_rank"),
    *("accelerator_config", "torch_empty_cache_steps"),
}
#: Prefixes of more training arguments that may change.
_FREE_PREFIXES = ("log", "hub_", "push_to_hub", "trackio_", "eval_", "save_", "dataloader_", "ddp_")
#: Recipe options that may change: where the rows are (the rows are compared), and the speed of
#: tokenization.
_FREE_OPTIONS = ("dataset", "dataset_revision", "preprocessing_num_workers")
#: Entries of the configuration that may change with a message.
ANNOUNCED = {"launch", "gradient_accumulation_steps", "commit", *versions()}
_LENGTH = ("num_train_epochs", "max_steps")


@dataclass(frozen=True)
class Resumption:
    """What a training continues from. A new run has no path and is not in place."""

    path: Path | None  # the verified checkpoint; None to start from the beginning
    directory: Path  # the directory of the run
    manifest: Manifest | None = None  # of the run
    configuration: Mapping[str, Any] = field(default_factory=dict)  # stored in the checkpoint
    in_place: bool = True  # whether the run continues in `directory`, which is not moved aside then
    notes: list[str] = field(default_factory=list)  # sentences for the user

    @property
    def step(self) -> int:
        """The optimizer steps up to the checkpoint."""
        if self.path is None:
            return 0
        return checkpoint.number(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run is finished, unless an earlier checkpoint of it is to be resumed."""
        is_ended = self.manifest is not None and self.manifest.status == "finished"
        is_newest = self.path in (None, *checkpoint.list_checkpoints(self.directory)[:1])
        return is_ended and is_newest and (self.directory / METRICS).exists()

    def require_state(self) -> None:
        """Raise a ``UserError`` if there is no state to continue a training from."""
        if self.path is None and self.finished:
            raise UserError(
                f"--resume: {self.directory} is finished and has no checkpoint to resume: "
                "leave out --resume to start again (the run is moved aside)"
            )
        if self.path is not None and "scheduler.pt" not in Checkpoint.read(self.path).files:
            raise UserError(
                f"{self.path} was saved with --save_only_model and has no optimizer state, so it "
                f"cannot be resumed; to train its model further, start a run with --model "
                f"{self.path}"
            )

    def changes(self, current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the entries that differ in another configuration: old and new value by name."""
        changes = {}
        for name, value in current.items():
            if name in self.configuration and self.configuration[name] != value:
                changes[name] = self.configuration[name], value
        return changes

    def extended_by(self, current: Mapping[str, Any]) -> bool:
        """Return whether the run is finished, and to be trained for more epochs or steps."""
        if not self.finished or not self.configuration:
            return False
        epochs, steps = (self.configuration[name] for name in _LENGTH)
        if steps > 0:
            return bool(current["max_steps"] > steps)
        return bool(current["max_steps"] <= 0 and current["num_train_epochs"] > epochs)


def requested(values: ArgumentValues, output_dir: Path) -> str | None:
    """Return what to resume: ``resume``, ``last``, a path, or None to start a new run.

    A job that was restarted resumes its own run only, not another one in the directory.

    Raises:
        UserError: If both ``--resume`` and ``--resume_from_checkpoint`` are given.
    """
    path: str | None = values.resume_from_checkpoint
    if values.resume and path:
        raise UserError(
            "expected one of --resume and --resume_from_checkpoint, found both: --resume continues "
            "from the newest checkpoint, or starts from the beginning if there is none"
        )
    if values.resume:
        return "resume"
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    is_restarted = any(int(os.environ.get(name) or 0) > 0 for name in counts)
    if is_restarted and (not path or checkpoint.list_checkpoints(output_dir)):
        with contextlib.suppress(UserError):  # an unreadable run is not of this job
            if _is_run_of_this_job(_read_manifest(output_dir)):
                return "resume"
    return "last" if path in ("true", "True") else path


def _is_run_of_this_job(manifest: Manifest | None) -> bool:
    if manifest is None:
        return False
    job = (manifest.process.job or "").split()
    this_job = (distributed.job() or "").split()
    if manifest.process.host != platform.node() and job[:1] == ["torchrun"]:
        return job[:2] == this_job[:2]  # each machine has its own torchrun agent
    return job == this_job


def find(request: str | None, output_dir: Path, *, renames: bool = False) -> Resumption:
    """Find the checkpoint to continue from.

    Args:
        request: What to resume, from :func:`requested`.
        output_dir: The output directory, which may not exist yet.
        renames: Whether to rename incomplete checkpoints.

    Raises:
        UserError: If a checkpoint was requested and there is no complete one.
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
            hint = "no other checkpoint is complete"
            if newest:
                hint = f"type {newest} instead"
            raise UserError(f"{flag} is damaged ({reason}): {hint}")
        is_in_place = path.parent == output_dir.resolve()
        return replace(_continue_from(path, path.parent, []), in_place=is_in_place)
    manifest = _read_manifest(output_dir)
    paths = checkpoint.list_checkpoints(output_dir)
    newest, problems = checkpoint.newest_complete(output_dir)
    # a run may have been killed while it saved its first checkpoint
    has_none = not any((path / Checkpoint.NAME).exists() for path in paths)
    starts_again = request == "resume" and has_none and (manifest is not None or not paths)
    if renames and (newest is not None or starts_again):
        notes = []
        for path, problem in zip(paths, problems, strict=False):  # newer than `newest`
            renamed = checkpoint.set_aside(path, "damaged")
            notes.append(f"{problem}: renamed to {renamed.name}")
        problems = notes
    if newest is not None:
        return _continue_from(newest, output_dir, problems)
    start = Resumption(None, output_dir, manifest, in_place=output_dir.exists(), notes=problems)
    if manifest is not None and not paths and start.finished:
        return replace(start, configuration=manifest.configuration)
    if starts_again:
        return start
    flag = "--resume" if request == "resume" else "--resume_from_checkpoint last"
    reasons = [f"{flag}: no complete checkpoint in {output_dir}", *problems]
    raise UserError("; ".join([*reasons, "leave out the flag to start from the beginning"]))


def agree_on_checkpoint(resumption: Resumption, output_dir: Path) -> Resumption:
    """Return the newest checkpoint that is complete on every machine, each with its own disk.

    Raises:
        UserError: In every process, if machines have checkpoints but none in common.
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
            f"--output_dir {output_dir}: expected a checkpoint that is complete on every machine, "
            f"found steps {steps} by rank: copy one checkpoint to every machine, or remove the "
            "directory on all of them to start again"
        )
    return _continue_from(newest, output_dir, resumption.notes)


def _continue_from(path: Path, directory: Path, notes: list[str]) -> Resumption:
    saved = Checkpoint.read(path)
    best = json.loads((path / checkpoint.STATE).read_text(encoding="utf-8"))["best_global_step"]
    if best and not (directory / f"checkpoint-{best}" / Checkpoint.NAME).exists():
        missing = f"the best checkpoint so far, checkpoint-{best}, is missing or incomplete: unless"
        notes = [*notes, f"{missing} a better one follows, the model of the last step is saved"]
    return Resumption(path, directory, _read_manifest(directory), saved.configuration, notes=notes)


def _read_manifest(directory: Path) -> Manifest | None:
    if not (directory / MANIFEST).exists():
        return None
    try:
        return Manifest.read(directory)
    except UserError as error:
        raise UserError(f"{error}; remove this file to resume from the checkpoints") from error


def _hash_model_files(directory: Path) -> dict[str, str]:
    """Return the hashes of files of a local model, but its weights: the checkpoint has them."""
    hashes = {}
    for path in sorted(directory.glob("*")):
        is_ours = path.name in (MANIFEST, METRICS)
        if path.suffix in (".json", ".txt", ".model") and not is_ours:
            hashes[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return hashes


def configuration(settings: Settings) -> dict[str, Any]:
    """Return everything that decides the result of a training, or is announced, as JSON values."""
    recipe = settings.recipe
    file = Path(settings.name)  # absolute for a recipe file of the user
    options = recipe.resolved_options()
    for name in _FREE_OPTIONS:
        options.pop(name, None)
    model = str(options.get("model") or "")
    directory = Path(model or "-").expanduser()
    if directory.exists():
        options["model"] = str(directory.resolve())
    if recipe.metrics:
        options["metrics"] = ",".join(recipe.known_scoring)  # files are compared by their hashes
    recipe_file = None
    if file.is_absolute():
        recipe_file = read_source(file, "recipe")[1]
    entries = {
        "launch": counted(distributed.ranks().world_size, "process"),
        **versions(),
        "commit": commit(model, options.get("model_revision")),  # None if not on the Hub
        "recipe": settings.name,
        "recipe_file": recipe_file,
        **_hash_model_files(directory),
        "metric_files": {
            name: read_source(path, "metric")[1]
            for name, path in scoring.files_of(recipe.known_scoring).items()
        },
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": {name: len(rows) for name, rows in recipe.splits.items()},
        "labels": recipe.labels,
    }
    for name, value in options.items():  # a recipe's own option may have the name of an entry
        if name in entries:
            name = f"option {name}"
        entries[name] = value
    for name, value in vars(settings.values).items():
        if name not in _FREE and not name.startswith(_FREE_PREFIXES):
            entries[name] = value
    text = to_json(entries, default=lambda value: getattr(value, "value", None) or str(value))
    canonical: dict[str, Any] = json.loads(text)
    return canonical


def refuse_changes(
    resumption: Resumption, current: Mapping[str, Any], values: ArgumentValues
) -> str | None:
    """Refuse a resume with another configuration, except for the names in ``--allow_changed``.

    Returns:
        A sentence with the accepted changes, which may affect the result; None without changes.

    Raises:
        UserError: With one line for each entry that differs.
    """
    allowed = {name.strip() for name in (values.allow_changed or "").split(",")} - {""}
    names = {*resumption.configuration, *current}
    if unknown := sorted(allowed - names):
        raise UserError(
            *(f"--allow_changed: unknown name '{n}'{suggestion(n, names)}" for n in unknown)
        )
    if resumption.extended_by(current):
        allowed.update(_LENGTH)
    # changes that an earlier resume accepted, and that no checkpoint has stored yet
    accepted = {} if resumption.manifest is None else resumption.manifest.configuration
    refused = {}
    accepted_changes = []
    for name, (old, new) in resumption.changes(current).items():
        before, now = f"{old!s:.60}", f"{new!s:.60}"
        accepted_changes.append(f"{name}: {now} instead of {before}")
        if name not in allowed | ANNOUNCED and accepted.get(name, old) != new:
            trained = f"{resumption.path or resumption.directory} was trained with {name}"
            refused[name] = f"{trained} {before}, now it is {now}"
    if refused:
        hint = "hint: restore the old values, or accept the new ones: --allow_changed"
        *lines, last = refused.values()
        raise UserError(*lines, f"{last}\n{hint} {','.join(refused)}")
    if not accepted_changes:
        return None
    note = "; the result differs from a run of this length in one go, because its schedule differs"
    return f"resumed with {', '.join(accepted_changes)}{note * resumption.extended_by(current)}"
