"""The block at the start of a run, the collated batch of a dry run, and the table at its end."""

from __future__ import annotations

import sys

import torch

from finetune.cli import console
from finetune.data import sources, targets
from finetune.data.encoding import documents_of
from finetune.errors import counted
from finetune.pipeline import events, results
from finetune.recipe import TextRecipe, catalog
from finetune.reporting import tables
from finetune.runtime import distributed
from finetune.training.arguments import FinetuneArguments

_ORDER = {"random": "", "sequential": ", in order", "group_by_length": ", grouped by length"}


class Screen:
    """Prints the events of a training."""

    def __init__(self) -> None:
        self._has_bar = sys.stderr.isatty()  # which tells what lines would tell
        self._has_started = False

    def __call__(self, event: events.Event) -> None:
        """Print one event."""
        match event:
            case events.Started():
                self._has_bar, self._has_started = not event.arguments.disable_tqdm, True
                _start(event)
            case events.Collated():
                tensors = event.batch.items()
                shapes = {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors}
                console.block("one collated batch", shapes)
                console.say("\ndry run: nothing was trained, nothing was written")
            case events.Logged() if "train_runtime" in event.values:
                pass  # the table at the end tells it
            case events.Advanced() if self._has_bar:
                pass
            case events.Finished():
                _end(event)
            case events.Interrupted() if not self._has_started:
                console.tell(str(event))
            case events.MovedAside() | events.Interrupted():
                console.say(f"\n{event}\n")
            case _:
                console.say(str(event))


def _start(event: events.Started) -> None:
    """One block: recipe, data, model, device, batch, precision, steps."""
    settings, arguments, model = event.settings, event.arguments, event.model
    recipe, splits, default = settings.recipe, settings.recipe.splits, type(settings.recipe).dataset
    balance = recipe.kind.balance(targets.values(splits["train"]))
    epochs = arguments.num_train_epochs
    length = f"{epochs:g} epoch{'s' * (epochs != 1)}" if arguments.max_steps <= 0 else "--max_steps"
    base = getattr(recipe, "model", None)
    described = sources.Source(base).describe() if base else "built by the recipe"
    if model is not None:
        described += f", {sum(tensor.numel() for tensor in model.parameters()):,} parameters"
    precision = results.precision(arguments)
    precision += "; --precision fp32 for full precision" * (precision != "fp32")
    facts: dict[str, str | list[str]] = {
        "data": [sources.Source(recipe.dataset).describe(), *recipe.notes],
        "rows": ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items()),
        "splits": recipe.split_how,
        "task": recipe.kind.name.replace("_", " ")
        + (f" ({recipe.task_reason})" if recipe.task_reason else ""),
        "labels": balance,
        "texts": ", ".join(recipe.columns_read()) if getattr(recipe, "text_columns", "") else "",
        "long texts": _long_texts(recipe) if isinstance(recipe, TextRecipe) else "",
        "model": described,
        "device": _device(arguments, settings.command),
        "batch": _batch_sizes(arguments),
        "precision": precision,
        "steps": f"{event.steps:,} ({length}), learning rate {arguments.learning_rate:g}",
        "embedded": ", ".join(f"{name}={value}" for name, value in settings.overrides.items()),
        "directory": str(settings.output_dir),
    }
    title = catalog.display_name(type(recipe))
    if recipe.dataset == default or not default:  # else the docstring is about other data
        title += f": {(recipe.__doc__ or type(recipe).__name__).partition(chr(10))[0]}"
    console.block(title, {name: fact for name, fact in facts.items() if fact})
    console.say()


def _end(event: events.Finished) -> None:
    """Print the test metrics beside the baselines; then time, throughput and the directory."""
    run = event.run
    metrics, manifest = run.metrics, run.manifest
    statistics, names = run.statistics, run.headline
    console.say()
    console.show(tables.scores(metrics, names))
    if statistics.targets:
        console.say()
        console.show(tables.targets(statistics))
    for sentence in tables.verdicts(statistics, names, tables.directions(manifest)):
        console.say(f"\n{sentence}")
    before = manifest.steps_before
    resumed = f" (resumed at step {before:,})" if before else ""
    report = f"; report: {event.page}" if event.page else ""
    profile = f"; trace and slowest operators: {run.path}/profile" if event.profiled else ""
    console.say(
        f"\ntrained {counted((manifest.steps or 0) - before, 'step')}{resumed} "
        f"in {manifest.train_seconds or 0.0:,.1f} s; test loss {metrics.test['loss']:.4f}\n"
        f"throughput: {tables.speed(manifest.speed)}\nsaved to {run.path}{report}{profile}"
    )


def _device(arguments: FinetuneArguments, command: str) -> list[str]:
    world_size, devices = arguments.world_size, distributed.devices_in_training(arguments.use_cpu)
    kind = torch.device("cpu") if arguments.use_cpu else torch.accelerator.current_accelerator()
    name = torch.cuda.get_device_name() if kind is not None and kind.type == "cuda" else str(kind)
    line = f"{name}, {results.parallel_mode(arguments)}, {counted(world_size, 'process')}"
    if distributed.machines() > 1:
        line += f" on {distributed.machines()} machines"
    if kind is None or kind.type == "cpu":
        line += f", {counted(torch.get_num_threads(), 'thread')} each"
    if world_size > 1 or devices == 1:
        return [line]
    torchrun = f"torchrun --nproc_per_node={devices} {command.removeprefix('python ')}"
    return [line, f"faster: {torchrun}; on one GPU only: CUDA_VISIBLE_DEVICES=0"]


def _long_texts(recipe: TextRecipe) -> str:
    length, documents = recipe.max_length, documents_of(recipe.prepared["train"])
    if recipe.windows is not None and documents is not None:
        return f"{len(documents):,} windows of up to {length} tokens, pooled by {recipe.pooling}"
    if (sample := recipe.token_sample) is None:
        return ""
    share = float((sample.lengths > length).mean())
    return f"{share:.1%} of the training texts are cut at --max_length {length}"


def _batch_sizes(arguments: FinetuneArguments) -> str:
    if arguments.max_tokens_per_batch is not None:
        return f"at most {arguments.max_tokens_per_batch:,} tokens per step, padding included"
    devices = distributed.devices_in_training(arguments.use_cpu)
    unit = "process" if arguments.world_size == devices else "GPU"
    return (
        f"{arguments.per_device_train_batch_size} per device x "
        f"{arguments.gradient_accumulation_steps} accumulation x {counted(devices, unit)} = "
        f"{counted(arguments.global_batch_size or 0, 'row')} per step"
        f"{_ORDER[arguments.train_sampling_strategy]}"
    )
