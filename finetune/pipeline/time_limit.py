"""``--max_minutes``: as many epochs as the steps of a training fit into the time."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PrinterCallback

from finetune.errors import UserError
from finetune.pipeline.preparation import Prepared, count_steps, with_epochs
from finetune.recipe import defaults
from finetune.runtime import activity, distributed
from finetune.training.trainer import build_trainer

_TIMED = 3  # steps, after a first one, in which memory is allocated and kernels are chosen
#: Training arguments of a training that is neither evaluated nor tracked.
UNEVALUATED: dict[str, Any] = {
    "eval_strategy": "no",
    "eval_steps": 0,
    "load_best_model_at_end": False,
    "early_stopping_patience": None,
    "profile": None,
    "report_to": "none",
}
#: Training arguments of the steps that are timed, of which nothing is written.
_TIMING_ARGUMENTS: dict[str, Any] = {
    **UNEVALUATED,
    "max_steps": 1 + _TIMED,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "save_strategy": "no",
    "save_steps": 0,
    "disable_tqdm": True,
    # these need evaluations
    "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": None,
}


def fit_epochs(prepared: Prepared) -> Prepared:
    """Return ``prepared`` with the epochs that take ``--max_minutes``, unless a resumed run has
    them; every process calls this, in the process group.

    A model that is thrown away takes four steps as the training would; rank 0 times the last three.
    """
    settings = prepared.settings
    minutes = settings.values.max_minutes
    if minutes is None or prepared.steps:
        return prepared
    recipe = settings.recipe
    trainer = build_trainer(
        recipe,
        replace(settings, training=settings.training | _TIMING_ARGUMENTS).arguments,
        recipe.new_model,  # with a random head, which takes as long
        callbacks=[],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    speeds = [entry["rows_per_second"] for entry in trainer.state.log_history if "loss" in entry]
    sampler = trainer.callback.sampler
    steps_rows = list(map(sampler.rows_of_step, range(1, 1 + _TIMED)))
    seconds = 0.0
    for rows, speed in zip(steps_rows, speeds[1:], strict=True):
        seconds += len(rows) / speed
    # steps may differ in rows, and rows in tokens
    lengths = np.ones(len(trainer.train_dataset)) if sampler.lengths is None else sampler.lengths
    share = sum(lengths[rows].sum() for rows in steps_rows) / (lengths.mean() * sum(sampler.sizes))
    minutes_of_epoch = distributed.gather(float(seconds / share / 60))[0]
    del trainer
    gc.collect()  # the model
    epochs = round(minutes / minutes_of_epoch, 4)
    if "num_train_epochs" in defaults.unset_names(recipe, settings.training):
        epochs = min(epochs, settings.values.num_train_epochs)
    settings = with_epochs(settings, epochs)
    steps = count_steps(settings, recipe.training_rows)
    timed = f"by {_TIMED} steps an epoch takes {minutes_of_epoch:.3g} minutes without evaluations"
    activity.say(f"--max_minutes {minutes:g}: {timed}: --num_train_epochs {epochs:g}")
    if steps <= (step := prepared.resumption.step):
        raise UserError(
            f"--max_minutes {minutes:g} fits {steps:,} steps, {step:,} are trained: give more "
            "minutes"
        )
    configuration = {**prepared.configuration, "num_train_epochs": epochs, "max_steps": -1}
    return replace(prepared, settings=settings, steps=steps, configuration=configuration)
