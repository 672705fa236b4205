"""Trainings to measure: the stock script's and ours, of the same rows, batch and steps."""

import math
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
#: Sets of texts, and the tokens that they are truncated to.
LONG, SHORT = ("embedded:imdb", 256), ("embedded:rotten-tomatoes", 64)
#: The recipes that read them.
RECIPES = {"embedded:imdb": "yelp", "embedded:rotten-tomatoes": "sentiment"}
EPOCH: dict[str, Any] = dict(num_train_epochs=1, learning_rate=1e-4)
MODEL = "embedded:minilm"
VALIDATED = 500  # rows at most


def recipe_of(data: str, max_length: int) -> Any:
    """Return the recipe over a set of texts, as a user would have it."""
    return recipe_over(
        RECIPES[data],
        dataset=data,
        model=MODEL,
        max_length=max_length,
        text_column="text",
        label_column="label",
    )


def recipe_over(name: str, **options: Any) -> Any:
    """Return a recipe with these options, which prints nothing."""
    import datasets
    import transformers

    from finetune.cli import console
    from finetune.recipe import catalog

    console.quiet()
    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()
    return catalog.find(name)(**options)


def drawn(rows: Any, count: int) -> Any:
    """So many of the rows, the same ones each time; they lie sorted by class."""
    import numpy as np

    return rows.select(np.random.default_rng(0).permutation(len(rows))[:count])


def of_stock(
    data: str, max_length: int, batch: int, steps: int, padded: bool = False
) -> Callable[[], float]:
    """Return the steps of the tutorial's script; its loss over them."""
    trainer = _stock(
        recipe_of(data, max_length),
        batch * steps,
        padded,
        per_device_train_batch_size=batch,
        max_steps=steps,
    )
    return lambda: float(trainer.train().training_loss)


def of_ours(
    data: str, max_length: int, batch: int, steps: int, **more: Any
) -> Callable[[], tuple[float, float]]:
    """Return the same of the toolkit, with the defaults of the recipe and ``more``.

    Returns:
        What trains, and returns seconds of the steps, and of those in which rows were counted,
        gradients exchanged, and other processes waited for.
    """
    trainer = ours(
        recipe_of(data, max_length), batch * steps, global_batch_size=batch, max_steps=steps, **more
    )

    def turn() -> tuple[float, float]:
        trainer.train()
        return trainer.throughput.seconds, math.nan  # of the exchange nothing is measured

    return turn


def of_rank(rank: int, processes: int, port: int, *given: Any) -> Callable[[], tuple[float, float]]:
    """Return what :func:`of_ours` does, by one process of one core of a job.

    Args:
        rank: Of this process.
        processes: Of the job.
        port: Of this machine, at which they meet.
        *given: To :func:`of_ours`.
    """
    import os

    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"
    values = rank, rank, processes, processes, port, "127.0.0.1"
    if processes > 1:
        os.environ |= dict(zip(names, map(str, values), strict=True))
    return of_ours(*given, num_threads=1, use_cpu=True)


def scored_stock(data: str, max_length: int, rows: int, seed: int) -> float:
    """Accuracy of the tutorial's script on validation rows, after an epoch."""
    recipe = recipe_of(data, max_length)
    trainer = _stock(recipe, rows, per_device_train_batch_size=32, seed=seed, **EPOCH)
    return _accuracy(trainer, recipe)


def scored_ours(data: str, max_length: int, rows: int, seed: int) -> float:
    """Return the same of the toolkit, over the same rows."""
    recipe = recipe_of(data, max_length)
    return _accuracy(ours(recipe, rows, global_batch_size=32, seed=seed, **EPOCH), recipe)


def prepared_by_stock(rows: int, max_length: int) -> Callable[[], int]:
    """Return the script's tokenization of so many reviews; how many there are."""
    from datasets import Dataset, disable_caching
    from transformers import AutoTokenizer

    from finetune.data import embedded
    from finetune.data.sources import Source

    disable_caching()
    texts = Dataset.from_dict(drawn(Source(LONG[0]).load()["train"], rows)[:])
    tokenizer = AutoTokenizer.from_pretrained(str(embedded.model_directory()))

    def turn() -> int:
        found = texts.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=max_length),
            batched=True,
        )
        return len(found)

    recipe_of(LONG[0], max_length)  # without progress bars
    return turn


def prepared_by_ours(rows: int, max_length: int) -> Callable[[], int]:
    """Return the same by a recipe, which looks for duplicates and for invalid rows, splits,
    and hashes the rows besides.
    """
    import dataclasses

    from datasets import DatasetDict, disable_caching

    from finetune.data.sources import Source

    disable_caching()
    recipe = recipe_of(LONG[0], max_length)
    read = DatasetDict(train=drawn(Source(LONG[0]).load()["train"], rows))

    def turn() -> int:
        fresh = dataclasses.replace(recipe)
        fresh.read = lambda: read
        return sum(map(len, fresh.prepared.values()))

    return turn


def until(way: str, accuracy: float, rows: int) -> Callable[[], float | None]:
    """Trainings with one seed after the other; each returns its seconds until an evaluation, every
    ten steps, finds that accuracy.

    Evaluations are not counted; None if an epoch ends before.
    """
    import itertools
    import time

    from transformers import TrainerCallback

    recipe, seeds = recipe_of(*SHORT), itertools.count(1)
    found: list[float] = []

    class Clock(TrainerCallback):
        """Runs while steps are made."""

        def __init__(self) -> None:
            self.seconds, self.began = 0.0, 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.seconds += time.perf_counter() - self.began
            control.should_evaluate = state.global_step % 10 == 0

        def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if others["metrics"]["eval_accuracy"] >= accuracy:
                found.append(self.seconds)
                control.should_training_stop = True

    def turn() -> float | None:
        found.clear()
        seed = next(seeds)
        if way == "stock":
            trainer = _stock(recipe, rows, per_device_train_batch_size=32, seed=seed, **EPOCH)
            trainer.compute_metrics = recipe.compute_metrics
        else:
            trainer = ours(recipe, rows, global_batch_size=32, seed=seed, **EPOCH)
        trainer.eval_dataset = drawn(recipe.prepared["validation"], VALIDATED)
        trainer.add_callback(Clock())
        trainer.train()
        return found[0] if found else None

    return turn


def _stock(recipe: Any, rows: int, padded: bool = False, **arguments: Any) -> Any:
    import stock
    from datasets import Dataset

    from finetune.data import embedded

    train = drawn(recipe.splits["train"], rows)
    return stock.trainer(
        str(embedded.model_directory()),
        Dataset.from_dict({"text": train["text"][:], "label": train["label"][:]}),
        recipe.max_length,
        padded,
        output_dir=tempfile.mkdtemp(),
        **QUIET,
        **arguments,
    )


def ours(recipe: Any, rows: int, **training: Any) -> Any:
    """Return the trainer of a recipe over so many of its rows."""
    from finetune.training.arguments import argument_values
    from finetune.training.trainer import build_trainer

    defaults = {**recipe.defaults(), "load_best_model_at_end": False}
    given = {"output_dir": tempfile.mkdtemp(), **QUIET, **training}
    arguments = argument_values(defaults, given).build()

    def parts() -> dict[str, Any]:
        found = recipe.trainer_kwargs()
        return {**found, "train_dataset": drawn(found["train_dataset"], rows)}

    return build_trainer(parts, arguments, recipe.adapt)


def _accuracy(trainer: Any, recipe: Any) -> float:
    import numpy as np

    trainer.train()
    output = trainer.predict(drawn(recipe.prepared["validation"], VALIDATED))
    return float((np.argmax(output.predictions, axis=1) == output.label_ids).mean())
