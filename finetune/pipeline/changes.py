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
    *("report_to", "run_name", "project", "disable_tqdm", "include_for_metrics", "local_rank"),
    *("accelerator_config", "torch_empty_cache_steps"),
}
#: How the names of others begin.
_FREE_PREFIXES = ("log", "hub_", "push_to_hub", "trackio_", "eval_", "save_", "dataloader_", "ddp_")
#: Options of a recipe that may change: where rows are, which are compared, and how fast they are
#: tokenized.
_FREE_OPTIONS = ("dataset", "dataset_revision", "preprocessing_num_workers")
_LENGTH = ("num_train_epochs", "max_steps")


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
        **{
            name: value
            for name, value in vars(values).items()
            if name not in _FREE and not name.startswith(_FREE_PREFIXES)
        },
    }
    text = to_json(entries, default=lambda value: getattr(value, "value", None) or str(value))
    canonical: dict[str, Any] = json.loads(text)
    return canonical


def _hash_model_files(recipe: Recipe) -> dict[str, str]:
    """Return hashes of what a local model has beside its weights, which a checkpoint has."""
    from finetune.data.tokenize import identity

    if type(recipe).build_model not in (TextRecipe.build_model, ImageRecipe.build_model):
        return {}
    assert isinstance(recipe, (TextRecipe, ImageRecipe))
    if recipe.model_config is None or not Path(recipe.model).expanduser().is_dir():
        return {}
    config = recipe.model_config.to_dict()
    contents = {"model_config": {**config, "transformers_version": None, "_name_or_path": None}}
    hashes = {}
    if isinstance(recipe, TextRecipe):
        hashes["tokenizer"] = identity(recipe.processing_class())
    else:
        contents["image_processor"] = recipe.processing_class().to_dict()
    for name, content in contents.items():
        text = to_json(content, sort_keys=True, default=str)
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return hashes


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
    for name in [*allowed, *(_LENGTH if extends(resumption, current) else ())]:
        changed.pop(name, None)
    if not changed:
        return
    place = resumption.path or resumption.directory
    lines = [
        f"{place} was trained with {name} {_shorten(old)}, now it is {_shorten(new)}"
        for name, (old, new) in changed.items()
    ]
    lines[-1] += (
        "\nhint: to resume, restore them, or train on with the new ones: "
        f"--allow_changed {','.join(changed)}"
    )
    raise UserError(*lines)


def extends(resumption: Resumption, current: Mapping[str, Any]) -> bool:
    """Return whether a finished run is to be trained for more epochs, or steps, than it was."""
    if not resumption.configuration:
        return False
    started = resumption.manifest.configuration if resumption.manifest is not None else {}
    was_extended = all(started.get(n) == current.get(n, 0) for n in _LENGTH)  # and interrupted
    if not (resumption.finished or was_extended):
        return False
    epochs, steps = (resumption.configuration.get(name, 0) for name in _LENGTH)
    more_epochs, more_steps = (current.get(name, 0) for name in _LENGTH)
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
    if (earlier := resumption.manifest) is None:
        return sentences
    name = "gradient_accumulation_steps"
    pairs: dict[str, tuple[Any, Any]] = {
        "process": (resumption.world_size, manifest.launch.world_size),
        "accumulation step": (earlier.arguments.get(name), manifest.arguments[name]),
        "the model at": (earlier.model_revision, manifest.model_revision),
        **{n: (earlier.versions.get(n), version) for n, version in manifest.versions.items()},
    }
    for name, (before, after) in pairs.items():
        if before and after and before != after:
            change = counted(after, name) if isinstance(after, int) else f"{name} {after}"
            sentences.append(f"resumed with {change} instead of {before}")
    return sentences


def _shorten(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 60 else f"{text[:57]}..."
