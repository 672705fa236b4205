"""Print the events of a training: the start block, log lines and the final table."""

import sys
from typing import Any

import torch

from finetune.cli import console
from finetune.data import sources, targets
from finetune.errors import counted
from finetune.pipeline import events
from finetune.pipeline.description import parallel_mode, precision
from finetune.recipe import TextRecipe, catalog
from finetune.reporting import tables
from finetune.runtime import distributed
from finetune.training.arguments import FinetuneArguments


def print_event(event: events.Event) -> None:
    """Print an event of a training, unless the progress bar or the final table shows it."""
    match event:
        case events.Started():
            _print_start(event)
        case events.Logged() if "train_runtime" in event.values:
            pass  # shown after the final table
        case events.Advanced() if sys.stderr.isatty():
            pass  # shown by the progress bar
        case events.Finished():
            _print_end(event)
        case _:
            console.print_line(str(event))


def _print_start(event: events.Started) -> None:
    settings = event.settings
    arguments = event.arguments
    recipe = settings.recipe
    model = "built by the recipe"
    if base := getattr(recipe, "model", None):
        model = sources.Source(base).describe()
    if event.model is not None:
        total = trained = 0
        for weights in event.model.parameters():
            total += weights.numel()
            if weights.requires_grad:
                trained += weights.numel()
        model += f", {total:,} parameters"
        if trained < total:
            model += f", {trained:,} of them trained"
    loaded = recipe.loaded
    task = loaded.task.name.replace("_", " ")
    if loaded.facts.task_reason:
        task += f" ({loaded.facts.task_reason})"
    texts = long_texts = ""
    if getattr(recipe, "text_columns", ""):
        texts = ", ".join(recipe.columns_read())
    if isinstance(recipe, TextRecipe) and recipe.windows is None and recipe.token_sample:
        long_texts = recipe.token_sample.describe_lengths(recipe.token_limit)
    facts: dict[str, str | list[str]] = {
        "data": [sources.Source(recipe.dataset).describe(), *recipe.notes],
        "rows": ", ".join(f"{len(rows):,} {name}" for name, rows in loaded.splits.items()),
        "splits": loaded.facts.split_how,
        "task": task,
        "labels": loaded.task.balance(targets.values(loaded.splits["train"])),
        "texts": texts,
        "long texts": long_texts,
        "model": model,
        "device": _device(arguments, settings.command),
        "batch": _batch_sizes(arguments),
        "precision": precision(arguments),
        "steps": f"{event.steps:,} ({_length(arguments)}), "
        f"learning rate {arguments.learning_rate:g}",
        "embedded": ", ".join(f"{name}={value}" for name, value in settings.overrides.items()),
        "directory": str(settings.output_dir),
    }
    title = catalog.display_name(type(recipe))
    console.print_block(title, {name: fact for name, fact in facts.items() if fact})
    console.print_line()


def _length(arguments: FinetuneArguments) -> str:
    if arguments.max_steps > 0:
        return "--max_steps"
    if arguments.num_train_epochs == 1:
        return "1 epoch"
    return f"{arguments.num_train_epochs:g} epochs"


def _print_end(event: events.Finished) -> None:
    run = event.run
    manifest = run.manifest
    parts: list[Any] = []
    loss = ""
    if manifest.not_scored is None:
        parts = [tables.scores(run), tables.targets(run.statistics)]
        loss = f"; test loss {run.metrics.test['loss']:.4f}"
    console.print_parts(*parts, *tables.verdicts(run))
    first_step = manifest.steps_before
    resumed = ""
    if first_step:
        resumed = f" (resumed at step {first_step:,})"
    final = ""
    if epochs := manifest.arguments.get("final_epochs"):
        final = f" and {epochs:g} final epochs"
    files = str(run.path)
    if event.page:
        files += f"; report: {event.page}"
    if (run.path / "profile").exists():
        files += f"; trace: {run.path}/profile"
    console.print_line(
        f"\ntrained {counted((manifest.steps or 0) - first_step, 'step')}{resumed}{final} "
        f"in {manifest.train_seconds or 0.0:,.1f} s{loss}\n"
        f"throughput: {tables.format_speed(manifest.speed)}\nsaved to {files}"
    )


def _device(arguments: FinetuneArguments, command: str) -> list[str]:
    device = distributed.device(arguments.use_cpu)
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    line = f"{name}, {parallel_mode(arguments)}, {counted(arguments.world_size, 'process')}"
    if distributed.machines() > 1:
        line += f" on {distributed.machines()} machines"
    if device.type == "cpu":
        line += f", {counted(torch.get_num_threads(), 'thread')} each"
    devices = distributed.devices_in_training(arguments.use_cpu)
    if arguments.world_size > 1 or devices == 1:
        return [line]
    faster = f"{command} --num_processes {devices}"
    return [line, f"faster: {faster}; to use one GPU only: CUDA_VISIBLE_DEVICES=0"]


def _batch_sizes(arguments: FinetuneArguments) -> str:
    if arguments.max_tokens_per_batch is not None:
        return f"at most {arguments.max_tokens_per_batch:,} tokens per step, padding included"
    devices = distributed.devices_in_training(arguments.use_cpu)
    unit = "process" if arguments.world_size == devices else "GPU"
    return (
        f"{arguments.per_device_train_batch_size} per device x "
        f"{arguments.gradient_accumulation_steps} accumulation x {counted(devices, unit)} = "
        f"{counted(arguments.global_batch_size or 0, 'row')} per step, order: "
        f"{arguments.train_sampling_strategy}"
    )
