"""Which checkpoint a training goes on from, and whether it is still the same training.

A checkpoint is verified before anything else changes; one that is damaged is renamed and told.
What makes the result (data, seed, model, batch, schedule, precision) is compared with what the
checkpoint was made by, and refused where it differs; where and how fast it is trained may change.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.splits import fingerprint
from finetune.errors import UserError, counted, suggestion
from finetune.runtime import distributed
from finetune.runtime.files import to_json
from finetune.training import checkpoint
from finetune.training.checkpoint import Checkpoint
from finetune.training.manifest import MANIFEST, METRICS, Manifest, status_and_process

if TYPE_CHECKING:
    from finetune.config.settings import Settings
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

#: Training arguments that may change: they say where, how fast and with which reports a training
#: runs, not what it computes. Every other one is compared.
_FREE = {
    *("output_dir", "resume", "resume_from_checkpoint", "allow_changed", "early_stopping_patience"),
    "grace_seconds",
    *("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    *("num_threads", "use_cpu", "profile", "baseline", "debug", "skip_memory_metrics", "precision"),
    *("on_nonfinite", "auto_find_batch_size"),
    *("log_level", "log_level_replica", "log_on_each_node", "disable_tqdm", "report_to"),
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter"),
    *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_accumulation_steps"),
    *("eval_use_gather_object", "eval_do_concat_batches", "include_for_metrics"),
    *("save_strategy", "save_steps", "save_every", "save_total_limit", "save_on_each_node"),
    *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"),
    *("hub_always_push", "hub_revision", "accelerator_config", "torch_empty_cache_steps"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
    *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
    *("ddp_static_graph", "ddp_backend", "ddp_timeout", "local_rank"),
}
_LENGTH = ("num_train_epochs", "max_steps")
#: What the configuration has of something, where its name does not tell.
_OF = {"data": "data of fingerprint"}
#: Options of a recipe that say where its rows lie; the rows themselves are compared.
_PLACES = ("dataset", "dataset_revision")


@dataclass(frozen=True)
class Resumption:
    """What a training goes on from.

    Attributes:
        path: The checkpoint, verified; None to start from the beginning.
        directory: The run it belongs to.
        manifest: That run's, where it can be read.
        configuration: What it was made by.
        in_place: Whether it goes on in the directory of the run; nothing is moved aside then.
        notes: What the user should know.
    """

    path: Path | None
    directory: Path
    manifest: Manifest | None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    in_place: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return 0 if self.path is None else checkpoint.number(self.path) or 0

    @property
    def world_size(self) -> int | None:
        """The processes of the training that saved the checkpoint."""
        return None if self.path is None else Checkpoint.read(self.path).world_size

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and has its results."""
        ended = self.manifest is not None and self.manifest.status == "finished"
        return ended and (self.directory / METRICS).exists()

    def differs(self, now: Mapping[str, Any]) -> bool:
        """Return whether anything that makes the result has changed."""
        return bool(_changed(self, now))


def wanted(values: ArgumentValues, output_dir: Path) -> str | None:
    """Return what is to be resumed: ``resume``, ``last``, a path, or None to begin a new run.

    A job that was started again goes on with its own run, which is not whatever lies there.

    Raises:
        UserError: if both flags are given.
    """
    named: str | None = values.resume_from_checkpoint
    if named in ("true", "True"):
        named = "last"
    if values.resume and named:
        raise UserError(
            "--resume and --resume_from_checkpoint are mutually exclusive: --resume goes on from "
            "the newest checkpoint, and starts where there is none"
        )
    if values.resume:
        return "resume"
    again = distributed.was_restarted() and _is_of_this_job(output_dir)
    return "resume" if again and (not named or checkpoint.committed(output_dir)) else named


def _is_of_this_job(directory: Path) -> bool:
    known = status_and_process(directory)
    process = known[1] if known is not None else None
    if process is None:
        return False
    theirs, mine = process.job or "", distributed.job() or ""
    if process.host != platform.node() and theirs.startswith("torchrun"):  # its agent is another
        return theirs.split()[:2] == mine.split()[:2]
    return theirs == mine


def find(wish: str | None, output_dir: Path, *, touch: bool) -> Resumption | None:
    """Return what to go on from; damaged checkpoints on the way to it are renamed.

    Args:
        wish: Of :func:`wanted`.
        output_dir: Where the run is, or will be.
        touch: Whether damaged checkpoints may be renamed; else they are only told.

    Returns:
        None for a new run.

    Raises:
        UserError: if there is nothing to go on from, or nothing whole.
    """
    if wish is None:
        return None
    if wish not in ("resume", "last"):
        return _named(Path(wish).expanduser(), output_dir)
    if touch:
        checkpoint.clear(output_dir)  # one that was being replaced is put back
    manifest, known = _manifest(output_dir), checkpoint.committed(output_dir)
    damaged: dict[Path, str] = {}
    for path in known:
        if (reason := checkpoint.problem(path)) is None:
            tell = checkpoint.set_aside if touch else checkpoint.damaged
            notes = [tell(*each) for each in damaged.items()]
            return _from(path, output_dir, manifest, notes)
        damaged[path] = reason
    if manifest is not None and not known:
        ended = Resumption(None, output_dir, manifest, manifest.configuration)
        if ended.finished:
            return ended
    if wish == "resume" and not known:
        return Resumption(None, output_dir, manifest) if output_dir.exists() else None
    flag = "--resume" if wish == "resume" else "--resume_from_checkpoint last"
    told = [f"{flag}: no {'whole ' * bool(known)}checkpoint in {output_dir}"]
    told += [checkpoint.damaged(*each) for each in damaged.items()]
    raise UserError("; ".join([*told, "leave the flag out to start from the beginning"]))


def agreed(found: Resumption | None, output_dir: Path) -> Resumption | None:
    """Go back to the newest checkpoint that is whole on every machine, which each has a disk of.

    Every rank calls it, inside the process group.

    Raises:
        UserError: on every rank, if a machine has none where others do.
    """
    while True:
        steps = distributed.gather(found.step if found is not None else 0)
        if len(set(steps)) == 1:
            return found
        if not (least := min(steps)):
            raise UserError(
                f"--output_dir {output_dir}: rank {steps.index(0)} has no whole checkpoint there, "
                f"and rank {steps.index(max(steps))} has checkpoint-{max(steps)}: copy that to "
                "every machine, or remove the directory on all of them to start again"
            )
        if found is not None and found.step > least:
            known = checkpoint.committed(output_dir)
            older = [path for path in known if (checkpoint.number(path) or 0) <= least]
            whole = next((path for path in older if checkpoint.problem(path) is None), None)
            found = None if whole is None else _from(whole, output_dir, found.manifest, found.notes)


def _named(path: Path, output_dir: Path) -> Resumption:
    flag = f"--resume_from_checkpoint {path}"
    if not (path / checkpoint.STATE).exists():
        raise UserError(f"{flag}: expected 'last' or a directory that holds a {checkpoint.STATE}")
    path = path.resolve()
    if (reason := checkpoint.problem(path)) is not None:
        others = [each for each in checkpoint.committed(path.parent) if each != path]
        whole = next((each for each in others if checkpoint.problem(each) is None), None)
        instead = f"; {whole} is whole" if whole else ""
        raise UserError(f"{flag} is damaged ({reason}){instead}")
    in_place = path.parent == output_dir.resolve()
    return _from(path, path.parent, _manifest(path.parent), [], in_place=in_place)


def _from(
    path: Path,
    directory: Path,
    manifest: Manifest | None,
    notes: list[str],
    *,
    in_place: bool = True,
) -> Resumption:
    saved = Checkpoint.read(path)
    if "scheduler.pt" not in saved.files:
        raise UserError(
            f"{path} was saved with --save_only_model: it has no optimizer state, so nothing can "
            f"be resumed from it; its model can be trained further as --model {path}"
        )
    state = json.loads((path / checkpoint.STATE).read_text(encoding="utf-8"))
    best = state.get("best_global_step")
    kept = directory / f"checkpoint-{best}"
    reason = None
    if best and kept.name != path.name:
        reason = checkpoint.problem(kept) if kept.exists() else "it is gone"
    if reason is not None:
        notes = [
            *notes,
            f"the best checkpoint so far, {kept.name}, cannot be loaded ({reason}): unless a "
            "better one comes, the model of the last step is kept",
        ]
    return Resumption(path, directory, manifest, saved.configuration, in_place, notes)


def _manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a run; None if there is none that can be read."""
    try:
        return Manifest.read(directory) if (directory / MANIFEST).exists() else None
    except UserError:
        return None


def configuration(chosen: Settings, values: ArgumentValues) -> dict[str, Any]:
    """Return what makes the result of a training, by name; its data are loaded for it."""
    recipe = chosen.recipe
    options = {each.name: getattr(recipe, each.name) for each in dataclasses.fields(recipe)}
    model = options.get("model")
    if model and Path(str(model)).expanduser().exists():
        options["model"] = str(Path(str(model)).expanduser().resolve())
    facts = {
        "recipe": chosen.name,
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": {name: len(rows) for name, rows in recipe.splits.items()},
        "labels": recipe.labels,
        **{name: value for name, value in options.items() if name not in _PLACES},
        **{name: value for name, value in vars(values).items() if name not in _FREE},
    }
    canonical: dict[str, Any] = json.loads(to_json(facts, default=_plain))
    return canonical


def _plain(value: Any) -> Any:
    return getattr(value, "value", None) or str(value)


def refuse_changes(found: Resumption, now: Mapping[str, Any], allowed: str | None) -> None:
    """Refuse to continue another training than the one that was interrupted.

    Args:
        found: What to go on from.
        now: The :func:`configuration` of this training.
        allowed: The names of ``--allow_changed``, separated by commas.

    Raises:
        UserError: a line for each thing that differs.
    """
    names = {name.strip() for name in (allowed or "").split(",") if name.strip()}
    known = {*found.configuration, *now}
    if unknown := sorted(names - known):
        raise UserError(
            *(
                f"--allow_changed: unknown name '{name}'{suggestion(name, known)}"
                for name in unknown
            )
        )
    changed = {name: each for name, each in _changed(found, now).items() if name not in names}
    if goes_further(found, now):
        changed = {name: each for name, each in changed.items() if name not in _LENGTH}
    if changed:
        place = found.path or found.directory
        *others, last = (
            f"{place} was trained with {_OF.get(name, name)} {_shown(before)}, now it is "
            f"{_shown(after)}"
            for name, (before, after) in changed.items()
        )
        hint = "hint: to resume, restore them, or accept a result that is that of neither:"
        raise UserError(*others, f"{last}\n{hint} --allow_changed {','.join(changed)}")


def goes_further(found: Resumption, now: Mapping[str, Any]) -> bool:
    """Return whether a finished run is given more epochs, or more steps, than it had."""
    (epochs, steps), (more_epochs, more_steps) = (
        [known.get(name, 0) for name in _LENGTH] for known in (found.configuration, now)
    )
    begun = found.manifest.configuration if found.manifest is not None else {}
    goes_on = [begun.get(name) for name in _LENGTH] == [more_epochs, more_steps]
    if not (found.finished or goes_on) or not found.configuration:
        return False
    if steps > 0:
        return bool(more_steps > steps)
    return bool(more_steps <= 0 and more_epochs > epochs)


def nothing_left(found: Resumption, now: Mapping[str, Any], patience: int | None) -> bool:
    """Return whether the run is finished, and these settings do not ask for more."""
    if not found.finished or goes_further(found, now):
        return False
    assert found.manifest is not None
    before = found.manifest.arguments.get("early_stopping_patience")
    if found.manifest.stopped_early is None or found.path is None or before is None:
        return True
    return patience is not None and patience <= before


def record(
    found: Resumption, now: Mapping[str, Any], arguments: FinetuneArguments
) -> dict[str, Any]:
    """Return what ``run.json`` says of going on: from which step, and what changed."""
    before = found.manifest.arguments if found.manifest is not None else {}
    current = arguments.to_sanitized_dict()
    free = {
        name: [before[name], current[name]]
        for name in sorted(_FREE & before.keys() & current.keys())
        if before[name] != current[name] and name not in ("resume", "resume_from_checkpoint")
    }
    return {
        "step": found.step,
        "from": str(found.path) if found.path else None,
        "allowed": {name: list(each) for name, each in _changed(found, now).items()},
        "changed": free,
        "world_size": [found.world_size, arguments.world_size],
    }


def differences(
    found: Resumption,
    now: Mapping[str, Any],
    arguments: FinetuneArguments,
    versions: Mapping[str, str],
) -> list[str]:
    """Return a sentence for each thing that is not as it was and matters."""
    sentences = []
    if found.path is not None and goes_further(found, now):
        sentences.append(
            f"continues a finished run at step {found.step:,}: from there the learning rate "
            "follows the longer schedule, so the result differs from training as long from scratch"
        )
    further = _LENGTH if goes_further(found, now) else ()
    if changed := ", ".join(name for name in _changed(found, now) if name not in further):
        sentences.append(
            f"continues at step {found.step:,} with other settings than before: {changed}"
        )
    before, processes = found.world_size, arguments.world_size
    old = found.manifest.arguments if found.manifest is not None else {}
    accumulation = old.get("gradient_accumulation_steps", arguments.gradient_accumulation_steps)
    if before is not None and before != processes:
        sentences.append(
            f"resumed with {counted(processes, 'process')} instead of {before}: the rows of each "
            "step are the same, dropout masks differ"
        )
    elif accumulation != arguments.gradient_accumulation_steps:
        sentences.append(
            f"resumed with {arguments.gradient_accumulation_steps} accumulation steps instead of "
            f"{accumulation}: the rows of each step are the same, dropout masks differ"
        )
    if found.manifest is not None:
        sentences += [
            f"resumed with {name} {version} instead of {found.manifest.versions[name]}"
            for name, version in versions.items()
            if found.manifest.versions.get(name, version) != version
        ]
    return sentences


def _changed(found: Resumption, now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    before = found.configuration
    return {
        name: (before.get(name), now.get(name))
        for name in dict.fromkeys([*now, *before])
        if before and before.get(name) != now.get(name)
    }


def _shown(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 60 else f"{text[:57]}..."
