"""Train a recipe with ``Trainer`` in the workers of Ray Train.

    pip install 'trainer-recipes[embedded,ray]'
    python examples/ray_train.py sentiment --embedded --output_dir /shared/runs/sentiment
    RAY_WORKERS=8 python examples/ray_train.py yelp --output_dir /shared/runs/yelp

The flags are those of ``python -m finetune``. All nodes must see ``--output_dir``, which has the
model and its checkpoints. If a worker fails, Ray starts all of them again, and they resume from the
last complete checkpoint. For the files of a run, call ``finetune.train`` in ``train`` instead.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.huggingface.transformers import prepare_trainer
from ray.train.torch import TorchConfig, TorchTrainer

from finetune.config.settings import Settings
from finetune.runtime import distributed


def train(config: dict[str, Any]) -> dict[str, float]:
    """Train in this worker, in the process group that Ray created; return the test metrics."""
    settings = Settings.from_command_line(config["recipe"], config["flags"])
    settings.report.raise_errors()
    recipe = distributed.main_process_first(lambda: prepare(settings))
    # No RayTrainReportCallback: each worker would upload a copy of each checkpoint, although all
    # see the directory. Ray Data is not for training rows: the sampler needs their order.
    trainer = prepare_trainer(recipe.trainer(**settings.training))
    has_checkpoint = any(settings.output_dir.glob("checkpoint-*/checkpoint.json"))
    trainer.train(resume_from_checkpoint="last" if has_checkpoint else None)
    trainer.save_model()
    metrics: dict[str, float] = trainer.evaluate(recipe.prepared["test"], metric_key_prefix="test")
    return metrics


def prepare(settings: Settings) -> Any:
    """Return the recipe when its data is loaded and tokenized."""
    return settings.recipe.with_values(training_rows=settings.recipe.training_rows)


if __name__ == "__main__":
    recipe, *flags = sys.argv[1:]
    settings = Settings.from_command_line(recipe, flags)
    if mistakes := settings.report.sentences("error"):
        sys.exit("\n".join(mistakes))
    resumes = "resume_from_checkpoint" in settings.user_options
    if Path(settings.output_dir).exists() and not resumes:
        sys.exit(f"{settings.output_dir} exists; to resume: --resume_from_checkpoint last")
    workers, use_gpu = int(os.environ.get("RAY_WORKERS", "2")), torch.cuda.is_available()
    quiet = {"env_vars": {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}}  # or each line is printed twice
    result = TorchTrainer(
        train,
        train_loop_config={"recipe": recipe, "flags": flags},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=3), worker_runtime_env=quiet
        ),
    ).fit()
    print(result.return_value)
