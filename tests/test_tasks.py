"""Every kind of task has the same losses and outputs however it is launched.

One table has a column for each task. All that several processes do is done by one group of workers
of each size, see `observe`.
"""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from finetune import ImageRecipe, TextRecipe
from finetune.runtime import distributed
from tests.warm import in_warm_processes

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.trains]
STEPS = 4
TRAINING: dict[str, Any] = dict(
    max_steps=STEPS,
    global_batch_size=12,
    learning_rate=3e-3,
    logging_steps=1,
    precision="fp32",
    save_strategy="no",
    eval_strategy="no",
    load_best_model_at_end=False,
    disable_tqdm=True,
)
WITHOUT_DROPOUT: dict[str, Any] = dict(hidden_dropout=0.0, attention_dropout=0.0)
#: By name: the options of the recipe, then those of the training.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "single label": (dict(label_column="verdict"), {}),
    "several labels": (dict(label_column="tags", label_separator=";"), {}),
    "several labels, weighted": (
        dict(label_column="tags", label_separator=";", class_weights="balanced"),
        {},
    ),
    "columns of 0 and 1": (dict(label_columns="is_good,is_long", task="multi_label"), {}),
    "a number": (dict(label_column="share", task="regression"), {}),
    "two numbers": (
        dict(label_columns="share,words", task="regression", loss_function="huber"),
        {},
    ),
    "ordered": (dict(label_column="stars", task="ordinal", loss_function="soft"), {}),
    "ordered, earth mover": (
        dict(label_column="stars", task="ordinal", loss_function="emd"),
        {},
    ),
    "weights": (dict(label_column="rare", class_weights="balanced"), {}),
    "focal": (dict(label_column="rare", loss_function="focal"), {}),
    "weights, smoothed": (
        dict(label_column="rare", class_weights="many=1,few=7"),
        dict(label_smoothing_factor=0.2),
    ),
    "sampling": (dict(label_column="rare"), dict(class_sampling="balanced")),
    "sampling, by length": (
        dict(label_column="rare"),
        dict(class_sampling="balanced", train_sampling_strategy="group_by_length"),
    ),
    "a pair": (dict(label_column="verdict", text_columns="text,second"), {}),
    "three texts": (dict(label_column="verdict", text_columns="text,second,title"), {}),
    "both ends": (dict(label_column="verdict", truncation="head_tail"), {}),
    "windows": (dict(label_column="verdict", long_texts="windows"), {}),
    "windows, maximum": (
        dict(label_column="tags", label_separator=";", long_texts="windows", pooling="max"),
        {},
    ),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = []
    for number in range(96):
        good, words = number % 2, 1 + number % 13
        text = f"place {number} was " + " ".join([("dull", "fine")[good]] * words)
        rows.append(
            {
                "text": text,
                "second": f"number {number} had {('bland', 'great')[number % 3 % 2]} food",
                "title": f"review {number}",
                "verdict": ("bad", "good")[good],
                "tags": ";".join(
                    [("bad", "good")[good]] + ["long"] * (words > 7) + ["third"] * (words % 3)
                ),
                "is_good": good,
                "is_long": int(words > 7),
                "share": good / words,
                "words": float(words),
                "stars": 1 + number % 5,
                "rare": ("many", "few")[number % 8 == 0],
            }
        )
    path = tmp_path_factory.mktemp("data") / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def observe(sources: dict[str, str], directory: str, accumulation: int) -> dict[str, Any]:
    """The losses of the steps and of the test rows, and the outputs for these, of every case."""
    found = {}
    text = dict(dataset=sources["table"], model=sources["model"], max_length=16)
    for name, (options, training) in CASES.items():
        given = {"text_column": "text", **options}
        if "text_columns" in options:
            del given["text_column"]
        found[name] = _trained(
            TextRecipe(**text, **WITHOUT_DROPOUT, **given),
            directory,
            accumulation,
            training,
        )
    images = ImageRecipe(dataset=sources["photos"], model=sources["vit"])
    found["images"] = _trained(images, directory, accumulation, {})
    distributed.leave()
    return found


def _trained(recipe: Any, directory: str, accumulation: int, training: dict[str, Any]) -> Any:
    gc.freeze()  # the library looks for garbage after each training, through all imports
    own = {"gradient_accumulation_steps": accumulation, **training}
    trainer = recipe.trainer(**TRAINING, **own, output_dir=directory)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    output = trainer.predict(recipe.prepared["test"])
    return [*losses, output.metrics["test_loss"]], np.asarray(output.predictions)


@pytest.fixture(scope="module")
def sources(table: Path, tiny_model: str, photos: Path, vit: str) -> dict[str, str]:
    return {"table": str(table), "model": tiny_model, "photos": str(photos), "vit": vit}


@pytest.fixture(scope="module")
def one(sources: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process sees."""
    torch.manual_seed(0)
    found = observe(sources, str(tmp_path_factory.mktemp("one")), 1)
    assert len({round(losses[0], 6) for losses, _ in found.values()}) > 10  # they are different
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("processes", "accumulation"),
    [(2, 1), *(pytest.param(*wider, marks=pytest.mark.slow) for wider in ((1, 2), (2, 2), (3, 2)))],
)
def test_every_launch_gives_the_same_results(
    processes: int, accumulation: int, sources: dict[str, str], one: dict[str, Any], tmp_path: Path
) -> None:
    words = (sources, str(tmp_path), accumulation)
    found = observe(*words) if processes == 1 else in_warm_processes(processes, observe, *words)[-1]
    assert found.keys() == one.keys()
    for name, (losses, outputs) in found.items():
        assert len(losses) == STEPS + 1
        gaps = [
            np.abs(np.subtract(*each)).max() for each in zip(found[name], one[name], strict=True)
        ]
        print(f"{name}: losses {gaps[0]:.1e}, outputs {gaps[1]:.1e}")
        assert max(gaps) < 1e-5 * max(1.0, np.abs(outputs).max()), (name, gaps)
