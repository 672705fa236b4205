"""Numbers as labels from the command line to ``pipeline()``, in the units of the data."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import finetune
from finetune import Run, UserError
from finetune.models import head
from finetune.training.checkpoint import list_checkpoints
from tests import number_runs
from tests.number_runs import options, table, trained

pytestmark = pytest.mark.trains


def names(run: Run) -> list[str]:
    """The columns of predictions."""
    return [f"prediction of {name}" for name in run.labels] or ["prediction"]


def of_directory(directory: Path, texts: list[str]) -> np.ndarray:
    """What ``from_pretrained`` alone returns."""
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained().path)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        return np.asarray(model(**batch).logits.numpy())


@pytest.mark.parametrize("several", [False, True])
def test_a_run_is_in_the_units_of_the_data(several: bool) -> None:
    run = trained(several)
    found, rows = run.predictions, pd.read_csv(table())
    labels = ["label of score", "label of weight"] if several else ["label"]
    targets = ["score", "weight"] if several else ["score"]
    assert [*found][3 : 3 + 2 * len(labels)] == [*labels, *names(run)]
    np.testing.assert_allclose(found[labels], rows.loc[found["id"], targets], rtol=1e-6)
    error = np.abs(found[names(run)].to_numpy() - found[labels].to_numpy())
    assert run.metrics.test["mae"] == pytest.approx(error.mean(axis=0).mean())
    assert run.statistics.metrics["mae"]["value"] == pytest.approx(run.metrics.test["mae"])
    assert run.statistics.metrics["r2"]["low"] > 0
    facts = run.manifest.task_facts
    standard = (error / facts["deviation"]) ** 2
    assert run.metrics.test["loss"] == pytest.approx(standard.mean(), rel=1e-4)
    first = next(entry["loss"] for entry in run.manifest.history if "loss" in entry)
    assert 0.5 < first < 1.5  # what the mean has
    chosen = run.manifest.arguments
    assert chosen["metric_for_best_model"] == "r2"
    assert chosen["greater_is_better"] is True


@pytest.mark.parametrize("several", [False, True])
def test_what_is_saved_needs_nothing_but_from_pretrained(several: bool) -> None:
    run = trained(several)
    found = run.predictions
    saved = of_directory(run.path, found["text"].tolist())
    np.testing.assert_allclose(saved, found[names(run)], rtol=1e-5)
    assert json.loads((run.path / "config.json").read_text())["problem_type"] == "regression"
    for checkpoint in list_checkpoints(run.path):
        values = of_directory(checkpoint, found["text"].tolist())
        assert abs(values[:, 0].mean() - number_runs.CENTER) < number_runs.UNIT


@pytest.mark.parametrize("several", [False, True])
def test_predict_evaluate_and_pipeline_agree(several: bool, tmp_path: Path) -> None:
    run, rows = trained(several), pd.read_csv(table()).iloc[:40]
    said = finetune.predict(run, rows, text_column="text")
    texts = rows["text"].tolist()
    np.testing.assert_allclose(said[names(run)], of_directory(run.path, texts), rtol=1e-4)
    classify = pipeline("text-classification", model=str(run.path), tokenizer=str(run.path))
    each = classify(texts, top_k=None)
    scores = [{one["label"]: one["score"] for one in row} for row in each]
    piped = [[row[name] for name in run.labels or ["LABEL_0"]] for row in scores]
    np.testing.assert_allclose(said[names(run)], piped, rtol=1e-4)
    own = finetune.evaluate(run)
    for name, value in own.metrics.items():
        assert value == pytest.approx(run.metrics.test[name], rel=1e-4), name
    rows.to_csv(other := tmp_path / "other.csv", index=False)
    reading = {"label_columns": "score,weight"} if several else {"label_column": "score"}
    found = finetune.evaluate(run, other, **reading)
    assert found.statistics is not None
    labels = rows[["score", "weight"]] if several else rows[["score"]]
    error = said[names(run)].to_numpy() - labels.to_numpy()
    assert found.metrics["mae"] == pytest.approx(np.abs(error).mean(axis=0).mean(), rel=1e-4)
    standard = (error / run.manifest.task_facts["deviation"]) ** 2
    assert found.metrics["loss"] == pytest.approx(standard.mean(), rel=1e-3)


def test_the_report_shows_the_errors() -> None:
    for several, plots in ((False, ["predictions"]), (True, ["predictions_1", "residuals_2"])):
        run = trained(several)
        page = (run.path / "report.html").read_text(encoding="utf-8")
        for name in plots:
            assert (run.path / "plots" / f"{name}.png").exists()
        assert ("Each target by itself" in page) == several
        assert "undefined" in page  # the correlation of the mean
        assert ">nan<" not in page
        assert "Fine-tuning" in page


@pytest.mark.usefixtures("without_report")
def test_runs_are_compared(tmp_path: Path) -> None:
    other = finetune.train(
        "text",
        **options(label_column="score", output_dir=str(tmp_path / "other"), max_steps=10),
    )
    found = finetune.compare([trained(), other], tmp_path / "compare.html")
    assert set(found.headline) == {"r2", "mae", "rmse", "pearson", "spearman"}
    gap = found.differences[0]["r2"]
    assert gap["low"] < gap["value"] < gap["high"]
    own = other.metrics.test["r2"] - trained().metrics.test["r2"]
    assert gap["value"] == pytest.approx(own, abs=1e-6)


@pytest.mark.usefixtures("without_report")
def test_a_resumed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    run, copied = trained(), tmp_path / "run"
    shutil.copytree(run.path, copied)
    middle = list_checkpoints(copied)[-1]
    Run(copied).update(status="interrupted")
    again = finetune.train(
        "text",
        **options(label_column="score", output_dir=str(copied), resume_from_checkpoint=str(middle)),
    )
    assert again.manifest.steps_before == int(middle.name.partition("-")[2])
    pd.testing.assert_frame_equal(again.predictions, run.predictions)


def test_a_trainer_of_a_notebook_saves_the_units_of_the_data(tmp_path: Path) -> None:
    from finetune.recipe import catalog

    recipe = catalog.find("text")(
        dataset=str(table()),
        model=str(number_runs.tiny_bert()),
        text_column="text",
        label_column="score",
        max_length=16,
    )
    trainer = recipe.trainer(max_steps=3, output_dir=str(tmp_path / "run"), disable_tqdm=True)
    trainer.train()
    assert trainer.model is not None
    assert head.scaled(head.last_linear(trainer.model, 1)) is not None
    outputs = trainer.predict(recipe.prepared["test"]).predictions
    trainer.save_model(str(tmp_path / "saved"))
    texts = recipe.splits["test"]["text"][:]
    np.testing.assert_allclose(of_directory(tmp_path / "saved", texts), outputs, rtol=1e-5)
    assert abs(outputs.mean() - number_runs.CENTER) < number_runs.UNIT


def test_losses_and_their_names(tmp_path: Path) -> None:
    run = finetune.train(
        "text",
        **options(
            label_column="score",
            output_dir=str(tmp_path),
            max_steps=2,
            loss_function="mae",
            metrics="mae,r2",
        ),
    )
    found = run.predictions
    error = np.abs(found["prediction"] - found["label"]) / run.manifest.task_facts["deviation"][0]
    assert run.metrics.test["loss"] == pytest.approx(error.mean(), rel=1e-4)
    assert run.manifest.arguments["metric_for_best_model"] == "mae"
    assert run.manifest.arguments["greater_is_better"] is False


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"loss_function": "focal"}, "--loss_function focal: a task of regression has mse, mae"),
        ({"metrics": "accuracy"}, "--metrics accuracy: a metric of classes, and the labels are"),
        ({"metrics": "r2,pearsen"}, "no metric 'pearsen'"),
        ({"label_map": "1=a"}, "--label_map: the labels are numbers"),
        ({"label_columns": "score,wieght"}, "--label_columns: no column 'wieght'"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
    ],
)
def test_what_cannot_be_is_refused(others: dict[str, object], message: str) -> None:
    labels = {} if "label_columns" in others else {"label_column": "score"}
    with pytest.raises(UserError) as caught:
        finetune.train("text", **options(**labels, **others))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("inf", "a value that is not a finite number in 'score' ('inf'): lines 4, 11"),
        ("n/a", "a value that is not a finite number in 'score' ('n/a'): lines 4, 11"),
        ("", "without a label in 'score': lines 4, 11"),
        ("nan", "a value that is not a finite number in 'score' ('nan'): lines 4, 11"),
    ],
)
def test_bad_targets_are_named_by_their_lines(bad: str, message: str, tmp_path: Path) -> None:
    rows = pd.read_csv(table(), dtype=str, keep_default_na=False)
    rows.loc[[2, 9], "score"] = bad
    rows.to_csv(path := tmp_path / "bad.csv", index=False)
    with pytest.raises(UserError) as caught:
        finetune.train(
            "text", **options(dataset=str(path), label_column="score", task="regression")
        )
    assert f"2 of 240 train rows {'with ' * bool(bad)}{message}" in str(caught.value)
