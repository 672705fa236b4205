"""Trainings to measure: the stock script's and ours, of the same rows, batch and steps."""

import tempfile
from collections.abc import Callable
from typing import Any

#: Nothing but steps is timed.
QUIET: dict[str, Any] = dict(
    save_strategy="no",
    eval_strategy="no",
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
#: The sets of texts, by the recipe that reads them.
RECIPES = {"embedded:imdb": "yelp", "embedded:rotten-tomatoes": "sentiment"}
MODEL = "embedded:minilm"
VALIDATED = 500  # rows at most


def recipe_of(data: str, max_length: int, **options: Any) -> Any:
    """The recipe over a set of texts, as a user would have it."""
    import datasets
    import transformers

    from finetune import catalog
    from finetune.commands import console

    console.quiet()
    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()
    return catalog.find(RECIPES[data])(
        dataset=data,
        model=MODEL,
        max_length=max_length,
        text_column="text",
        label_column="label",
        **options,
    )


def of_stock(
    data: str, max_length: int, batch: int, steps: int, padded: bool = False
) -> Callable[[], float]:
    """The steps of the tutorial's script; its loss over them."""
    import stock

    from finetune.data import embedded

    rows = recipe_of(data, max_length).splits["train"].select(range(batch * steps))
    trainer = stock.trainer(
        str(embedded.model_directory()),
        {"text": rows["text"][:], "label": rows["label"][:]},
        max_length,
        padded,
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        max_steps=steps,
        **QUIET,
    )
    return lambda: float(trainer.train().training_loss)


def of_ours(
    data: str, max_length: int, batch: int, steps: int, **given: Any
) -> Callable[[], float]:
    """The same of the toolkit, with the defaults of the recipe but for ``given``."""
    from finetune.training.defaults import training_arguments
    from finetune.training.trainer import build_trainer

    recipe = recipe_of(data, max_length)
    defaults = {**recipe.defaults(), "load_best_model_at_end": False}
    place = {"output_dir": tempfile.mkdtemp(), "global_batch_size": batch, "max_steps": steps}
    arguments = training_arguments(defaults, {**place, **QUIET, **given})

    def parts() -> dict[str, Any]:
        found = recipe.parts()
        rows = found["train_dataset"].select(range(batch * steps))
        return {**found, "train_dataset": rows}

    trainer = build_trainer(parts, arguments)
    return lambda: float(trainer.train().training_loss)


def scored_stock(data: str, max_length: int, rows: int, seed: int) -> float:
    """Accuracy of the tutorial's script on validation rows, after an epoch."""
    import stock

    from finetune.data import embedded

    recipe = recipe_of(data, max_length)
    train = recipe.splits["train"].select(range(rows))
    trainer = stock.trainer(
        str(embedded.model_directory()),
        {"text": train["text"][:], "label": train["label"][:]},
        max_length,
        padded=False,
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        num_train_epochs=1,
        learning_rate=1e-4,
        seed=seed,
        **QUIET,
    )
    trainer.train()
    return _accuracy(trainer, recipe)


def scored_ours(data: str, max_length: int, rows: int, seed: int, **given: Any) -> float:
    """The same of the toolkit, over the same rows."""
    from finetune.training.defaults import training_arguments
    from finetune.training.trainer import build_trainer

    recipe = recipe_of(data, max_length)
    defaults = {**recipe.defaults(), "load_best_model_at_end": False}
    chosen = {
        "output_dir": tempfile.mkdtemp(),
        "global_batch_size": 32,
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "seed": seed,
    }
    arguments = training_arguments(defaults, {**chosen, **QUIET, **given})

    def parts() -> dict[str, Any]:
        found = recipe.parts()
        return {**found, "train_dataset": found["train_dataset"].select(range(rows))}

    trainer = build_trainer(parts, arguments)
    trainer.train()
    return _accuracy(trainer, recipe)


def _accuracy(trainer: Any, recipe: Any) -> float:
    import numpy as np

    rows = recipe.prepared["validation"]
    rows = rows.select(range(min(VALIDATED, len(rows))))
    output = trainer.predict(rows)
    return float((np.argmax(output.predictions, axis=1) == output.label_ids).mean())
