"""Trains a tiny model of each family in each process of a launch: `families_job.py MODELS OUT CSV`.

Each run is interrupted by nothing and saved; its second half is then trained again from the
checkpoint. The table of losses and logits is written as JSON by rank 0.
"""

import json
import sys
import time
import traceback
from pathlib import Path

import torch

from finetune import TextClassification
from finetune.runtime import distributed

OPTIONS = dict(
    optim="sgd",
    learning_rate=0.05,
    max_grad_norm=0,
    max_steps=4,
    global_batch_size=8,
    precision="fp32",
    per_device_eval_batch_size=6,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=4,
    save_strategy="steps",
    save_steps=2,
    save_total_limit=None,
    load_best_model_at_end=False,
    disable_tqdm=True,
)


class Reviews(TextClassification):
    """Reviews, good or bad, on a tiny model without dropout."""

    hidden_dropout: float | None = 0.0
    eval_samples: int | None = 23


def main(models: Path, out: Path, data: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for model in sorted(models.iterdir()):
        start = time.time()
        try:
            recipe = Reviews(dataset=data, model=str(model))
            trainer = recipe.trainer(output_dir=str(out / model.name), use_cpu=True, **OPTIONS)
            trainer.train()
            trainer.save_model()
            test = recipe.prepared["test"]
            logits = torch.as_tensor(trainer.predict(test).predictions)
            losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
            again = recipe.trainer(output_dir=str(out / model.name), use_cpu=True, **OPTIONS)
            again.train(resume_from_checkpoint=str(out / model.name / "checkpoint-2"))
            resumed = torch.as_tensor(again.predict(test).predictions)
            found[model.name] = dict(
                losses=losses,
                logits=logits.tolist(),
                resumed=(resumed - logits).abs().max().item(),
                texts=recipe.splits["test"]["text"][:],
                max_length=recipe.max_length,
                notes=recipe.notes,
            )
        except Exception as error:  # the others are looked at, too
            traceback.print_exc()
            found[model.name] = dict(error=f"{type(error).__name__}: {error}")
        print(
            model.name,
            round(time.time() - start, 1),
            found[model.name].get("error", "")[:300],
            flush=True,
        )
    if distributed.ranks().rank == 0:
        (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
