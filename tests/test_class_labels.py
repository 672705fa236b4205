"""Columns of ``ClassLabel``: read by their names where words, numbers or truth values are wanted,
and numbers that have no name.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from finetune import TextClassification, UserError
from finetune.data import class_labels, findings, multi_labels

NUMBERED = ClassLabel(names=["1", "2", "5"])
TRUTHS = ClassLabel(names=["yes", "no"])


class Texts(TextClassification):
    """Of a directory."""

    dataset: str = ""


def recipe_of(path: Path, features: dict[str, Any], **options: Any) -> Texts:
    """Rows whose columns repeat the values beside their features, which are stored as they are."""
    types = {"text": Value("string"), **{name: each for name, (each, _) in features.items()}}
    columns = {
        name: [values[row % len(values)] for row in range(60)]
        for name, (_, values) in features.items()
    }
    rows = Dataset.from_dict({"text": [f"the text of row {n}" for n in range(60)], **columns})
    rows.info.features = Features(types)  # as the metadata of the file says, unchecked
    rows.to_parquet(str(path / "rows.parquet"))
    return Texts(dataset=str(path / "rows.parquet"), **options)


def refusal(recipe: Texts) -> str:
    with pytest.raises(UserError) as refused:
        recipe.load()
    return str(refused.value)


def test_numbers_are_read_from_the_names(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"label": (NUMBERED, [0, 1, 2])}, task="regression")
    assert recipe.load()["train"]["label"][:3] == [1, 2, 5]
    columns = {"a": (NUMBERED, [0, 1, 2]), "b": (Value("int64"), [3, 7])}
    several = recipe_of(tmp_path, columns, label_columns="a,b")
    assert several.load()["train"]["label"][:3] == [[1, 3], [2, 7], [5, 3]]
    assert several.task == "regression"
    lists = recipe_of(tmp_path, {"label": (List(NUMBERED), [[0, 2], [1, 1]])}, task="regression")
    assert lists.load()["train"]["label"][:2] == [[1, 5], [2, 2]]


@pytest.mark.parametrize("names", [["low", "high", "mid"], ["1 star", "2 stars", "3 stars"]])
def test_names_that_are_no_numbers_are_refused(tmp_path: Path, names: list[str]) -> None:
    label = ClassLabel(names=names), [0, 1, 2]
    assert f"60 of 60 train rows with a value that is no number in 'label' ('{names[0]}', " in (
        refusal(recipe_of(tmp_path, {"label": label}, task="regression"))
    )


@pytest.mark.parametrize("task", ["auto", "multi_label"])
def test_truth_values_are_read_from_the_names(tmp_path: Path, task: Any) -> None:
    columns = {"a": (TRUTHS, [0, 1, 1]), "b": (Value("int64"), [0, 1])}
    recipe = recipe_of(tmp_path, columns, label_columns="a,b", task=task)
    assert recipe.load()["train"]["label"][:4] == [[0], [1], [], [0, 1]]
    assert recipe.task == "multi_label"


def test_a_separator_stands_in_the_names(tmp_path: Path) -> None:
    label = ClassLabel(names=["b", "a;b"]), [0, 1]
    rows = recipe_of(tmp_path, {"label": label}, label_separator=";").load()["train"]
    assert rows.features["label"] == List(ClassLabel(names=["a", "b"]))
    assert rows["label"][:2] == [[1], [0, 1]]


def test_lists_are_told_by_their_names_and_keep_their_order(tmp_path: Path) -> None:
    label = List(ClassLabel(names=["good", "bad", "odd"])), [[0], [1, 0], []]
    recipe = recipe_of(tmp_path, {"label": label})
    assert recipe.labels == ["good", "bad", "odd"]
    assert recipe.task_reason == "the labels are lists, such as ['good']"


@pytest.mark.parametrize(
    ("feature", "values"), [(List(NUMBERED), [[0], [1, 0], [1, -1]]), (NUMBERED, [0, 1, -1])]
)
def test_no_class_is_a_missing_label(tmp_path: Path, feature: Any, values: list[Any]) -> None:
    told = refusal(recipe_of(tmp_path, {"label": (feature, values)}))
    assert told.startswith("20 of 60 train rows without a label")
    assert told.endswith("rows 3, 6, 9, 12, 15, ...; --drop_invalid leaves them out")
    dropped = recipe_of(tmp_path, {"label": (feature, values)}, drop_invalid=True).load()["train"]
    assert dropped["id"][:5] == [0, 1, 3, 4, 6]
    assert [*map(np.max, dropped["label"])] == [0, 1] * 20


@pytest.mark.parametrize("options", [{}, {"task": "regression"}])
@pytest.mark.parametrize(
    ("feature", "values"), [(List(NUMBERED), [[0, 1], [3, 2]]), (NUMBERED, [0, 3])]
)
def test_a_number_beyond_the_names_is_refused(
    tmp_path: Path, feature: Any, values: list[Any], options: dict[str, Any]
) -> None:
    told = refusal(recipe_of(tmp_path, {"label": (feature, values)}, **options))
    assert told.startswith("--label_column: 'label' holds 3 (train data, row 2), but its type has")


@pytest.mark.parametrize("number", [-1, 3])
def test_rows_of_a_recipe_of_ones_own_are_looked_at(number: int) -> None:
    features = Features({"id": Value("int64"), "text": Value("string"), "label": List(NUMBERED)})
    cells = [[0], [], [2, number]]
    table = pa.table({"id": [4, 5, 6], "text": ["a", "b", "c"], "label": cells})
    rows = Dataset(table.cast(features.arrow_schema))
    with pytest.raises(UserError, match=rf"'label' holds {number} \(train data, row 7\)"):
        findings.refuse_unlabelled(DatasetDict(train=rows), "text")
    with pytest.raises(UserError, match=rf"'label' holds {number} \(row 7\)"):
        multi_labels.renumbered(rows, ["1", "2", "5"], lambda row: f"row {row + 1}")


def test_names_are_taken_of_a_selection() -> None:
    features = Features({"label": List(NUMBERED), "other": Value("int64")})
    rows = Dataset.from_dict({"label": [[0], [], [1, 2], [2]], "other": [*range(4)]}, features)
    some = class_labels.named(rows.select([3, 1, 2]), ["label", "other"], ["x", "y"], str)
    assert some["label"][:] == [["5"], [], ["2", "5"]]
    assert some["other"][:] == [3, 1, 2]
    none = class_labels.named(rows.select([]), ["label"], ["x"], str)
    assert none["label"][:] == []
