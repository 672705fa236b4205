"""The block at the start of a run, the collated batch of a dry run, and the table at its end."""

from __future__ import annotations

import os
import sys

import torch

from finetune.cli import console
from finetune.config.settings import Settings
from finetune.data import sources, targets
from finetune.data.windows import documents_of
from finetune.errors import counted
from finetune.models import pretrained
from finetune.models.cpu import exchange, unpadded
from finetune.models.cpu import kernels as cpu
from finetune.pipeline import events, lengths, provenance
from finetune.recipe import Recipe, TextRecipe, catalog
from finetune.reporting import wording
from finetune.runtime import distributed
from finetune.training.arguments import FinetuneArguments

_ORDER = {"random": "", "sequential": ", in order", "group_by_length": ", grouped by length"}


class Screen:
    """Prints the events of a training."""

    def __init__(self) -> None:
        self._has_bar = sys.stderr.isatty()  # which tells what lines would tell

    def __call__(self, event: events.Event) -> None:
        """Print one event."""
        match event:
            case events.Started():
                self._has_bar = not event.arguments.disable_tqdm
                _start(event)
            case events.Collated():
                _batch(event)
            case events.MovedAside():
                console.say(f"{event}\n")
            case events.Logged() if "train_runtime" in event.values:
                pass  # the table at the end tells it
            case events.Advanced() if self._has_bar:
                pass
            case events.Finished():
                _end(event)
                if event.profiled:
                    console.say(f"trace and slowest operators: {event.run.path}/profile")
            case events.Interrupted():
                console.say(f"\n{event}")
            case events.Logged() | events.Advanced() | events.Noted():
                console.say(str(event))


def _start(event: events.Started) -> None:
    """One block: recipe, data, model, device, batch, precision, steps."""
    settings, arguments, model = event.settings, event.arguments, event.model
    recipe, splits = settings.recipe, settings.recipe.splits
    facts: dict[str, str | list[str]] = {"data": _data(settings)}
    facts["rows"] = ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items())
    if recipe.split_how:
        facts["splits"] = recipe.split_how
    name, balance = recipe.kind.balance(targets.values(splits["train"]))
    reason = f" ({recipe.task_reason})" if recipe.task_reason else ""
    facts["task"] = recipe.kind.name.replace("_", " ") + reason
    facts[name] = balance
    if isinstance(recipe, TextRecipe):
        if recipe.text_columns:
            read = recipe.columns_read()
            facts["texts"] = f"{', '.join(read)}, {recipe.encoder().describe_joining(len(read))}"
        if long_texts := lengths.describe_long_texts(recipe):
            facts["long texts"] = long_texts
    facts["model"] = _model(settings, model)
    facts["device"] = _device(arguments, settings.command)
    facts["batch"] = _batch_sizes(arguments, in_windows=_in_windows(recipe))
    if arguments.device.type == "cpu" and (kernels := _cpu_kernels(arguments, model)):
        facts["cpu kernels"] = kernels
    facts["precision"] = _precision(arguments)
    if arguments.torch_compile:
        facts["compiled"] = _compiled(arguments)
    facts["steps"] = (
        f"{event.steps:,} ({_length(arguments)}), learning rate {arguments.learning_rate:g}"
    )
    if settings.overrides:
        changed = ", ".join(f"{name}={value}" for name, value in settings.overrides.items())
        facts["embedded"] = f"overrides: {changed}"
    facts["directory"] = str(settings.output_dir)
    title = catalog.display_name(type(recipe))
    if not _has_other_data(recipe):  # which the docstring is about
        title += f": {(recipe.__doc__ or type(recipe).__name__).partition(chr(10))[0]}"
    console.block(title, facts)
    console.say()


def _batch(event: events.Collated) -> None:
    """Print the shapes of one collated micro-batch."""
    tensors = event.batch.items()
    shapes = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors}
    console.block("one collated batch", shapes)
    console.say("\ndry run: nothing was trained, nothing was written")


def _end(event: events.Finished) -> None:
    """Print the test metrics beside the baselines; then time, throughput and the directory."""
    run = event.run
    metrics, manifest = run.metrics, run.manifest
    statistics, columns = run.statistics, run.headline
    console.say(f"\ntest set, {counted(statistics.rows, 'row')}, 95% confidence intervals")
    lines = [["fine-tuned", *console.with_intervals(statistics.metrics, columns)]]
    for baseline, scores in metrics.baseline.items():
        gaps = console.with_intervals(statistics.beyond[baseline], columns, "+")
        lines.append([baseline, *console.two_each(console.score(scores[name]) for name in columns)])
        lines.append(["  difference to baseline", *gaps])
    console.table(["", *console.two_each(columns)], lines)
    if statistics.targets:
        console.say()
        console.targets(statistics.targets)
    for sentence in wording.unbeaten(statistics, columns, wording.directions(manifest)):
        console.sentence(f"\n{sentence}")
    before = manifest.steps_before
    resumed = f" (resumed at step {before:,})" if before else ""
    console.say(
        f"\ntrained {counted((manifest.steps or 0) - before, 'step')}{resumed} "
        f"in {_duration(manifest.train_seconds or 0.0)}; test loss {metrics.test['loss']:.4f}"
    )
    console.say(f"throughput: {wording.speed(manifest.speed)}")
    report = f"; report: {event.page}" if event.page else ""
    console.say(f"saved to {run.path}{report}")


def _data(settings: Settings) -> list[str]:
    recipe = settings.recipe
    source = sources.Source(recipe.dataset).describe()
    if _has_other_data(recipe):
        source += f", not the recipe's own {type(recipe).dataset}"
    return [source, *recipe.notes]


def _has_other_data(recipe: Recipe) -> bool:
    return bool(type(recipe).dataset) and recipe.dataset != type(recipe).dataset


def _model(settings: Settings, model: torch.nn.Module | None) -> str:
    name = getattr(settings.recipe, "model", None)
    described = pretrained.describe(name) if name else "built by the recipe"
    if model is None:
        return described
    parameters = sum(parameter.numel() for parameter in model.parameters())
    counted = f"{parameters / 1e6:,.1f}M" if parameters >= 1e6 else f"{parameters:,}"
    return f"{described}, {counted} parameters"


def _device(arguments: FinetuneArguments, command: str) -> list[str]:
    me, devices = distributed.ranks(), distributed.devices_in_training(arguments.use_cpu)
    kind = torch.device("cpu") if arguments.use_cpu else torch.accelerator.current_accelerator()
    name = torch.cuda.get_device_name() if kind is not None and kind.type == "cuda" else str(kind)
    mode = provenance.parallel_mode(arguments)
    processes = counted(me.world_size, "process")
    if distributed.machines() > 1:
        processes += f" on {distributed.machines()} machines"
    lines = [f"{name}, {mode}, {processes}"]
    if kind is None or kind.type == "cpu":
        lines[0] += f", {counted(torch.get_num_threads(), 'thread')} each"
    if me.world_size == 1 and devices > 1:
        same_command = command.removeprefix("python ")
        lines.append(f"faster: torchrun --nproc_per_node={devices} {same_command}")
        lines.append("on one GPU only: CUDA_VISIBLE_DEVICES=0")
    if "ACCELERATE_MIXED_PRECISION" in os.environ and arguments.use_cpu and me.world_size == 1:
        lines.append(
            "accelerate launch starts one process on a CPU; for two: torchrun --nproc_per_node=2"
        )
    return lines


def _in_windows(recipe: Recipe) -> bool:
    return documents_of(recipe.prepared["train"]) is not None


def _batch_sizes(arguments: FinetuneArguments, *, in_windows: bool) -> str:
    devices = distributed.devices_in_training(arguments.use_cpu)
    unit = "process" if distributed.ranks().world_size == devices else "GPU"
    if arguments.max_tokens_per_batch is not None:
        shares = devices * arguments.gradient_accumulation_steps
        tokens = arguments.max_tokens_per_batch // shares
        return (
            f"at most {arguments.max_tokens_per_batch:,} tokens per step, padding included: "
            f"about {tokens:,} per device"
            + (" and micro-batch" if arguments.gradient_accumulation_steps > 1 else "")
        )
    return (
        f"{arguments.per_device_train_batch_size} per device x "
        f"{arguments.gradient_accumulation_steps} accumulation x {counted(devices, unit)} = "
        f"{counted(arguments.global_batch_size or 0, 'window' if in_windows else 'row')} per step"
        f"{_ORDER[arguments.train_sampling_strategy]}"
    )


def _cpu_kernels(arguments: FinetuneArguments, model: torch.nn.Module | None) -> str:
    """Return the kernels that are on, and how to switch them off; nothing if they are not known."""
    if arguments.cpu_kernels == "off":
        return "off"
    if model is None:
        return ""
    names = cpu.names(model)
    if not unpadded.used_by(model) and (reason := unpadded.supports(model)):
        names.append(f"with padding ({reason})")
    if exchange.expected(model):
        names.append("gradient averaging in shared memory")
    return f"{', '.join(names)}; --cpu_kernels off for those of the libraries" if names else ""


def _precision(arguments: FinetuneArguments) -> str:
    chosen = provenance.precision(arguments)
    if arguments.precision != "auto":
        return chosen
    other = "" if chosen == "fp32" else "; --precision fp32 for full precision"
    return f"{chosen} (fastest on this device){other}"


def _compiled(arguments: FinetuneArguments) -> str:
    text = f"with {arguments.torch_compile_backend}, once for each of a few padded lengths"
    if arguments.device.type == "cpu":
        text += "; on a CPU slower than without --torch_compile"
    return text


def _length(arguments: FinetuneArguments) -> str:
    if arguments.max_steps > 0:
        return "--max_steps"
    return f"{arguments.num_train_epochs:g} epoch{'s' * (arguments.num_train_epochs != 1)}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
