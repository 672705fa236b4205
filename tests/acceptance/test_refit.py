"""A second training on all rows, after the run is scored (row G7)."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline

import finetune
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import Finished, flags, once

OPTIONS: dict[str, Any] = dict(
    label_separator=";",
    max_length=32,
    learning_rate=1e-6,  # no epoch is better than the first
    num_train_epochs=4,
    global_batch_size=16,
    precision="fp32",
    baseline=False,
    disable_tqdm=True,
)


def write_splits(directory: Path, **rows: pd.DataFrame) -> str:
    directory.mkdir()
    for name, frame in rows.items():
        frame.to_csv(directory / f"{name}.csv", index=False)
    return str(directory)


@pytest.fixture(scope="session")
def frames() -> dict[str, pd.DataFrame]:
    """Splits of 150, 30, 40 and 10 rows with one or two labels each."""
    draw = random.Random(5)
    rows = []
    for text, label in data.labelled_sentences(230):
        rows.append({"text": text, "label": label + ";long" * (draw.random() < 0.3)})
    table = pd.DataFrame(rows)
    ends = {"train": 150, "validation": 180, "test": 220, "others": 230}
    frames, first = {}, 0
    for name, end in ends.items():
        frames[name], first = table[first:end], end
    return frames


@pytest.fixture(scope="session")
def run(shared_directory: Path, frames: dict[str, pd.DataFrame], bert: Path) -> finetune.Run:
    """A run with its refit."""

    splits = {name: frames[name] for name in ("train", "validation", "test")}
    rows = once(shared_directory / "refit-rows", lambda path: write_splits(path, **splits))

    def train(path: Path) -> None:
        options = OPTIONS | dict(dataset=str(rows), model=str(bert))
        finetune.train("text", **options, refit=True, output_dir=str(path / "run"))

    return finetune.Run.load(once(shared_directory / "refit", train) / "run")


@pytest.mark.contract("G7")
def test_a_refit_is_a_training_on_all_rows(
    run: finetune.Run, frames: dict[str, pd.DataFrame], bert: Path, tmp_path: Path
) -> None:
    """With as many steps for each row as the best epoch, and the thresholds of the run."""
    rows = pd.concat([frames["train"], frames["validation"]])
    splits = dict(train=rows, validation=frames["others"], test=frames["test"])
    options = OPTIONS | dict(dataset=write_splits(tmp_path / "all", **splits), model=str(bert))
    steps = run.manifest.best_step
    assert steps is not None
    assert steps < run.manifest.steps
    options |= dict(max_steps=round(steps * 180 / 150), thresholds="none", eval_strategy="no")
    expected = finetune.train("text", **options, output_dir=str(tmp_path / "run"))
    refit = finetune.Run.load(run.path / "refit")
    assert refit.manifest.steps == expected.manifest.steps
    weights, reference = (load_file(each.path / "model.safetensors") for each in (refit, expected))
    assert weights.keys() == reference.keys()
    for name in weights.keys() - {"classifier.bias"}:
        assert torch.equal(weights[name], reference[name]), name
    thresholds = np.array([run.statistics.thresholds[label] for label in run.labels])
    bias = reference["classifier.bias"].numpy() + np.log(1 / thresholds - 1)
    assert np.abs(np.log(1 / thresholds - 1)).max() > 1e-4
    np.testing.assert_allclose(weights["classifier.bias"].numpy(), bias, atol=1e-6)


@pytest.mark.contract("G7")
def test_a_refit_says_that_it_is_not_scored(
    run: finetune.Run, frames: dict[str, pd.DataFrame], cli: Callable[..., Finished], tmp_path: Path
) -> None:
    """It predicts, and can be evaluated on other rows; what needs scores is refused."""
    refit = finetune.Run.load(run.path / "refit")
    sentence = "not scored; the scores of run are those of the training without the validation rows"
    assert json.loads((refit.path / "run.json").read_text())["not_scored"].startswith(sentence)
    finetune.report(refit)
    for name in ("README.md", "report.html"):
        assert sentence in (refit.path / name).read_text(), name
    assert str(run.path) not in (refit.path / "README.md").read_text()
    assert not (refit.path / "metrics.json").exists()
    assert not (refit.path / "predictions.parquet").exists()
    for words in (["compare", run.path, refit.path], ["compare", refit.path, run.path]):
        assert cli(*words).refused(sentence).stderr.count("\n") == 1
    refused = cli("evaluate", refit.path).refused(sentence, "type --data FILE")
    assert refused.stderr.count("\n") == 1
    assert sentence in cli("list", run.path).succeeded().stdout
    facts = json.loads(cli("list", run.path, "--json").succeeded().stdout)["runs"]["refit"]
    assert facts["status"] == "finished"
    assert facts["not_scored"].startswith(sentence)
    student = flags(dataset=run.manifest.options["dataset"], label_separator=";")
    student += ["--model", run.manifest.options["model"], "--teacher", refit.path, "--dry_run"]
    cli("text", *student).refused(f"{refit.path}: thresholds are part of this model")
    assert "model.safetensors" in cli("push", refit.path, "--repo", "a").succeeded().stdout
    texts = frames["test"]["text"].tolist()
    classify: Any = pipeline("text-classification", str(refit.path), top_k=None)
    answers = pd.DataFrame(
        [{each["label"]: each["score"] for each in row} for row in classify(texts)]
    )
    predicted = finetune.predict(refit, texts, all_probabilities=True, precision="fp32")
    for label in run.labels:
        np.testing.assert_allclose(predicted[f"probability of {label}"], answers[label], atol=1e-5)
    rows = pd.concat([frames["train"][:5], frames["validation"][:7], frames["test"]])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    counts = []
    for each in (run, refit):
        counts.append(finetune.evaluate(each, data=str(tmp_path / "rows.csv")).rows_trained_on)
    assert counts == [5, 12]


@pytest.mark.contract("G7")
@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["text", "--final_epochs", 2], "--final_epochs 2 trains the run on the validation rows"),
        (["text", "--max_minutes", 1], "--max_minutes is for one training"),
        (["text", "--lr_scheduler_type", "reduce_lr_on_plateau"], "needs evaluations"),
        (["repeat", "text"], "--refit: leave it out"),
        (["search", "text"], "--refit: leave it out"),
    ],
    ids=str,
)
def test_what_has_no_refit_is_refused(
    words: list[Any], fragment: str, run: finetune.Run, bert: Path, cli: Callable[..., Finished]
) -> None:
    verb, *more = words
    options = flags(dataset=run.manifest.options["dataset"], model=bert, label_separator=";")
    if verb == "text":
        more.append("--dry_run")
    cli(verb, *more, *options, "--refit").refused(fragment)


@pytest.mark.contract("G7")
def test_a_refit_after_the_run(
    reviews: Path, bert: Path, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """A finished run gets one by --resume, and another when it has more epochs. The default of
    final epochs is none with it. The data may not change between the two trainings.
    """
    file = tmp_path / "reviews.csv"
    file.write_bytes(reviews.read_bytes())
    recipe = Text(dataset=str(file), model=str(bert))
    assert recipe.training_defaults({}, is_loaded=True)["final_epochs"] == 3
    assert "final_epochs" not in recipe.training_defaults({"refit": True}, is_loaded=True)
    with pytest.raises(finetune.UserError, match="refit: a trainer does not have it"):
        recipe.trainer(refit=True)
    options = OPTIONS | dict(dataset=str(file), model=str(bert), label_separator=None)
    options |= dict(output_dir=str(tmp_path / "run"), load_best_model_at_end=False)
    options |= dict(num_train_epochs=1, head="random", class_weights="balanced")
    run = finetune.train("text", **options)
    events: list[Any] = []
    again = finetune.train("text", **options, refit=True, resume=True, progress=events.append)
    (start,) = (event for event in events if str(event).startswith("training "))
    assert len(start.settings.recipe.splits["train"]) == 192
    assert again.manifest.finished == run.manifest.finished
    refit = finetune.Run.load(run.path / "refit")
    assert refit.manifest.steps == round(10 * 192 / 173)
    assert refit.manifest.temperature == run.manifest.temperature is not None
    more = options | dict(num_train_epochs=2)
    finetune.train("text", **more, refit=True, resume=True)
    assert finetune.Run.load(run.path / "refit").manifest.steps == round(20 * 192 / 173)
    assert finetune.Run.load(run.path / "refit.1").manifest.steps == round(10 * 192 / 173)
    rows = pd.read_csv(file)
    rows.assign(text=rows["text"] + " again").to_csv(file, index=False)
    with pytest.raises(finetune.UserError, match="the data has changed since run was trained"):
        finetune.train("text", **more, refit=True, resume=True, allow_changed="data")
