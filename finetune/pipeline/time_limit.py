"""``--max_minutes``: as many epochs as the steps of a training fit into the time."""

from dataclasses import replace
from typing import Any

from transformers import PrinterCallback

from finetune.pipeline.events import Noted, Progress
from finetune.pipeline.preparation import Prepared, settle_schedule, with_epochs
from finetune.runtime import distributed
from finetune.training.trainer import build_trainer

_TIMED = 3  # steps, after a first one, in which memory is allocated and kernels are chosen
#: Training arguments of the steps that are timed: nothing is written, evaluated or tracked.
_ALONE: dict[str, Any] = dict(
    **dict(max_steps=1 + _TIMED, logging_strategy="steps", logging_steps=1, disable_tqdm=True),
    **dict(eval_strategy="no", save_strategy="no", load_best_model_at_end=False),
    **dict(report_to="none", push_to_hub=False, profile=None, early_stopping_patience=None),
)


def fit_epochs(prepared: Prepared, progress: Progress) -> Prepared:
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
        lambda: {**recipe.trainer_kwargs(), "callbacks": []},
        replace(settings, training={**settings.training, **_ALONE}).arguments,
        recipe.adapt,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    speeds = [row["rows_per_second"] for row in trainer.state.log_history if "loss" in row]
    rows_per_second = _TIMED / sum(1 / speed for speed in speeds[-_TIMED:])
    rows_per_second = distributed.gather(rows_per_second)[0]
    epochs = round(60 * minutes * rows_per_second / len(recipe.prepared["train"]), 4)
    settings, steps = settle_schedule(with_epochs(settings, epochs))
    progress(
        Noted(
            f"--max_minutes {minutes:g}: {_TIMED} steps took {rows_per_second:,.0f} samples/s, so "
            f"--num_train_epochs is {epochs:g}; evaluations come on top"
        )
    )
    configuration = {**prepared.configuration, "num_train_epochs": epochs}
    return replace(prepared, settings=settings, steps=steps, configuration=configuration)
