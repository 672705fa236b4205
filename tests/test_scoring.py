"""The metrics that a recipe declares, and those of `--metrics`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from transformers import EvalPrediction

import finetune
from finetune import TextClassification, UserError, cli
from finetune.recipe.scoring import Scoring, with_computed
from finetune.reporting import wording


@pytest.fixture
def outputs() -> EvalPrediction:
    generator = np.random.default_rng(0)
    return EvalPrediction(generator.normal(size=(60, 3)), generator.integers(3, size=60))


def test_averages_have_names_of_their_own(outputs: EvalPrediction) -> None:
    scores = Scoring.of_names("accuracy, f1,f1_micro,recall_weighted")(outputs)
    labels, predicted = outputs.label_ids, np.argmax(outputs.predictions, axis=-1)
    assert list(scores) == ["accuracy", "f1", "f1_micro", "recall_weighted"]
    for name, average in (("f1", "macro"), ("f1_micro", "micro")):
        expected = sklearn.metrics.f1_score(labels, predicted, average=average)
        assert scores[name] == pytest.approx(expected)
    expected = sklearn.metrics.recall_score(labels, predicted, average="weighted")
    assert scores["recall_weighted"] == pytest.approx(expected)


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError) as refused:
        Scoring.of_names("f1_makro")
    told = str(refused.value)
    assert told.startswith("--metrics: no metric 'f1_makro' in metrics/; did you mean 'f1_macro'?")
    assert "f1_weighted" in told


def test_metrics_of_the_command_line_are_reported_and_choose_the_checkpoint(
    reviews: Path, tiny_model: str, tmp_path: Path, without_report: None
) -> None:
    run = finetune.train(
        "sentiment",
        dataset=str(reviews),
        text_column="text",
        label_column="label",
        model=tiny_model,
        metrics="recall_micro,f1_weighted",
        metric_for_best_model="f1_weighted",
        max_steps=2,
        output_dir=str(tmp_path / "run"),
    )
    assert run.headline == ["f1_weighted", "recall_micro"]
    assert {"f1_weighted", "recall_micro"} <= run.statistics.metrics.keys()
    assert wording.directions(run.manifest)["recall_micro"] == 1
    assert wording.name("f1_weighted") == "F1 (weighted average)"
    assert finetune.evaluate(run).metrics["f1_weighted"] == run.metrics.test["f1_weighted"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--metrics", "accuracy"], None),  # chosen by the first, where that of the recipe lacks
        (["--metrics", "f1_macro,accuracy"], None),
        (
            ["--metrics", "accuracy", "--metric_for_best_model", "f1"],
            "--metric_for_best_model: the recipe computes no 'f1' (it computes: loss, accuracy)",
        ),
        (["--metrics", ","], "--metrics ',': expected names of metrics, accuracy,f1"),
    ],
)
def test_the_metric_for_the_best_model_is_among_them(
    reviews: Path,
    tiny_model: str,
    flags: list[str],
    told: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sentiment", "--dataset", str(reviews), "--model", tiny_model, "--dry_run"]
    words += ["--text_column", "text", "--label_column", "label", *flags]
    assert cli.main(words) == (0 if told is None else 2)
    assert (told or "") in capsys.readouterr().err


def test_the_first_of_the_named_metrics_chooses_the_model() -> None:
    class Own(TextClassification):
        metrics: str | None = "accuracy,f1"

    def chosen(recipe: TextClassification) -> object:
        return recipe.training_defaults()["metric_for_best_model"]

    assert chosen(TextClassification()) == "f1"
    assert chosen(TextClassification(metrics="accuracy,f1")) == "accuracy"
    assert chosen(Own()) == "f1"  # its training says so
    assert chosen(Own(metrics="recall_macro,f1")) == "recall_macro"


def test_metrics_of_a_recipe_of_its_own_are_declared() -> None:
    with pytest.raises(UserError, match=r'add `own_metrics = \("NAME", ...\)`'):

        class Silent(TextClassification):
            def compute_metrics(self, prediction: Any) -> dict[str, float]:
                return {"own": 1.0}

    class Declared(TextClassification):
        own_metrics = ("own",)

        def compute_metrics(self, prediction: Any) -> dict[str, float]:
            return {"own": 1.0}

    assert Declared().known_scoring == {}
    with pytest.raises(UserError, match="--metrics f1: the recipe computes its own"):
        Declared(metrics="f1")


@pytest.mark.parametrize(
    ("metrics", "asked", "computed"),
    [
        (None, "f1_macro", "f1"),
        (None, "eval_f1_macro", "eval_f1"),
        (None, "accuracy", "accuracy"),
        ("f1_macro,accuracy", "f1", "f1_macro"),
        ("f1_micro", "f1", "f1"),  # another mean: refused, as it is not computed
    ],
)
def test_the_metric_of_the_best_model_may_have_either_of_its_names(
    metrics: str | None, asked: str, computed: str
) -> None:
    recipe = TextClassification(metrics=metrics)

    given = with_computed({"metric_for_best_model": asked}, recipe.known_scoring)
    assert given["metric_for_best_model"] == computed
