"""Trains a tiny model of each family in each process: `families_job.py MODELS DATA OUT [FAMILIES]`.

A family is trained, trained again from the checkpoint in its middle, and predicts. Rank 0 writes
what was seen to `OUT/NAME.json` after each family. A rank that fails ends with the exception, and
the launcher ends the others: a rank that went on to the next family would wait for them for ever.
"""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from finetune import TextRecipe
from finetune.models.families import positions
from finetune.models.pretrained import load_config
from finetune.runtime import distributed

OPTIONS: dict[str, Any] = dict(
    optim="sgd",
    learning_rate=0.05,
    max_grad_norm=0,
    max_steps=4,
    global_batch_size=8,
    precision="fp32",
    per_device_eval_batch_size=6,
    logging_steps=1,
    eval_strategy="no",
    save_strategy="steps",
    save_steps=2,
    save_total_limit=None,
    load_best_model_at_end=False,
    disable_tqdm=True,
    use_cpu=True,
)
MIDDLE = "checkpoint-2"


class Reviews(TextRecipe):
    """Reviews, good or bad, on a tiny model without dropout."""

    hidden_dropout: float | None = 0.0
    eval_samples: int | None = 23
    train_samples: int | None = 64


def observe(model: Path, data: str, out: Path) -> dict[str, Any]:
    """Train a model twice, and return its losses and its logits of the test set."""
    start = time.process_time()
    gc.freeze()  # the library collects after each training, through all that was imported
    recipe = Reviews(dataset=data, model=str(model))
    trainer = recipe.trainer(output_dir=str(out), **OPTIONS)
    trainer.train()
    trainer.save_model()
    test, tokenizer = recipe.prepared["test"], recipe.processing_class()
    logits = trainer.predict(test).predictions
    again = recipe.trainer(output_dir=str(out), **OPTIONS)
    with torch.no_grad():  # what is not in the checkpoint would be seen
        for parameter in again.model.parameters():
            parameter.zero_()
    again.train(resume_from_checkpoint=str(out / MIDDLE))
    return dict(
        losses=[each["loss"] for each in trainer.state.log_history if "loss" in each],
        logits=logits.tolist(),
        resumed=again.predict(test).predictions.tolist(),
        texts=recipe.splits["test"]["text"][:],
        max_length=recipe.max_length,
        type=trainer.model.config.model_type,
        problem_type=trainer.model.config.problem_type,
        side=tokenizer.padding_side,
        pad=tokenizer.pad_token,
        positions=positions(load_config(str(model))),
        seconds=time.process_time() - start,
    )


def main(models: Path, data: str, out: Path, families: list[str]) -> None:
    torch.set_num_threads(1)
    for family in families or sorted(path.name for path in models.iterdir()):
        found = observe(models / family, data, out / family)
        if distributed.ranks().rank == 0:
            (out / f"{family}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
