"""Labels of every kind come to one `ClassLabel`, whose order depends on nothing but the names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from finetune.data import labels
from finetune.errors import UserError
from finetune.recipe import catalog

STARS = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")


def encoded(
    *splits: Sequence[Any], names: Sequence[str] = (), feature: Any = None
) -> tuple[list[str], dict[str, list[str]]]:
    """The names of the classes in their order, and each split's labels by name."""
    dataset = DatasetDict(
        {
            split: Dataset.from_dict(
                {"text": [f"row {number}" for number in range(len(values))], "label": list(values)},
                features=feature and Features({"text": Value("string"), "label": feature}),
            )
            for split, values in zip(("train", "test"), splits, strict=False)
        }
    )
    result = labels.encode(dataset, names)
    label = result["train"].features["label"]
    assert isinstance(label, ClassLabel)
    for split, rows in result.items():
        assert rows.features["label"] == label
        assert rows["text"][:] == dataset[split]["text"][:]
    return label.names, {split: label.int2str(rows["label"][:]) for split, rows in result.items()}


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (["good", "bad", "good"], ["bad", "good"]),
        ([10, 9, -2, 9], ["-2", "9", "10"]),
        (["10", "9", "2"], ["2", "9", "10"]),
        ([2.0, 1.0, 10.0], ["1", "2", "10"]),
        ([True, False, True], ["False", "True"]),
        (["b", "10", "a", "2"], ["2", "10", "a", "b"]),
        (["NA", "None", "null"], ["NA", "None", "null"]),
        (["2023_10", "2023_9", "1_0"], ["1_0", "2023_10", "2023_9"]),  # words: no numbers
    ],
)
def test_order_without_names(values: list[Any], order: list[str]) -> None:
    names, by_name = encoded(values)

    assert names == order
    expected = [str(int(each)) if isinstance(each, float) else str(each) for each in values]
    assert by_name["train"] == expected


def test_order_of_words_that_python_reads_as_numbers() -> None:
    """`float("nan")` compares with nothing, so that sorting by it depends on the hash seed."""
    numbers = [str(number) for number in range(300)]
    words = ["NAN", "NaN", "nan"]

    assert encoded([*words, *reversed(numbers)])[0] == [*numbers, *words]


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (["negative", "positive"], ["positive", "negative"]),  # the recipe's order
        (["negative", "negative"], ["negative"]),  # some of them
        (["Negative", "positive"], ["Negative", "positive"]),  # other names: sorted
    ],
)
def test_order_with_the_names_of_a_recipe(values: list[str], order: list[str]) -> None:
    names, by_name = encoded(values, names=("positive", "negative"))

    assert names == order
    assert by_name["train"] == values


def test_numbers_get_no_names_that_nobody_gave_them() -> None:
    assert encoded([5, 1, 3], names=STARS)[0] == ["1", "3", "5"]


def test_class_labels_keep_their_order() -> None:
    feature = ClassLabel(names=["zebra", "ant", "bee"])

    names, by_name = encoded([2, 0, 1], feature=feature)

    assert names == ["zebra", "ant", "bee"]
    assert by_name["train"] == ["bee", "zebra", "ant"]


def test_class_labels_take_the_order_of_the_recipe_by_name() -> None:
    feature = ClassLabel(names=["negative", "positive"])

    names, by_name = encoded([0, 1, 1], names=("positive", "negative"), feature=feature)

    assert names == ["positive", "negative"]
    assert by_name["train"] == ["negative", "positive", "positive"]


def test_class_labels_of_the_recipe_are_all_kept() -> None:
    names, _ = encoded([4, 0], names=STARS, feature=ClassLabel(names=list(STARS)))

    assert names == list(STARS)


def test_splits_share_their_classes() -> None:
    names, by_name = encoded(["b", "d"], ["c", "b", "a"])

    assert names == ["a", "b", "c", "d"]
    assert by_name == {"train": ["b", "d"], "test": ["c", "b", "a"]}


@pytest.mark.parametrize("test", [["2", "1"], [2.0, 1.0], [2, 1]])
def test_splits_of_different_types_meet_by_name(test: list[Any]) -> None:
    names, by_name = encoded([1, 2, 10], test)

    assert names == ["1", "2", "10"]
    assert by_name == {"train": ["1", "2", "10"], "test": ["2", "1"]}


@pytest.mark.parametrize("splits", [([0.5, 1.0],), ([1.0, 2.0], [1.0, 3.25])])
def test_numbers_with_a_fraction_are_refused(splits: tuple[list[float], ...]) -> None:
    split, fraction = ("train data, row 1", 0.5) if len(splits) == 1 else ("test data, row 2", 3.25)
    message = (
        rf"--label_column: 'label' holds numbers with a fraction \({fraction}\), first in {split}: "
        "expected classes; is --label_column the right column"
    )

    with pytest.raises(UserError, match=message):
        encoded(*splits)


def test_infinite_labels_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"'label' holds inf \(train data, row 2\): expected classes"
    ):
        encoded([1.0, float("inf")])


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (["1", "2", "10"], True),
        (["1 star", "3 stars", "5 stars"], True),
        (["1 star", "5 stars"], False),  # an order of two tells nothing
        (["blue", "green", "red"], False),
    ],
)
def test_only_known_classes_and_numbers_are_in_order(
    names: list[str], ordered: bool, tmp_path: Path
) -> None:
    rows = [f"place {number},{names[number % len(names)]}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n")

    recipe = catalog.find("yelp")(dataset=str(tmp_path / "a.csv"))
    task = "ordinal" if ordered else "single_label"
    assert (recipe.kind.name, recipe.task) == (task, task)
    assert recipe.kind.labels == names
    other = catalog.find("sentiment")(
        dataset=str(tmp_path / "a.csv"), text_column="text", label_column="label"
    )
    assert other.kind.name == "single_label"


@pytest.mark.parametrize(("split", "row"), [("train", 3), ("test", 1)])
def test_a_number_beyond_the_names_of_its_type_is_refused(split: str, row: int) -> None:
    """`datasets` refuses such rows, but not such a file, or a table that is cast."""
    feature = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    values = {"train": [0, 1, 0, 1], "test": [0, 1]}
    values[split][row - 1] = 2
    dataset = DatasetDict(
        {
            name: Dataset.from_dict({"text": ["x"] * len(each), "label": each}).with_format(None)
            for name, each in values.items()
        }
    )
    for rows in dataset.values():
        rows.info.features = feature  # as the metadata of a Parquet file says
    with pytest.raises(UserError) as refused:
        labels.encode(dataset, [], called="queue")
    assert str(refused.value) == (
        f"--label_column: 'queue' holds 2 ({split} data, row {row}), but its type has names for 0 "
        "to 1 only ('a', 'b'): correct the value, or add its name to the ClassLabel of the column"
    )
