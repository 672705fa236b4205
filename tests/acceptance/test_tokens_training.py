"""Words with labels: adapters, frozen layers, minutes, a refit, seeds and a search (rows G1 to G4
and G7), a resume (D5), and a tracker (H4).
"""

# ruff: noqa: F811

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification

import finetune
from tests.acceptance import data
from tests.acceptance.conftest import LENGTH, TRAINING, Finished, flags, once
from tests.acceptance.test_budget import TIMED
from tests.acceptance.test_tokens import chunks, spans
from tests.acceptance.test_tracking import in_tensorboard
from tests.acceptance.test_training import (
    Train,
    assert_identical,
    faulty,  # noqa: F401
    train,  # noqa: F401
    typed_again,
)

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
Cli = Callable[..., Finished]
FAULTY_WORDS = Path(__file__).with_name("faulty_words.py")
#: True and predicted entities that are equal, true ones, and predicted ones.
Counts = tuple[int, int, int]


@pytest.fixture(scope="session")
def few_sentences(shared_directory: Path) -> Path:
    """A CoNLL file of 80 sentences."""
    return once(shared_directory / "few.conll", lambda path: data.write_conll(path, 80))


@pytest.fixture
def options(few_sentences: Path, bert: Path) -> dict[str, Any]:
    words = dict(dataset=str(few_sentences), model=str(bert), max_length=LENGTH, baseline=False)
    return TRAINING | words | dict(num_train_epochs=1)


def f1_of(counts: np.ndarray) -> float:
    """Return F1 from the counts of rows, shape `(rows, 3)`."""
    right, true, predicted = counts.sum(axis=0)
    return float(2 * right / max(1, true + predicted))


def f1_of_run(run: finetune.Run) -> float:
    counts = []
    for row in run.predictions.itertuples():
        sets = set(spans(row.label)), set(spans(row.prediction))
        counts.append((len(sets[0] & sets[1]), *map(len, sets)))
    return f1_of(np.array(counts))


@pytest.mark.contract("D5", "D7", "G1", "H4")
def test_an_adapter_of_words_resumes_to_the_bit(
    train: Train, cli: Cli, sentences: Path, bert: Path, tmp_path: Path
) -> None:
    """Also its curves. The merged model and the adapter over its base are the same."""
    more: dict[str, Any] = dict(dataset=sentences, max_length=LENGTH, train_samples=144)
    more |= dict(adapter="lora", report_to="tensorboard")
    words = flags(**more, load_best_model_at_end="false")
    stopped = train(tmp_path / "run", *words, fault="step 10,SIGTERM", recipe=FAULTY_WORDS)
    assert stopped.status == 75, stopped.output
    resumed = cli(*typed_again(stopped)).succeeded()
    assert "checkpoint-10" in resumed.output
    train(tmp_path / "whole", *words, recipe=FAULTY_WORDS).succeeded()
    assert_identical(tmp_path / "run", tmp_path / "whole")
    run = finetune.Run.load(tmp_path / "run")
    curves, parameters = in_tensorboard(run.path)
    for name in ("loss", "eval_f1", "eval_token_accuracy"):
        history = [(entry["step"], entry[name]) for entry in run.manifest.history if name in entry]
        assert len(history) > 2
        assert curves[name] == [(step, pytest.approx(value)) for step, value in history], name
    interval = run.statistics.metrics["f1"]
    assert interval["value"] == pytest.approx(f1_of_run(run))
    assert curves["test_f1_low"][-1] == (run.manifest.steps, pytest.approx(interval["low"]))
    assert '"learning_rate": 0.003' in parameters
    tracked = b"".join(path.read_bytes() for path in (run.path / "tensorboard").iterdir())
    assert not [text for text in run.predictions["text"] if text.encode() in tracked]

    names = len(run.labels)
    base: Any = AutoModelForTokenClassification.from_pretrained(
        run.manifest.options["model"], num_labels=names
    )
    before = {name: value.clone() for name, value in base.state_dict().items()}
    weights = load_file(run.path / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], weights[name])}
    layers = {name for name in before if ".layer." in name and before[name].dim() == 2}
    assert moved == layers | {"classifier.weight", "classifier.bias"}
    merged: Any = PeftModel.from_pretrained(base, str(run.path / "adapter")).merge_and_unload()
    for name, value in merged.state_dict().items():
        torch.testing.assert_close(value, weights[name], atol=1e-6, rtol=0)


@pytest.mark.contract("G1", "G7", "B6", "E5")
def test_a_refit_of_words_after_early_stopping_with_frozen_layers(
    options: dict[str, Any], bert: Path, tmp_path: Path
) -> None:
    """No epoch is better than the first: the second is the last, and the refit has the steps of
    the first for each row.
    """
    options |= dict(freeze="1", early_stopping_patience=1, refit=True, learning_rate=1e-8)
    options |= dict(num_train_epochs=5, metric_for_best_model="f1", global_batch_size=6)
    run = finetune.train("tokens", output_dir=str(tmp_path / "run"), **options)
    rows = run.manifest.data.rows
    of_epoch = len(run.recipe().prepared["train"]) // options["global_batch_size"]  # with windows
    assert (run.manifest.best_step, run.manifest.steps) == (of_epoch, 2 * of_epoch)
    refit = finetune.Run.load(run.path / "refit")
    both = rows["train"] + rows["validation"]
    assert refit.manifest.steps == round(of_epoch * both / rows["train"]) > of_epoch
    assert "not scored" in str(refit.manifest.not_scored)
    base = AutoModelForTokenClassification.from_pretrained(bert, num_labels=len(run.labels))
    for path in (run.path, refit.path):
        weights = load_file(path / "model.safetensors")
        moved = {n for n, v in base.state_dict().items() if not torch.equal(v, weights[n])}
        assert any(".layer.1." in name for name in moved)
        assert not [name for name in moved if re.search(r"embeddings|\.layer\.0\.", name)]
    dish = {"start": 0, "end": 3, "label": "dish"}
    texts = run.recipe().splits["validation"]["text"][:]
    evaluation = finetune.evaluate(refit.path, [{"text": text, "spans": [dish]} for text in texts])
    assert evaluation.rows_trained_on == rows["validation"]
    assert finetune.predict(refit.path, ["the service was great"])["entities"].notna().all()


@pytest.mark.contract("G4")
def test_words_train_as_many_epochs_as_fit_into_the_minutes(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    del options["num_train_epochs"]
    words = flags(**options, max_minutes=0.01, output_dir=tmp_path / "run")
    result = cli("tokens", *words).succeeded()
    ((minutes, epochs),) = TIMED.findall(result.stdout)
    assert float(epochs) == pytest.approx(0.01 / float(minutes), rel=0.006)
    arguments = finetune.Run.load(tmp_path / "run").manifest.arguments
    assert arguments["num_train_epochs"] == pytest.approx(float(epochs), rel=1e-5)


@pytest.mark.contract("G2", "E6")
def test_seeds_of_words_have_the_mean_of_their_scores(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    words = ["repeat", "tokens", *flags(**options), "--seeds", 3, "--output_dir", tmp_path / "a"]
    printed = cli(*words).succeeded().stdout
    runs = finetune.RunSet.load(tmp_path / "a").runs
    texts = [run.predictions["text"].tolist() for run in runs]
    assert texts[0] == texts[1] == texts[2]
    scores = [f1_of_run(run) for run in runs]
    assert scores == pytest.approx([run.metrics.test["f1"] for run in runs])
    assert len(set(scores)) > 1
    line = next(line for line in printed.splitlines() if line.startswith("  mean"))
    mean, low, high = map(float, re.findall(r"\d\.\d+", line)[:3])
    assert mean == pytest.approx(np.mean(scores), abs=1e-4)
    assert low < min(scores) <= max(scores) < high
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    compared = cli("compare", tmp_path / "a", tmp_path / "b").succeeded()
    assert "is not better than" in compared.stdout


def counts_of_rows(labels: np.ndarray, tags: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the :data:`Counts` of rows, whose words are separated by the label -100."""
    counts: list[Counts] = []
    true: list[str] = []
    predicted: list[str] = []
    for label, tag in zip(labels, tags, strict=True):
        if label == -100:
            entities = chunks(true), chunks(predicted)
            counts.append((len(entities[0] & entities[1]), *map(len, entities)))
            true, predicted = [], []
        else:
            true.append(names[label])
            predicted.append(names[tag])
    return np.array(counts)


@pytest.mark.contract("G3")
def test_a_search_of_words_is_judged_by_entities_of_validation_rows(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    del options["learning_rate"]
    words = ["search", "tokens", *flags(**options), "--space", "learning_rate=1e-3..1e-2:log"]
    words += ["--trials", 3, "--output_dir", tmp_path / "s"]
    cli(*words).succeeded()
    manifest = json.loads((tmp_path / "s" / "set.json").read_text())
    counts, scores = {}, {}
    for run in finetune.RunSet.load(tmp_path / "s").runs:
        with np.load(run.path / "validation.npz") as arrays:
            tags = arrays["outputs"].argmax(axis=1)
            counts[run.path.name] = counts_of_rows(arrays["labels"], tags, run.labels)
        scores[run.path.name] = f1_of(counts[run.path.name])
        evaluated = [entry["eval_f1"] for entry in run.manifest.history if "eval_f1" in entry]
        assert max(evaluated) == pytest.approx(scores[run.path.name])
    assert scores[manifest["winner"]] == max(scores.values())
    tested = [path.parent.name for path in (tmp_path / "s").glob("*/metrics.json")]
    assert tested == [manifest["winner"]]
    best = finetune.Run.load(tmp_path / "s" / manifest["winner"])
    assert best.metrics.test["f1"] == pytest.approx(f1_of_run(best))
    generator, held_out = np.random.default_rng(1), []
    arrays_of_runs = list(counts.values())
    every = np.arange(len(arrays_of_runs[0]))
    for _ in range(400):  # bootstrap bias-corrected cross-validation, by sentence
        sample = generator.choice(every, len(every))
        chosen = max(arrays_of_runs, key=lambda part: f1_of(part[sample]))
        held_out.append(f1_of(chosen[np.setdiff1d(every, sample)]))
    optimism = max(scores.values()) - float(np.mean(held_out))
    assert manifest["optimism"] == pytest.approx(optimism, abs=0.04)
