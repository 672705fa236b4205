"""Which task the labels of a file are: what is obvious is taken and said, the rest is asked."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from finetune import TextClassification, UserError


class Texts(TextClassification):
    """Of a file."""

    dataset: str = ""


def decided(tmp_path: Path, labels: list[Any], **options: Any) -> tuple[str, str]:
    table = pd.DataFrame({"text": [f"text {n}" for n in range(len(labels))], "label": labels})
    table.to_parquet(path := tmp_path / "rows.parquet")
    recipe = Texts(dataset=str(path), **options)
    recipe.load()
    return recipe.task, recipe.task_reason


@pytest.mark.parametrize(
    ("labels", "task", "reason"),
    [
        (["spam", "ham"], "single_label", "the labels are words"),
        ([True, False], "single_label", "the labels are classes"),
        (["1", "2", "x"], "single_label", "the labels are words"),
        ([0, 2, 2], "single_label", "the labels are 2 different whole numbers"),
        (
            [1.0, 2.0, 5.0],
            "single_label",
            "the labels are 3 different whole numbers; --task ordinal if their order counts",
        ),
        (list(range(300)), "single_label", "the labels are 300 different whole numbers"),
        ([0.5, 1.0], "regression", "the labels are numbers with a fraction, such as 0.5"),
        (["0.5", "1"], "regression", "the labels are numbers with a fraction, such as 0.5"),
    ],
)
def test_the_rows_decide(tmp_path: Path, labels: list[Any], task: str, reason: str) -> None:
    assert decided(tmp_path, labels * 2) == (task, reason)


def test_many_whole_numbers_with_gaps_are_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        decided(tmp_path, list(range(0, 90, 3)))

    assert refusal.value.mistakes == (
        "--task: the labels are 30 different whole numbers, 0 to 87: if they are classes, add "
        "--task single_label; if they are quantities, --task regression",
    )


def test_a_task_that_is_named_is_not_asked(tmp_path: Path) -> None:
    numbers = list(range(0, 90, 3))

    assert decided(tmp_path, numbers, task="single_label") == ("single_label", "")
    assert decided(tmp_path, numbers, task="regression") == ("regression", "")


def test_a_loss_of_another_task_is_refused(tmp_path: Path) -> None:
    table = pd.DataFrame({"text": [f"text {n}" for n in range(60)], "label": ["a", "b"] * 30})
    table.to_parquet(path := tmp_path / "rows.parquet")

    with pytest.raises(UserError, match="--loss_function mse: a task of single_label has cross"):
        _ = Texts(dataset=str(path), loss_function="mse").kind


def test_numbers_with_a_few_words_are_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        decided(tmp_path, ["0.5", "1.5", "2", "n/a"] * 2)

    assert refusal.value.mistakes == (
        "--task: 3 of 4 different labels are numbers, such as 0.5, and 1 is not, such as 'n/a': if "
        "they are quantities, --task regression says where the others are; if they are classes, "
        "add --task single_label",
    )
