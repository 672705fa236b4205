"""Classes that have an order: how it is known, and what follows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from transformers import EvalPrediction

from finetune import TextRecipe, UserError
from finetune.errors import Report
from finetune.tasks import kinds

WORDS = ["low", "middle", "high"]


class Texts(TextRecipe):
    """Of a file."""

    dataset: str = ""


class Stars(Texts):
    """Whose classes have an order."""

    label_names = ("1 star", "2 stars", "3 stars")
    ordered_labels = True


def recipe(
    tmp_path: Path, labels: list[Any], kind: type[Texts] = Texts, **options: Any
) -> TextRecipe:
    rows = [f"text {number},{labels[number % len(labels)]}" for number in range(90)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return kind(dataset=str(path), **options)


def test_an_order_that_is_given_makes_the_task_ordinal(tmp_path: Path) -> None:
    made = recipe(tmp_path, WORDS, label_order="low, middle,high")

    assert made.kind.name == "ordinal"
    assert made.labels == WORDS
    assert made.task_reason == "--label_order says the order of the classes"


def test_numbers_are_in_their_order(tmp_path: Path) -> None:
    assert recipe(tmp_path, [10, 9, 2], task="ordinal").labels == ["2", "9", "10"]
    assert recipe(tmp_path, [10, 9, 2]).kind.name == "single_label"


def test_half_stars_are_classes_in_an_order(tmp_path: Path) -> None:
    made = recipe(tmp_path, [2.5, 1.0, 10.0, 1.5], task="ordinal")
    assert made.labels == ["1.0", "1.5", "2.5", "10.0"]
    features = Features({"text": Value("string"), "label": ClassLabel(names=["10.0", "1.5"])})
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    assert made.kind.matched(rows, "train", Report())["label"][:] == [3, 1]
    asked = recipe(tmp_path, [2.5, 1.0, 10.0, 1.5])
    assert asked.kind.name == "regression"
    assert asked.task_reason.endswith("; --task ordinal if they are grades")


def test_a_recipe_says_that_its_classes_have_an_order(tmp_path: Path) -> None:
    names = list(Stars.label_names)

    assert recipe(tmp_path, names, Stars).kind.name == "ordinal"
    assert recipe(tmp_path, names, Stars, task="single_label").kind.name == "single_label"
    assert recipe(tmp_path, names, task="single_label").kind.name == "single_label"


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (
            WORDS,
            dict(label_order="low,high"),
            "--label_order low,high: expected three classes or more, separated by commas",
        ),
        (
            WORDS,
            dict(label_order="low,low,high"),
            "--label_order low,low,high: 'low' stands there twice",
        ),
        (
            WORDS,
            dict(label_order="low,middle,high", task="single_label"),
            "--label_order low,middle,high: the classes of --task single_label have no order; use "
            "--task ordinal",
        ),
        (
            WORDS,
            dict(label_order="low,middle,high", loss_function="focal"),
            "--loss_function focal: a task of ordinal has cross_entropy, soft, emd",
        ),
    ],
)
def test_an_order_that_is_not_one_is_refused(
    labels: list[Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        _ = recipe(tmp_path, labels, **options).kind
    assert list(error.value.mistakes) == [message]


def test_the_metrics_know_the_order(tmp_path: Path) -> None:
    made = recipe(tmp_path, WORDS, label_order="low,middle,high")
    task, labels = made.kind, np.array([0, 1, 2, 2])
    found = made.compute_metrics(EvalPrediction(np.eye(3)[[0, 1, 2, 0]], labels))

    assert list(found) == ["accuracy", "f1", "quadratic_kappa", "mean_absolute_error"]
    assert found["mean_absolute_error"] == 0.5
    rows = task.scored(labels, np.eye(3)[[0, 1, 2, 0]].astype(np.float32))
    statistics = task.statistics(rows, task.counted(made.known_scoring), None)
    for name, value in found.items():
        assert statistics["metrics"][name]["value"] == pytest.approx(value)
    assert statistics["ordered"]["within_one"]["value"] == 0.75


def test_a_smaller_mean_absolute_error_is_better(tmp_path: Path) -> None:
    from finetune.training.defaults import argument_values

    made = recipe(tmp_path, WORDS, label_order="low,middle,high", metrics="mean_absolute_error")
    _ = made.splits
    values = argument_values(made.training_defaults(), {"use_cpu": True})
    assert values.metric_for_best_model == "mean_absolute_error"
    assert values.greater_is_better is False


@pytest.mark.parametrize(
    ("name", "labels", "ordered", "expected"),
    [
        ("single_label", WORDS, True, "ordinal"),
        (None, WORDS, True, "ordinal"),
        ("single_label", WORDS[:2], True, "single_label"),
        ("single_label", WORDS, False, "single_label"),
        ("ordinal", WORDS, False, "ordinal"),
        (None, [], False, "regression"),
    ],
)
def test_runs_of_older_releases_are_read(
    name: str | None, labels: list[str], ordered: bool, expected: str
) -> None:
    assert kinds.named(name, labels, ordered=ordered).name == expected
