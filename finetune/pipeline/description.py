"""Describe a training that starts: its configuration, and the content of its ``run.json``.

The configuration is everything that decides the result: data, seed, model, batch, schedule. Every
checkpoint stores it, and a resume is refused if it differs. Settings that decide only where and how
fast a training runs are not part of it.
"""

from pathlib import Path
from typing import Any

from datasets import DatasetDict
from datasets.fingerprint import Hasher

from finetune.config.settings import Settings
from finetune.data import sources
from finetune.data.comma_list import join_values
from finetune.data.digests import fingerprint
from finetune.errors import counted
from finetune.models.pretrained import commit
from finetune.recipe import scoring
from finetune.rules.devices import uses_fsdp
from finetune.runs import provenance
from finetune.runs.records import Data, Launch, Manifest
from finetune.runtime import distributed
from finetune.runtime.files import to_json_values
from finetune.runtime.importing import read_source
from finetune.training.arguments import FinetuneArguments

#: Training arguments that may change, and prefixes of several; all others are part of the
#: configuration.
_CHANGEABLE = (
    "output_dir",
    "resume",
    "allow_changed",
    "early_stopping_patience",
    "grace_seconds",
    "per_device_",
    "num_threads",
    "use_cpu",
    "profile",
    "baseline",
    "refit",
    "debug",
    "skip_memory_metrics",
    "precision",
    "report_to",
    "run_name",
    "project",
    "disable_tqdm",
    "include_for_metrics",
    "local_rank",
    "accelerator_config",
    "torch_empty_cache_steps",
    "log",
    "hub_",
    "push_to_hub",
    "trackio_",
    "eval_",
    "save_",
    "dataloader_",
    "ddp_",
)
#: Recipe options that may change: where the rows are (the rows are compared), and the speed of
#: tokenization.
_CHANGEABLE_OPTIONS = (
    "dataset",
    "dataset_revision",
    "preprocessing_num_workers",
    "teacher",
    "unlabelled",
)


def describe_configuration(settings: Settings) -> dict[str, Any]:
    """Return everything that decides the result of a training, or is announced, as JSON values; the
    data is loaded.
    """
    recipe = settings.recipe
    file = Path(settings.name)  # absolute for a recipe file of the user
    options = recipe.resolved_options()
    for name in _CHANGEABLE_OPTIONS:
        options.pop(name, None)
    model = str(options.get("model") or "")
    directory = Path(model or "-").expanduser()
    if directory.exists():
        options["model"] = str(directory.resolve())
    if recipe.metrics:
        options["metrics"] = ",".join(recipe.metric_arguments)  # files are compared by their hashes
    recipe_file = None
    if file.is_absolute():
        recipe_file = read_source(file, "recipe")[1]
    rows = {name: len(rows) for name, rows in recipe.splits.items()}
    unlabelled = None
    if recipe.unlabelled_rows is not None:
        rows["unlabelled"] = len(recipe.unlabelled_rows)
        unlabelled = fingerprint(DatasetDict(train=recipe.unlabelled_rows), recipe.input_column)
    entries = {
        "launch": counted(distributed.ranks().world_size, "process"),
        **provenance.find_versions(),
        "commit": commit(model, options.get("model_revision")),  # None if not on the Hub
        "recipe": settings.name,
        "recipe_file": recipe_file,
        **provenance.hash_model_files(directory),
        "metric_files": {
            name: read_source(path, "metric")[1]
            for name, path in scoring.files_of(recipe.metric_arguments).items()
        },
        "data": fingerprint(recipe.splits, recipe.input_column),
        "rows": rows,
        "teacher": [model.digest for model in recipe.teachers],
        "unlabelled": unlabelled,
        "soft_labels": Hasher.hash(recipe.soft_labels),
        "labels": recipe.labels,
    }
    for name, value in options.items():  # a recipe's own option may have the name of an entry
        if name in entries:
            name = f"option {name}"
        entries[name] = value
    for name, value in vars(settings.values).items():
        if not name.startswith(_CHANGEABLE):
            entries[name] = value
    configuration: dict[str, Any] = to_json_values(entries)
    return configuration


def describe_run(settings: Settings, configuration: dict[str, Any]) -> Manifest:
    """Return the manifest of a training; the process group is joined.

    Args:
        settings: The settings of the training.
        configuration: What decides the result, from :func:`describe_configuration`.
    """
    recipe = settings.recipe
    arguments = settings.arguments
    options = recipe.resolved_options()
    for name in ("dataset", "unlabelled"):  # so that they are found from any directory
        path = Path(options.get(name) or "-").expanduser()
        if path.exists():
            options[name] = str(path.resolve())
    if recipe.metrics:
        paths = scoring.files_of(recipe.metric_arguments)
        names = [str(paths.get(name, name)) for name in recipe.metric_arguments]
        options["metrics"] = join_values(names)
    return Manifest(
        status="running",
        recipe=settings.name,
        command=settings.command,
        options=options,
        embedded_overrides=settings.overrides,
        arguments=arguments.to_sanitized_dict(),
        labels=recipe.labels,
        scoring=recipe.metric_arguments,
        data=Data(
            source=sources.Source(recipe.dataset).describe(),
            rows=configuration["rows"],
            fingerprint=configuration["data"],
            notes=list(recipe.notes),
            findings=[finding.facts for finding in recipe.report.findings],
            tested_in=recipe.loaded.tested_in,
            corrections=list(recipe.loaded.facts.corrections),
            revision=sources.find_commit(recipe.splits["train"]),
            split_how=recipe.loaded.facts.split_how,
        ),
        launch=Launch(
            parallel_mode=parallel_mode(arguments),
            world_size=arguments.world_size,
            machines=distributed.machines(),
            n_gpu=arguments.n_gpu,
            device=str(arguments.device),
            precision=precision(arguments),
        ),
        versions=provenance.find_versions(),
        git_revision=provenance.find_git_revision(),
        process=provenance.describe_process(),
        task=recipe.resolved_task.name,
        task_facts=recipe.resolved_task.facts,
        model_revision=configuration["commit"],
        configuration=configuration,
    )


def parallel_mode(arguments: FinetuneArguments) -> str:
    """Return how the devices share a step: the torch class, e.g. ``DistributedDataParallel``."""
    if uses_fsdp(arguments):
        return "FullyShardedDataParallel"
    if distributed.ranks().world_size > 1:
        return "DistributedDataParallel"
    devices = distributed.devices_in_training(arguments.use_cpu)
    if devices > 1:
        return f"DataParallel on {devices} GPUs"
    return "one device"


def precision(arguments: FinetuneArguments) -> str:
    """Return the precision of matrix products: ``fp32``, ``tf32``, ``bf16`` or ``fp16``."""
    if arguments.bf16:
        return "bf16"
    if arguments.fp16:
        return "fp16"
    return "tf32" if arguments.tf32 else "fp32"
