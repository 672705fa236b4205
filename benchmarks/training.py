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
EPOCH: dict[str, Any] = dict(num_train_epochs=1, learning_rate=1e-4)
MODEL = "embedded:minilm"
VALIDATED = 500  # rows at most


def recipe_of(data: str, max_length: int) -> Any:
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
    )


def drawn(rows: Any, count: int) -> Any:
    """So many of the rows, the same ones each time; they lie sorted by class."""
    import numpy as np

    return rows.select(np.random.default_rng(0).permutation(len(rows))[:count])


def of_stock(
    data: str, max_length: int, batch: int, steps: int, padded: bool = False
) -> Callable[[], float]:
    """The steps of the tutorial's script; its loss over them."""
    trainer = _stock(
        recipe_of(data, max_length),
        batch * steps,
        padded,
        per_device_train_batch_size=batch,
        max_steps=steps,
    )
    return lambda: float(trainer.train().training_loss)


def of_ours(data: str, max_length: int, batch: int, steps: int) -> Callable[[], float]:
    """The same of the toolkit, with the defaults of the recipe."""
    trainer = _ours(
        recipe_of(data, max_length), batch * steps, global_batch_size=batch, max_steps=steps
    )
    return lambda: float(trainer.train().training_loss)


def scored_stock(data: str, max_length: int, rows: int, seed: int) -> float:
    """Accuracy of the tutorial's script on validation rows, after an epoch."""
    recipe = recipe_of(data, max_length)
    trainer = _stock(recipe, rows, per_device_train_batch_size=32, seed=seed, **EPOCH)
    return _accuracy(trainer, recipe)


def scored_ours(data: str, max_length: int, rows: int, seed: int) -> float:
    """The same of the toolkit, over the same rows."""
    recipe = recipe_of(data, max_length)
    return _accuracy(_ours(recipe, rows, global_batch_size=32, seed=seed, **EPOCH), recipe)


def _stock(recipe: Any, rows: int, padded: bool = False, **arguments: Any) -> Any:
    import stock

    from finetune.data import embedded

    train = drawn(recipe.splits["train"], rows)
    return stock.trainer(
        str(embedded.model_directory()),
        {"text": train["text"][:], "label": train["label"][:]},
        recipe.max_length,
        padded,
        output_dir=tempfile.mkdtemp(),
        **QUIET,
        **arguments,
    )


def _ours(recipe: Any, rows: int, **training: Any) -> Any:
    from finetune.training.defaults import training_arguments
    from finetune.training.trainer import build_trainer

    defaults = {**recipe.defaults(), "load_best_model_at_end": False}
    arguments = training_arguments(
        defaults, {"output_dir": tempfile.mkdtemp(), **QUIET, **training}
    )

    def parts() -> dict[str, Any]:
        found = recipe.parts()
        return {**found, "train_dataset": drawn(found["train_dataset"], rows)}

    return build_trainer(parts, arguments)


def _accuracy(trainer: Any, recipe: Any) -> float:
    import numpy as np

    trainer.train()
    output = trainer.predict(drawn(recipe.prepared["validation"], VALIDATED))
    return float((np.argmax(output.predictions, axis=1) == output.label_ids).mean())
