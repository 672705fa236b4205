"""Train any recipe in a hand-written DistributedDataParallel (DDP) loop, without ``Trainer``.

    python examples/native_ddp.py sentiment --embedded
    torchrun --nproc_per_node=2 examples/native_ddp.py yelp --embedded --train_samples 200

The flags are those of ``python -m finetune``; the loop uses batch, seed, epochs, optimizer,
schedule, clipping, bf16 and ``--resume_from_checkpoint last`` (or a path). Copy it and change it.
"""

import dataclasses
import inspect
import math
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer, get_scheduler, set_seed

from finetune import UserError
from finetune.config.settings import Settings
from finetune.runtime import distributed, stopping


def main(recipe: str = "", *flags: str) -> int:
    """Prepare the data on rank 0, send copies to the other ranks, and train."""
    try:
        settings = Settings.from_command_line(recipe, flags)
        settings.report.raise_errors()
        if "output_dir" not in settings.user_options:  # `python -m finetune` uses runs/RECIPE
            settings.training["output_dir"] += "-native"
        values = settings.values
        if distributed.ranks().world_size > 1:  # meet at MASTER_ADDR:MASTER_PORT
            backend = values.ddp_backend or ("gloo" if values.use_cpu else None)  # None: NCCL
            dist.init_process_group(backend, timeout=timedelta(seconds=values.ddp_timeout))
        train(distributed.main_process_first(lambda: prepare(settings)))
    except UserError as error:
        return stopping.stop(error)
    distributed.leave_process_group()  # dist.destroy_process_group()
    return 0


def prepare(settings: Settings) -> Settings:
    """Load and tokenize the data; return the settings, with the defaults of the task."""
    if getattr(settings.recipe, "long_texts", "cut") != "cut":
        raise UserError("--long_texts windows: this loop does not pool the windows of a text")
    if len(settings.recipe.training_rows) < settings.values.global_batch_size:
        raise UserError("--global_batch_size: expected at most the number of training rows")
    return dataclasses.replace(settings, is_loaded=True)  # some defaults depend on the rows


def train(settings: Settings) -> tuple[list[float], dict[str, float]]:
    """Train on this rank; return the loss of each step and the metrics of the last evaluation."""
    arguments, me = settings.arguments, distributed.ranks()
    set_seed(arguments.seed)  # all ranks initialise the same classification head
    parts, say = settings.recipe.trainer_kwargs(), (print if me.rank == 0 else lambda text: None)
    module = parts["model"].to(arguments.device)
    model = DistributedDataParallel(module) if me.world_size > 1 else module
    set_seed(arguments.seed + me.rank)  # different rows, so different dropout masks
    rows, shuffle = parts["train_dataset"], arguments.train_sampling_strategy != "sequential"
    if parts["compute_loss_func"].class_weights or arguments.class_sampling != "none":
        raise UserError("--class_weights and --class_sampling: this loop supports neither")
    if arguments.train_sampling_strategy == "group_by_length":
        say("rows are shuffled: this loop does not group them by length")
    order = DistributedSampler(rows, me.world_size, me.rank, shuffle, arguments.seed)
    accumulation, batch_size = arguments.gradient_accumulation_steps, arguments.global_batch_size
    share = batch_size // accumulation // me.world_size
    loader = DataLoader(rows, share, sampler=order, collate_fn=parts["data_collator"])
    per_epoch = len(rows) // batch_size  # drops the rows of an incomplete last step
    steps = max(0, arguments.max_steps) or math.ceil(arguments.num_train_epochs * per_epoch)
    matrices = [weight for weight in module.parameters() if weight.ndim > 1]
    # biases and norms: no decay
    others = [weight for weight in module.parameters() if weight.ndim <= 1]
    decay = {"params": matrices, "weight_decay": arguments.weight_decay}
    make, options = Trainer.get_optimizer_cls_and_kwargs(arguments, module)
    optimizer = make([decay, {"params": others, "weight_decay": 0.0}], **options)
    warmup, options = arguments.get_warmup_steps(steps), arguments.lr_scheduler_kwargs
    schedule = get_scheduler(arguments.lr_scheduler_type, optimizer, warmup, steps, options)
    state = {"model": module, "optimizer": optimizer, "schedule": schedule}
    generators = [torch] if arguments.device.type == "cpu" else [torch, torch.get_device_module()]
    path, start, losses, scores = Path(arguments.output_dir, "snapshot.pt"), 0, [], {}
    if checkpoint := arguments.resume_from_checkpoint:
        source = path if checkpoint == "last" else Path(checkpoint)
        snapshot = torch.load(source, "cpu", weights_only=True) if source.is_file() else {"rng": []}
        if len(snapshot["rng"]) != me.world_size:
            raise UserError(f"{source} is not a snapshot of world size {me.world_size}")
        for name, stateful in state.items():
            stateful.load_state_dict(snapshot[name])
        for generator, rng in zip(generators, snapshot["rng"][me.rank], strict=True):
            generator.set_rng_state(rng)
        start = snapshot["next_epoch"]
    for epoch in range(start, math.ceil(steps / per_epoch)):
        order.set_epoch(epoch)  # otherwise every epoch has the same order
        batches = iter(loader)
        model.train()
        for step in range(epoch * per_epoch + 1, min((epoch + 1) * per_epoch, steps) + 1):
            loss = torch.zeros((), device=arguments.device)
            for micro in range(accumulation):
                wait = micro + 1 < accumulation and me.world_size > 1
                with model.no_sync() if wait else nullcontext():  # one all-reduce per step
                    part = losses_of(model, next(batches), parts, arguments)[0].sum() / batch_size
                    (part * me.world_size).backward()  # DDP averages over ranks; we need the sum
                loss += part.detach()
            torch.nn.utils.clip_grad_norm_(module.parameters(), arguments.max_grad_norm or math.inf)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if me.world_size > 1:
                dist.all_reduce(loss)
            losses.append(loss.item())
            say(f"step {step} of {steps}: loss {losses[-1]:.4f}")
        scores = evaluate(parts, arguments)
        say(f"epoch {epoch + 1}: {', '.join(f'{n} {scores[n]:g}' for n in scores)}; saving {path}")
        rng = distributed.gather([generator.get_rng_state() for generator in generators])
        if me.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            states = {name: stateful.state_dict() for name, stateful in state.items()}
            torch.save({**states, "rng": rng, "next_epoch": epoch + 1}, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)  # atomic: never half a file
    return losses, scores


def losses_of(model: Any, batch: Any, parts: Any, arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return the loss, the logits and the label of each row."""
    batch = {name: value.to(arguments.device) for name, value in batch.items()}
    labels, taken = batch.pop("labels"), inspect.signature(parts["model"].forward).parameters
    with torch.autocast(arguments.device.type, torch.bfloat16, enabled=arguments.bf16):
        logits = model(**{name: batch[name] for name in taken if name in batch})["logits"]
    loss = parts["compute_loss_func"]
    losses_of_rows = loss.training_losses if model.training else loss.evaluation_losses
    return losses_of_rows(logits, labels), logits, labels


@torch.no_grad()
def evaluate(parts: Any, arguments: Any) -> dict[str, float]:
    """Return mean loss and, for classes, accuracy over all rows, each counted once."""
    rows, collate, me = parts["eval_dataset"], parts["data_collator"], distributed.ranks()
    places = range(me.rank, len(rows), me.world_size)  # `DistributedSampler` pads with repeats
    sums, labels = torch.zeros(3, device=arguments.device), torch.empty(0)
    for batch in DataLoader(rows, arguments.eval_batch_size, sampler=places, collate_fn=collate):
        loss, logits, labels = losses_of(parts["model"].eval(), batch, parts, arguments)
        right = logits.argmax(dim=-1) == labels
        sums += torch.stack([torch.ones_like(loss).sum(), loss.sum(), right.sum()])
    if me.world_size > 1:
        dist.all_reduce(sums)
    seen, loss, right = sums.tolist()
    accuracy = {} if labels.is_floating_point() else {"accuracy": right / seen}
    return {"rows": seen, "loss": loss / seen, **accuracy}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
