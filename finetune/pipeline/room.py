"""What does not fit, the run on its disk or the training in memory, is refused before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finetune.errors import Mistakes, UserError
from finetune.pipeline.preparation import Prepared, leads
from finetune.runtime import distributed

if TYPE_CHECKING:
    from finetune.training.trainer import Trainer


def refuse_too_little(prepared: Prepared, trainer: Trainer) -> None:
    """Refuse a training without room; every process calls it, with its model loaded.

    Raises:
        UserError: on every process, if any of them has a mistake to tell.
    """
    from finetune.training import disk, memory
    from finetune.training.sampler import GlobalBatchSampler

    chosen, wrong = prepared.settings, Mistakes()
    assert trainer.model is not None
    if leads(chosen.values):
        sampler = GlobalBatchSampler.of(trainer.args, trainer.train_dataset)
        epochs = prepared.steps / len(sampler.sizes)
        tokens = memory.largest(
            iter(sampler), trainer.train_dataset, trainer.args.length_column_name
        )
        with wrong:
            memory.refuse_too_little(trainer.model, trainer.args, tokens)
        with wrong:
            disk.refuse_too_little(
                chosen.output_dir, trainer.model, trainer.args, prepared.steps, epochs
            )
    mistakes = [each for found in distributed.gather(wrong.found) for each in found]
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))
