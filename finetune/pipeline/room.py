"""What does not fit, the run on its disk or the training in memory, is refused before it starts."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from finetune.errors import Report, RunError, UserError
from finetune.pipeline.events import Noted, Progress
from finetune.pipeline.preparation import Prepared, leads
from finetune.runtime import distributed

if TYPE_CHECKING:
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.trainer import Trainer


def refuse_too_little(prepared: Prepared, trainer: Trainer) -> None:
    """Refuse a training without room; every process calls it, with its model loaded.

    Raises:
        UserError: on every process, if any of them has a mistake to tell.
    """
    from finetune.training import disk, memory
    from finetune.training.sampler import GlobalBatchSampler

    chosen, report = prepared.settings, Report()
    assert trainer.model is not None
    if leads(chosen.values):
        sampler = GlobalBatchSampler.of(trainer.args, trainer.train_dataset)
        epochs = prepared.steps / len(sampler.sizes)
        tokens = memory.largest(
            iter(sampler), trainer.train_dataset, trainer.args.length_column_name
        )
        with report.collect():
            memory.refuse_too_little(trainer.model, trainer.args, tokens)
        with report.collect():
            disk.refuse_too_little(
                chosen.output_dir,
                trainer.model,
                trainer.args,
                prepared.steps,
                epochs,
                resumes=prepared.resumption is not None and prepared.resumption.in_place,
            )
    gathered = distributed.gather(report.sentences("error"))
    if mistakes := [mistake for mistakes in gathered for mistake in mistakes]:
        raise UserError(*dict.fromkeys(mistakes))


def with_accumulation(prepared: Prepared, progress: Progress) -> Prepared:
    """Return settings whose micro-batches fit in memory: the fewest accumulation steps that do.

    Each process tries a forward and backward pass over its largest micro-batch before the
    training is built, so that this is in every respect the training that was started with that
    accumulation. Every process calls it.

    Raises:
        RunError: if not even a row fits.
        UserError: if a step of a number of tokens has too few rows for more accumulation steps.
    """
    import torch

    from finetune.training import memory
    from finetune.training.trainer import build_trainer

    first = arguments = prepared.settings.arguments
    while True:
        recipe = prepared.settings.recipe
        trainer = build_trainer(recipe.trainer_kwargs, arguments, recipe.adapt)
        all_fit = all(distributed.gather(memory.fits(trainer)))
        del trainer
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if all_fit:
            break
        prepared = _divided(prepared, arguments)
        arguments = prepared.settings.arguments
    if arguments is not first:
        progress(
            Noted(
                f"--auto_find_batch_size: {arguments.gradient_accumulation_steps} accumulation "
                f"steps instead of {first.gradient_accumulation_steps}, as the micro-batches do "
                "not fit in memory; the global batch is the same"
            )
        )
    return prepared


def _divided(prepared: Prepared, arguments: FinetuneArguments) -> Prepared:
    """Return the settings with micro-batches of the next smaller size that divides."""
    rows = arguments.per_device_train_batch_size or 1
    if rows == 1 and not arguments.max_tokens_per_batch:
        raise RunError(
            "out of memory: not even a micro-batch of one row fits; try "
            "--gradient_checkpointing true, a smaller --max_length or a smaller --model"
        )
    factor = 2
    while not arguments.max_tokens_per_batch and rows % factor:
        factor += 1
    training = dict(prepared.settings.training)
    training["gradient_accumulation_steps"] = arguments.gradient_accumulation_steps * factor
    if training.get("per_device_train_batch_size"):
        training["per_device_train_batch_size"] = rows // factor
    return replace(prepared, settings=replace(prepared.settings, training=training))
