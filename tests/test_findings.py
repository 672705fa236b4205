"""What is wrong with the data is said before any model is loaded, all of it at once."""

from pathlib import Path

import pandas as pd
import pytest

from finetune.errors import UserError
from finetune.recipe import TextClassification


class Reviews(TextClassification):
    model: str = "no/such-model"  # none of these tests may come so far as to load it


def lines(count: int, label: str = "", start: int = 0) -> list[str]:
    return [
        f"review {number},{label or ('bad', 'good')[number % 2]}"
        for number in range(start, start + count)
    ]


def write(path: Path, *rows: str, header: str = "text,label") -> str:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def mistakes(dataset: str | Path, **options: str | bool | int) -> tuple[str, ...]:
    with pytest.raises(UserError) as refusal:
        _ = Reviews(dataset=str(dataset), **options).splits
    return refusal.value.mistakes


def test_a_wrong_column_lists_those_there_are(reviews: Path) -> None:
    assert mistakes(reviews, text_column="texts") == (
        "--text_column: no column 'texts' in the train data; did you mean 'text'? "
        "(there are: text, label)",
    )


def test_both_columns_wrong_are_two_mistakes(reviews: Path) -> None:
    first, second = mistakes(reviews, text_column="texts", label_column="stars")

    assert first.startswith("--text_column: no column 'texts'")
    assert second.startswith("--label_column: no column 'stars'")


def test_a_column_that_one_split_lacks(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(20))
    write(tmp_path / "test.csv", "fine,5", header="text,stars")

    (mistake,) = mistakes(tmp_path)

    assert mistake.startswith("--label_column: no column 'label' in the test data")
    assert mistake.endswith("(there are: text, stars)")


@pytest.mark.parametrize("empty", ["train", "validation", "test"])
def test_an_empty_split(empty: str, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        rows = [] if split == empty else lines(20, start=100 * number)
        write(tmp_path / f"{split}.csv", *rows)

    (mistake,) = mistakes(tmp_path)

    assert empty in mistake
    assert "no rows" in mistake


@pytest.mark.parametrize("empty", ["train", "validation", "test"])
def test_an_empty_parquet_split(empty: str, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        rows = [] if split == empty else [line.split(",") for line in lines(20, start=100 * number)]
        frame = pd.DataFrame(rows, columns=["text", "label"], dtype="str")
        frame.to_parquet(tmp_path / f"{split}.parquet")

    (mistake,) = mistakes(tmp_path)

    assert empty in mistake
    assert "no rows" in mistake


def test_one_class(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", *lines(20, label="good"))

    assert mistakes(path) == (
        "the training data has one class only ('good'): expected two or more",
    )


def test_one_class_and_an_empty_split_at_once(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(20, label="good"))
    write(tmp_path / "test.csv", "review,")

    first, second = mistakes(tmp_path, drop_invalid=True)

    assert first == "the test data has no rows"
    assert "one class only ('good')" in second


def test_missing_values_are_counted_and_the_first_rows_named(tmp_path: Path) -> None:
    rows = lines(40)
    for number in (3, 5, 8, 13, 21, 34):
        rows[number] = f",{('bad', 'good')[number % 2]}"
    rows[7] = "   ,good"
    rows[30] = "review 30,"

    path = write(tmp_path / "reviews.csv", *rows)

    assert mistakes(path) == (
        "there are 7 of 40 train rows whose text is missing or no text "
        "(first rows: 3, 5, 7, 8, 13); --drop_invalid leaves them out",
        "there are 1 of 40 train rows whose label is missing (first rows: 30); "
        "--drop_invalid leaves them out",
    )


def test_values_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "numbers.csv", *(f"{number},{number % 2}" for number in range(20)))

    (mistake,) = mistakes(path)

    assert mistake.startswith("there are 20 of 20 train rows whose text is missing or no text")


def test_invalid_rows_of_every_split_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(20), ",good")
    write(tmp_path / "test.csv", *lines(9, start=50), "review,")

    first, second = mistakes(tmp_path)

    assert "1 of 21 train rows whose text" in first
    assert "1 of 10 test rows whose label is missing (first rows: 9)" in second


def test_drop_invalid_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    rows = [*lines(100), ",good", "review 200,", ","]
    path = write(tmp_path / "reviews.csv", *rows)
    recipe = Reviews(dataset=path, drop_invalid=True)

    kept = sorted(each for split in recipe.splits.values() for each in split["id"])

    assert kept == list(range(100))
    assert recipe.labels == ["bad", "good"]
    assert recipe.notes == [
        "dropped 2 of 103 train rows whose text is missing or no text (first rows: 100, 102)",
        "dropped 2 of 103 train rows whose label is missing (first rows: 101, 102)",
    ]


def test_a_missing_number_does_not_turn_labels_into_fractions(tmp_path: Path) -> None:
    rows = [f"review {number},{number % 3 + 1}" for number in range(99)]
    path = write(tmp_path / "reviews.csv", *rows, "review 99,")
    recipe = Reviews(dataset=path, drop_invalid=True)

    assert sum(recipe.splits.num_rows.values()) == 99
    assert recipe.labels == ["1", "2", "3"]


def test_nothing_left_after_dropping(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", ",bad", ",good")

    assert mistakes(path, drop_invalid=True) == ("the train data has no rows",)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_labels_that_training_lacks(split: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(40))
    write(tmp_path / f"{split}.csv", *lines(8, start=100), "x,ugly", "y,awful")

    assert mistakes(tmp_path) == (
        f"the {split} data has labels that the training data does not have: 'awful', 'ugly' "
        "(add training rows for them, or leave them out)",
    )


def test_many_labels_that_training_lacks_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(40))
    write(tmp_path / "test.csv", *(f"text {number},new {number}" for number in range(8)))

    (mistake,) = mistakes(tmp_path)

    assert "'new 0', 'new 1', 'new 2', 'new 3', 'new 4' and 3 more" in mistake


def test_too_few_rows_for_a_validation_set(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", *lines(4))

    assert "no rows are left for validation: the data is too small" in mistakes(path)


def test_numbers_with_a_fraction_are_no_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", "a,0.5", "b,1.0")

    (mistake,) = mistakes(path)

    assert "numbers with a fraction (0.5)" in mistake


@pytest.mark.parametrize("name", ["train_samples", "eval_samples"])
@pytest.mark.parametrize("value", [0, -3])
def test_samples_must_be_one_or_more(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"--{name} {value}: expected a number of rows, 1 or more"):
        Reviews(**{name: value})


def test_options_of_a_text_recipe_are_checked_at_once() -> None:
    with pytest.raises(UserError) as refusal:
        Reviews(max_length=2, hidden_dropout=1.0, attention_dropout=-0.1)

    assert refusal.value.mistakes == (
        "--hidden_dropout 1.0: expected a probability, 0 or more and below 1",
        "--attention_dropout -0.1: expected a probability, 0 or more and below 1",
        "--max_length 2: expected at least 3 tokens",
    )
