"""Whether a training that goes on is still the same, and what is said where it is not.

What makes the result (data, seed, model, batch, schedule, precision) is compared with what the
checkpoint was made by, and refused where it differs; where and how fast it is trained may change.
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
from finetune.recipe import ImageRecipe, TextRecipe, catalog, metric_modules
from finetune.runtime.files import to_json

if TYPE_CHECKING:
    from finetune.config.settings import Settings
    from finetune.recipe import Recipe
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

#: Training arguments that may change: they say where, how fast and with which reports a training
#: runs, not what it computes. Every other one is compared.
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
_LENGTH = ("num_train_epochs", "max_steps")
#: What the configuration has of something, where its name does not tell.
_OF = {
    "data": "data of fingerprint",
    "recipe_file": "a recipe file of sha256",
    "metric_files": "metric files of sha256",
    "tokenizer": "a tokenizer of fingerprint",
    "image_processor": "an image processor of fingerprint",
    "model_config": "a model configuration of fingerprint",
}
#: What runs did that were made before there were these options. A task of those had one class or
#: one number, as the labels, which are compared, say.
_BEFORE = {
    "class_weights": "none",
    "class_sampling": "none",
    "thresholds": "one",
    "long_texts": "cut",
    "pooling": "mean",
}
#: Options of a recipe that say where its rows lie, which are compared themselves, and how fast they
#: are prepared.
_PLACES = ("dataset", "dataset_revision", "preprocessing_num_workers")


def configuration(chosen: Settings, values: ArgumentValues) -> dict[str, Any]:
    """Return what makes the result of a training, by name; its data are loaded for it."""
    recipe = chosen.recipe
    options = {each.name: getattr(recipe, each.name) for each in dataclasses.fields(recipe)}
    model = options.get("model")
    if model and Path(str(model)).expanduser().exists():
        options["model"] = str(Path(str(model)).expanduser().resolve())
    if recipe.metrics:
        options["metrics"] = metric_modules.with_file_names(recipe.metrics)
    scoring = recipe.known_scoring
    facts = {
        "recipe": chosen.name,
        "recipe_file": catalog.file_hash(type(recipe)),
        **_files_of(recipe),
        **({"metric_files": hashes} if (hashes := metric_modules.hashes(scoring)) else {}),
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": {name: len(rows) for name, rows in recipe.splits.items()},
        "labels": recipe.labels,
        **{name: value for name, value in options.items() if name not in _PLACES},
        **{name: value for name, value in vars(values).items() if name not in _FREE},
    }
    canonical: dict[str, Any] = json.loads(to_json(facts, default=_plain))
    return canonical


def _files_of(recipe: Recipe) -> dict[str, str]:
    """Return what a model directory says beside its weights, which a checkpoint has."""
    from finetune.data.tokenize import identity
    from finetune.models import pretrained

    known = (TextRecipe.build_model, ImageRecipe.build_model)
    if type(recipe).build_model not in known:
        return {}
    assert isinstance(recipe, (TextRecipe, ImageRecipe))
    if not Path(recipe.model).expanduser().is_dir():
        return {}
    if isinstance(recipe, ImageRecipe):
        content = to_json(recipe.processing_class().to_dict(), sort_keys=True)
        own = {"image_processor": hashlib.sha256(content.encode()).hexdigest()[:16]}
    else:
        own = {"tokenizer": identity(recipe.processing_class())}
    return {**own, "model_config": pretrained.identity(recipe.model)}


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
    before, after = (_outputs(each) for each in (found.configuration, now))
    fits = before in (None, after)  # else no allowance can help
    changed = {
        name: each
        for name, each in between(found, now).items()
        if name not in names or (name == "labels" and not fits)
    }
    if goes_further(found, now):
        changed = {name: each for name, each in changed.items() if name not in _LENGTH}
    if changed:
        place = found.path or found.directory
        *others, last = (
            f"{place} was trained with {_OF.get(name, name)} {_shown(old)}, now it is {_shown(new)}"
            for name, (old, new) in changed.items()
        )
        hint = (
            "hint: to resume, restore them, or accept a result that is that of neither: "
            f"--allow_changed {','.join(changed)}"
            if fits
            else f"hint: a model of {counted(before or 0, 'output')} cannot go on with {after}: to "
            "resume, restore the labels; for these, start a new run in another --output_dir"
        )
        raise UserError(*others, f"{last}\n{hint}")


def _outputs(configuration: Mapping[str, Any]) -> int | None:
    """Return how many numbers a model puts out for a row; None if its labels are not known."""
    labels = configuration.get("labels")
    return None if labels is None else max(1, len(labels))


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
    """Return whether the run is finished, and these settings do not ask for more.

    Args:
        found: The run that is resumed.
        now: The configuration of this start, see :func:`configuration`.
        patience: Of early stopping; None without.
    """
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
    """Return what ``run.json`` says of going on: from which step, and what changed.

    Args:
        found: The run that is resumed.
        now: The configuration of this start.
        arguments: The training arguments of this start.
    """
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
        "allowed": {name: list(each) for name, each in between(found, now).items()},
        "changed": free,
        "world_size": [found.world_size, arguments.world_size],
    }


def differences(
    found: Resumption,
    now: Mapping[str, Any],
    arguments: FinetuneArguments,
    versions: Mapping[str, str],
    model_revision: str | None,
) -> list[str]:
    """Return a sentence for each thing that is not as it was and matters.

    Args:
        found: The run that is resumed.
        now: The configuration of this start.
        arguments: The training arguments of this start.
        versions: Of the libraries.
        model_revision: The commit of the base model; None where there is none.
    """
    sentences = []
    if found.path is not None and goes_further(found, now):
        sentences.append(
            f"continues a finished run at step {found.step:,}: from there the learning rate "
            "follows the longer schedule, so the result differs from training as long from scratch"
        )
    further = _LENGTH if goes_further(found, now) else ()
    if changed := ", ".join(name for name in between(found, now) if name not in further):
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
        known = found.manifest.model_revision
        if known and model_revision and known != model_revision:
            sentences.append(f"resumed with the model at {model_revision} instead of {known}")
        sentences += [
            f"resumed with {name} {version} instead of {found.manifest.versions[name]}"
            for name, version in versions.items()
            if found.manifest.versions.get(name, version) != version
        ]
    return sentences


def between(found: Resumption, now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what makes the result and has changed: the value before and now, by name."""
    if not found.configuration:
        return {}
    then = {name: value for name, value in _BEFORE.items() if name in now}
    before = {**then, "task": now.get("task"), **found.configuration}
    return {
        name: (before.get(name), now.get(name))
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name)
    }


def _shown(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 60 else f"{text[:57]}..."
