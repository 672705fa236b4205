"""Whether a resumed training is the one that was interrupted, and what is printed where it is not.

What decides the result (data, seed, model, batch, schedule) is its configuration. Every checkpoint
has it; on resume it is compared, and refused where it differs. What decides only where and how fast
a training runs may change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.digests import fingerprint
from finetune.errors import UserError, counted, suggestion
from finetune.pipeline.resumption import Resumption
from finetune.recipe import ImageRecipe, TextRecipe, catalog, scoring
from finetune.runtime.files import to_json

if TYPE_CHECKING:
    from finetune.config.settings import Settings
    from finetune.recipe import Recipe
    from finetune.training.arguments import ArgumentValues
    from finetune.training.manifest import Manifest

#: Training arguments that may change; every other one is part of the configuration.
_FREE = {
    *("output_dir", "resume", "resume_from_checkpoint", "allow_changed", "early_stopping_patience"),
    "grace_seconds",
    *("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    *("num_threads", "use_cpu", "profile", "baseline", "debug", "skip_memory_metrics", "precision"),
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
#: Options of a recipe that may change: where rows are, which are compared, and how fast they are
#: tokenized.
_FREE_OPTIONS = ("dataset", "dataset_revision", "preprocessing_num_workers")
_LENGTH = ("num_train_epochs", "max_steps")
#: Values in the configuration that are hashes.
_HASHES = ("data", "recipe_file", "metric_files", "tokenizer", "image_processor", "model_config")


def configuration(settings: Settings, values: ArgumentValues) -> dict[str, Any]:
    """Return what decides the result of a training, by name, as JSON has it.

    Args:
        settings: Whose data are loaded.
        values: The training arguments.
    """
    recipe = settings.recipe
    options = {option.name: getattr(recipe, option.name) for option in dataclasses.fields(recipe)}
    for name in _FREE_OPTIONS:
        options.pop(name, None)
    model = options.get("model")
    if model and Path(str(model)).expanduser().exists():
        options["model"] = str(Path(str(model)).expanduser().resolve())
    if recipe.metrics:
        options["metrics"] = ",".join(recipe.known_scoring)  # files are compared by their hashes
    entries = {
        "recipe": settings.name,
        "recipe_file": catalog.file_hash(type(recipe)),
        **_hash_model_files(recipe),
        "metric_files": scoring.hashes(recipe.known_scoring),
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": {name: len(rows) for name, rows in recipe.splits.items()},
        "labels": recipe.labels,
        **options,
        **{name: value for name, value in vars(values).items() if name not in _FREE},
    }
    text = to_json(entries, default=lambda value: getattr(value, "value", None) or str(value))
    canonical: dict[str, Any] = json.loads(text)
    return canonical


def _hash_model_files(recipe: Recipe) -> dict[str, str]:
    """Return hashes of what a local model has beside its weights, which a checkpoint has."""
    from finetune.data.tokenize import identity
    from finetune.models import pretrained

    if type(recipe).build_model not in (TextRecipe.build_model, ImageRecipe.build_model):
        return {}
    assert isinstance(recipe, (TextRecipe, ImageRecipe))
    if not Path(recipe.model).expanduser().is_dir():
        return {}
    hashes = {"model_config": pretrained.identity(recipe.model)}
    if isinstance(recipe, TextRecipe):
        return {"tokenizer": identity(recipe.processing_class()), **hashes}
    content = to_json(recipe.processing_class().to_dict(), sort_keys=True)
    return {"image_processor": hashlib.sha256(content.encode()).hexdigest()[:16], **hashes}


def changed_entries(
    resumption: Resumption, current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the entries of both configurations that differ: the values before and now, by name."""
    earlier = resumption.configuration
    return {
        name: (earlier[name], current[name])
        for name in current
        if name in earlier and earlier[name] != current[name]
    }


def refuse_changes(
    resumption: Resumption, current: Mapping[str, Any], allow_changed: str | None
) -> None:
    """Refuse to resume another training than the one that was interrupted.

    Args:
        resumption: What to continue from.
        current: The :func:`configuration` of this training.
        allow_changed: Names that may differ, separated by commas.

    Raises:
        UserError: One line for each entry that differs.
    """
    allowed = {name.strip() for name in (allow_changed or "").split(",") if name.strip()}
    names = {*resumption.configuration, *current}
    if unknown := sorted(allowed - names):
        raise UserError(
            *(f"--allow_changed: unknown name '{n}'{suggestion(n, names)}" for n in unknown)
        )
    changed = changed_entries(resumption, current)
    before, after = map(len, changed.get("labels", ((), ())))
    if before != after:  # the weights of the head do not fit
        raise UserError(
            f"{resumption.directory} was trained with {counted(before, 'label')}, now there are "
            f"{after}: restore the labels, or start a new run in another --output_dir"
        )
    for name in [*allowed, *(_LENGTH if extends(resumption, current) else ())]:
        changed.pop(name, None)
    if not changed:
        return
    place = resumption.path or resumption.directory
    *lines, last = (
        f"{place} was trained with {name}{' of hash' * (name in _HASHES)} {_shorten(old)}, now it "
        f"is {_shorten(new)}"
        for name, (old, new) in changed.items()
    )
    raise UserError(
        *lines,
        f"{last}\nhint: to resume, restore them, or train on with the new ones: "
        f"--allow_changed {','.join(changed)}",
    )


def extends(resumption: Resumption, current: Mapping[str, Any]) -> bool:
    """Return whether a finished run is to be trained for more epochs, or steps, than it was."""
    if not resumption.configuration:
        return False
    lengths = [current.get(name, 0) for name in _LENGTH]
    started = resumption.manifest.configuration if resumption.manifest is not None else {}
    was_extended = [started.get(name) for name in _LENGTH] == lengths  # and interrupted since
    if not (resumption.finished or was_extended):
        return False
    epochs, steps = (resumption.configuration.get(name, 0) for name in _LENGTH)
    more_epochs, more_steps = lengths
    if steps > 0:
        return bool(more_steps > steps)
    return bool(more_steps <= 0 and more_epochs > epochs)


def describe(resumption: Resumption, current: Mapping[str, Any], manifest: Manifest) -> list[str]:
    """Return a sentence for each change that can move the result.

    Args:
        resumption: The run that is resumed.
        current: The :func:`configuration` of this start.
        manifest: Of this start.
    """
    sentences, step, is_extended = [], resumption.step, extends(resumption, current)
    if resumption.path is not None and is_extended:
        sentences.append(
            f"continues a finished run at step {step:,}: from there the learning rate "
            "follows the longer schedule, so the result differs from training as long from scratch"
        )
    ignored = _LENGTH if is_extended else ()
    if names := [name for name in changed_entries(resumption, current) if name not in ignored]:
        sentences.append(
            f"continues at step {step:,} with other settings than before: {', '.join(names)}"
        )
    earlier = resumption.manifest
    name = "gradient_accumulation_steps"
    accumulation = earlier.arguments.get(name) if earlier is not None else None
    for noun, before, after in (
        ("process", resumption.world_size, manifest.launch.world_size),
        ("accumulation step", accumulation, manifest.arguments[name]),
    ):
        if before not in (None, after):
            sentences.append(
                f"resumed with {counted(after, noun)} instead of {before}: the rows of each step "
                "are the same, dropout masks differ"
            )
            break
    if earlier is not None:
        pairs: dict[str, tuple[str | None, str | None]]
        pairs = {n: (earlier.versions.get(n), version) for n, version in manifest.versions.items()}
        pairs["the model at"] = (earlier.model_revision, manifest.model_revision)
        sentences += [
            f"resumed with {name} {after} instead of {before}"
            for name, (before, after) in pairs.items()
            if before and after and before != after
        ]
    return sentences


def _shorten(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 60 else f"{text[:57]}..."
