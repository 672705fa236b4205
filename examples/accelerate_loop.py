"""Train any recipe in a hand-written loop with Accelerate, without ``Trainer``.

    python examples/accelerate_loop.py sentiment --embedded
    torchrun --nproc_per_node=2 examples/accelerate_loop.py yelp --embedded --train_samples 200

The flags are those of ``python -m finetune``; the loop uses batch, seed, epochs, optimizer,
schedule, clipping, bf16 and ``--resume_from_checkpoint last`` (or a path). Copy it and change it.
"""

import dataclasses
import inspect
import math
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, RandomSampler
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
            settings.training["output_dir"] += "-accelerate"
        values = settings.values  # Accelerate's own group ignores --ddp_timeout on a CPU
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
        train(distributed.main_process_first(lambda: prepare(settings)))
    except UserError as error:
        return stopping.stop(error)
    distributed.leave_process_group()
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
    arguments = settings.arguments  # built first: they reset the state of the Accelerator
    accumulation, batch_size = arguments.gradient_accumulation_steps, arguments.global_batch_size
    loading = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=arguments.seed)
    accelerator = Accelerator(
        mixed_precision="bf16" if arguments.bf16 else "no",
        gradient_accumulation_steps=accumulation,
        dataloader_config=loading,
    )
    set_seed(arguments.seed)  # all ranks initialise the same classification head
    parts, say = settings.recipe.trainer_kwargs(), accelerator.print
    module, rows, collate = parts["model"], parts["train_dataset"], parts["data_collator"]
    per_epoch = len(rows) // batch_size
    whole = per_epoch * batch_size  # Accelerate would fill an incomplete step with repeated rows
    steps = max(0, arguments.max_steps) or math.ceil(arguments.num_train_epochs * per_epoch)
    if parts["compute_loss_func"].class_weights or arguments.class_sampling != "none":
        raise UserError("--class_weights and --class_sampling: this loop supports neither")
    if arguments.train_sampling_strategy == "group_by_length":
        say("rows are shuffled: this loop does not group them by length")
    shuffle = arguments.train_sampling_strategy != "sequential"
    order = RandomSampler(rows, num_samples=whole) if shuffle else range(whole)
    share = batch_size // accumulation // accelerator.num_processes
    loader = DataLoader(rows, share, sampler=order, collate_fn=collate)
    held_out = DataLoader(parts["eval_dataset"], arguments.eval_batch_size, collate_fn=collate)
    matrices = [weight for weight in module.parameters() if weight.ndim > 1]
    # biases and norms: no decay
    others = [weight for weight in module.parameters() if weight.ndim <= 1]
    decay = {"params": matrices, "weight_decay": arguments.weight_decay}
    make, options = Trainer.get_optimizer_cls_and_kwargs(arguments, module)
    optimizer = make([decay, {"params": others, "weight_decay": 0.0}], **options)
    warmup, options = arguments.get_warmup_steps(steps), arguments.lr_scheduler_kwargs
    schedule = get_scheduler(arguments.lr_scheduler_type, optimizer, warmup, steps, options)
    model, optimizer, loader, held_out = accelerator.prepare(module, optimizer, loader, held_out)
    set_seed(arguments.seed + accelerator.process_index)  # different dropout masks
    # not `accelerator.save_state`: loading it skips random states that cannot be restored
    state = {"model": module, "optimizer": optimizer, "schedule": schedule}
    generators = [torch] if arguments.device.type == "cpu" else [torch, torch.get_device_module()]
    path, start, losses, scores = Path(arguments.output_dir, "snapshot.pt"), 0, [], {}
    if checkpoint := arguments.resume_from_checkpoint:
        source = path if checkpoint == "last" else Path(checkpoint)
        snapshot = torch.load(source, "cpu", weights_only=True) if source.is_file() else {"rng": []}
        if len(snapshot["rng"]) != accelerator.num_processes:
            raise UserError(f"{source} is not a snapshot of world size {accelerator.num_processes}")
        for name, stateful in state.items():
            stateful.load_state_dict(snapshot[name])
        for generator, rng in zip(
            generators, snapshot["rng"][accelerator.process_index], strict=True
        ):
            generator.set_rng_state(rng)
        start = snapshot["next_epoch"]
    step, loss = start * per_epoch, torch.zeros((), device=accelerator.device)
    for epoch in range(start, math.ceil(steps / per_epoch)):
        loader.set_epoch(epoch)  # otherwise a resumed run repeats the order of epoch 0
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):  # one all-reduce per step
                part = losses_of(model, batch, parts)[0].sum() / batch_size
                loss += part.detach()
                # `backward` averages over micro-batches and DDP over ranks; we need the sum
                accelerator.backward(part * accumulation * accelerator.num_processes)
                if accelerator.sync_gradients and arguments.max_grad_norm:
                    accelerator.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
                optimizer.step()  # Accelerate skips it until the last micro-batch
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()  # not prepared: Accelerate would step it once per process
                losses.append(accelerator.reduce(loss).item())
                step, loss = step + 1, torch.zeros_like(loss)
                say(f"step {step} of {steps}: loss {losses[-1]:.4f}")
                if step == steps:
                    break
        scores = evaluate(model, held_out, parts, accelerator)
        say(f"epoch {epoch + 1}: {', '.join(f'{name} {scores[name]:g}' for name in scores)}")
        rng = distributed.gather([generator.get_rng_state() for generator in generators])
        if accelerator.is_main_process:
            path.parent.mkdir(parents=True, exist_ok=True)
            states = {name: stateful.state_dict() for name, stateful in state.items()}
            torch.save({**states, "rng": rng, "next_epoch": epoch + 1}, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)  # atomic: never half a file
    return losses, scores


def losses_of(model: Any, batch: Any, parts: Any) -> tuple[torch.Tensor, ...]:
    """Return the loss, the logits and the label of each row."""
    taken = inspect.signature(parts["model"].forward).parameters.keys() - {"labels"}
    logits = model(**{name: batch[name] for name in taken if name in batch})["logits"]
    loss, labels = parts["compute_loss_func"], batch["labels"]
    losses_of_rows = loss.training_losses if model.training else loss.evaluation_losses
    return losses_of_rows(logits, labels), logits, labels


@torch.no_grad()
def evaluate(model: Any, loader: Any, parts: Any, accelerator: Accelerator) -> dict[str, float]:
    """Return mean loss and, for classes, accuracy over all rows, each counted once."""
    sums = torch.zeros(3, device=accelerator.device)
    for batch in loader:
        loss, logits, labels = losses_of(model.eval(), batch, parts)
        # the rows of all ranks, without the repeats that fill the last batch
        loss, right = accelerator.gather_for_metrics((loss, logits.argmax(dim=-1) == labels))
        sums += torch.stack([torch.ones_like(loss).sum(), loss.sum(), right.sum()])
    seen, loss, right = sums.tolist()
    accuracy = {} if labels.is_floating_point() else {"accuracy": right / seen}
    return {"rows": seen, "loss": loss / seen, **accuracy}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
