"""Which task the labels of a file are: what is obvious is taken and said, the rest is asked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from finetune import TextClassification, UserError
from finetune.data import cells


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
        "--task: 'label' holds 30 different whole numbers, 0 to 87: if they are classes, add "
        "--task single_label; if they are quantities, --task regression",
    )


def test_points_that_may_separate_thousands_are_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        decided(tmp_path, ["0.100", "1.300", "101", "950"])

    assert refusal.value.mistakes == (
        "--task: 'label' holds '1.300' (train data, row 2), while others are like '950': if the "
        "point separates thousands, leave it out in the data; if these are fractions, add --task "
        "regression",
    )


@pytest.mark.parametrize(
    "labels",
    [
        ["0.100", "0.250", "1.000"],
        ["0.125", "0.375", "1", "0"],
        ["1.300", "101", "7.5"],
        ["1.300", "1300"],
        [1.375, 101.0],
    ],
)
def test_points_of_fractions_are_not_asked(labels: list[Any], tmp_path: Path) -> None:
    assert decided(tmp_path, labels)[0] == "regression"


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
        "--task: 'label' holds 'n/a' (train data, row 4), while 3 of 4 different labels are "
        "numbers, such as 0.5: if they are quantities, --task regression says where the others "
        "are; if they are classes, add --task single_label",
    )


# ---- what is doubtful is asked -------------------------------------------------------------------

COLUMNS = "write a column of 0 and 1 for each label and --label_columns"
IN_JSON = """for several labels, write a JSON list, ["a", "b"], or a;b and --label_separator ';'"""
OR_CLASS = "if it is the name of a class, add --task single_label"


def recipe_of(path: Path, rows: Mapping[str, Sequence[Any]], **options: Any) -> Texts:
    """Rows in a CSV or in JSON lines, the column of labels called `queue`."""
    length = max(60, *map(len, rows.values()))
    table = {name: [each[n % len(each)] for n in range(length)] for name, each in rows.items()}
    frame = pd.DataFrame({"text": [f"the text of row {n}" for n in range(length)], **table})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        lines = map(json.dumps, frame.astype(object).to_dict("records"))
        path.write_text("\n".join(lines) + "\n")
    if "label_columns" not in options:
        options["label_column"] = "queue"
    return Texts(dataset=str(path), **options)


def refusal(recipe: Texts) -> str:
    with pytest.raises(UserError) as refused:
        _ = recipe.splits
    return str(refused.value)


ASKED: dict[str, tuple[list[Any], str]] = {
    "bits": (
        [[0, 1, 0], [1, 0, 0]],
        f"--task: 'queue' holds [0, 1, 0] (train data, line 1), a list of 0 and 1: if each is for "
        f"a label, {COLUMNS}; if they name labels, add --task multi_label; if they are "
        "quantities, --task regression",
    ),
    "truth values": ([[True, False]], "'queue' holds [True, False] (train data, line 1), a list"),
    "bits in text": (["[1, 0]", "[0, 1]"], "'queue' holds '[1, 0]' (train data, line 2), a list"),
    "fractions": (
        [[0.5, 1.0], [1.0, 2.0]],
        "--task: 'queue' holds [0.5, 1.0] (train data, line 1), a list of numbers with a decimal "
        f"point: if they are quantities, add --task regression; if each is for a label, {COLUMNS}",
    ),
    "fractions in text": (["[0, 1.5]"], "'queue' holds '[0, 1.5]' (train data, line 2), a list of"),
    "whole": (["[2.0, 1.0]"], f"{COLUMNS}; if they name labels, --task multi_label"),
    "semicolons": (
        ["sad", "good;sad"],
        "--task: 'queue' holds 'good;sad' (train data, line 3): if these are several labels, add "
        f"--label_separator ';'; {OR_CLASS}",
    ),
    "bars": (["good|sad", "odd"], "'queue' holds 'good|sad' (train data, line 2): if these are"),
    "commas": (["good, sad", "sad"], "if these are several labels, add --label_separator ','"),
    "commas of pairs": (["a,b", "b,c", "c,a"], "'queue' holds 'a,b' (train data, line 2): if"),
    "an array": (
        ["['funny' 'sad']", "['sad']"],
        "--task: 'queue' holds \"['funny' 'sad']\" (train data, line 2), a list without commas or "
        f"quotation marks: {IN_JSON}; {OR_CLASS}",
    ),
    "an array of numbers": (["[0 1 0]", "[1 0 0]"], "'queue' holds '[0 1 0]' (train data, line 2)"),
    "a tuple": (["x", "('a', 'b')"], "holds \"('a', 'b')\" (train data, line 3), a tuple: for"),
    "a set": (["{'a', 'b'}"], "(train data, line 2), a set: for several labels, write a JSON list"),
    "a dictionary": (['{"a": true}'], "(train data, line 2), a dictionary: for several labels"),
    "commas in numbers": (
        ["1,137", "2,500", "900"],
        "--task: 'queue' holds '1,137' (train data, line 2), which --task regression does not read "
        "('1,137' may be 1137 or 1.137; expected a decimal point and no other sign); for several "
        f"labels, add --label_separator ','; {OR_CLASS}",
    ),
    "decimal commas": (["3,5", "2,0"], "'queue' holds '3,5' (train data, line 2), which --task"),
    "texts": (
        [f"id-{n}" for n in range(60)],
        "--task: 'queue' holds 'id-0' (train data, line 2), one of 60 different labels in 60 rows: "
        "is --label_column the right column? If they are classes, add --task single_label",
    ),
    "numbers of rows": (
        list(range(60)),
        "is --label_column the right column? If they are classes, add --task single_label; if they "
        "are quantities, --task regression",
    ),
    "few labels twice": ([f"id-{n % 45}" for n in range(60)], "one of 45 different labels in 60"),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_doubtful_is_asked(case: str, tmp_path: Path) -> None:
    values, told = ASKED[case]
    name = "rows.jsonl" if isinstance(values[0], list) else "rows.csv"
    assert told in refusal(recipe_of(tmp_path / name, {"queue": values}))


@pytest.mark.parametrize(
    ("values", "options", "task", "names"),
    [
        ([1, 2, 3, 4, 5], {}, "single_label", ["1", "2", "3", "4", "5"]),
        (["1.0", "2.0"], {}, "single_label", ["1.0", "2.0"]),
        ([True, False], {}, "single_label", ["False", "True"]),
        (["Boston, MA", "Salem, NH"], {}, "single_label", ["Boston, MA", "Salem, NH"]),
        (
            ["(good)", "[bad]", "{odd}", ";)"],
            {},
            "single_label",
            ["(good)", ";)", "[bad]", "{odd}"],
        ),
        ([[0], [1], [0, 1]], {"task": "multi_label"}, "multi_label", ["0", "1"]),
        (["2023_01", "2023_02", "1_0"], {}, "single_label", ["1_0", "2023_01", "2023_02"]),
        (["level 1", "3rd"], {}, "single_label", ["3rd", "level 1"]),
        ([f"id-{n % 30}" for n in range(60)], {}, "single_label", None),
        (["good;sad", "sad"], {"task": "single_label"}, "single_label", ["good;sad", "sad"]),
        (["good;sad", "sad"], {"label_map": "good;sad=both"}, "single_label", ["both", "sad"]),
        (["good;sad", "sad"], {"label_separator": ";"}, "multi_label", ["good", "sad"]),
        ([["a", "b"], [], ["b"]], {}, "multi_label", ["a", "b"]),
        (['["a", "b"]', "[]", "['b']"], {}, "multi_label", ["a", "b"]),
        ([[3, 17], [4], []], {}, "multi_label", ["3", "4", "17"]),
        ([[0], [1]], {"task": "multi_label"}, "multi_label", ["0", "1"]),
        (["0.5", "1", "2"], {}, "regression", None),
        (["[0.5, 1]", "[2, 3]"], {"task": "regression"}, "regression", None),
        ([[0.5, 1], [2, 3]], {"task": "regression"}, "regression", None),
    ],
)
def test_what_is_not_doubtful_is_read(
    tmp_path: Path, values: list[Any], options: dict[str, Any], task: str, names: list[str] | None
) -> None:
    name = "rows.csv" if isinstance(values[0], str) else "rows.jsonl"
    recipe = recipe_of(tmp_path / name, {"queue": values}, **options)
    assert (recipe.kind.name, recipe.task) == (task, task)
    if names is not None:
        assert recipe.labels == names


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["('a', 'b')", "('b',)"], {"label_separator": ","}),
        (["{'a', 'b'}", "{'b'}"], {"label_separator": ","}),
        (["['a' 'b']", "['b']"], {"label_separator": " "}),
        (["['a' 'b']", "['b']"], {"task": "multi_label"}),
        (["('a', 'b')", "('b',)"], {"task": "multi_label"}),
    ],
)
def test_no_part_of_a_printed_value_becomes_a_label(
    tmp_path: Path, values: list[str], options: dict[str, Any]
) -> None:
    told = refusal(recipe_of(tmp_path / "rows.csv", {"queue": values}, **options))
    assert told.startswith(
        f"--label_column: 'queue' holds {values[0]!r} (train data, line 2): that"
    )
    assert told.endswith("""write a JSON list, ["a", "b"], or a;b and --label_separator ';'""")


@pytest.mark.parametrize(
    ("name", "values", "options"),
    [
        ("rows.jsonl", [[0, 1, 0], [1, 0, 0]], {"task": "multi_label"}),
        ("rows.csv", ["0;1;0", "1;0;0"], {"label_separator": ";"}),
    ],
)
def test_bits_are_not_taken_for_names(
    tmp_path: Path, name: str, values: list[Any], options: dict[str, Any]
) -> None:
    told = refusal(recipe_of(tmp_path / name, {"queue": values}, **options))
    assert f"'queue' holds {values[0]!r} (train data, line " in told
    assert "a 0 or 1 for each label: expected the names of the labels that a row has, or a" in told


def test_numbers_with_a_unit_are_told(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path / "rows.csv", {"queue": ["12 kg", "3.5 kg", "7kg"]})
    assert recipe.labels == ["12 kg", "3.5 kg", "7kg"]
    told = (
        "'queue' holds numbers with a unit, taken for classes: '12 kg', '3.5 kg', '7kg'; if they "
        "are quantities, leave out the unit and add --task regression"
    )
    assert told in recipe.notes
    assert not any(map(cells.has_unit, ["1st", "2nd", "23rd", "4th", "12", "kg", "level 1"]))
    assert all(map(cells.has_unit, ["$12", "€ 3.50", "12%", "-3 °", "1,137 kg", "5 min"]))


def test_a_separator_that_no_cell_has_is_told(tmp_path: Path) -> None:
    labels = ["a;b", "b", "c;a"]
    recipe = recipe_of(tmp_path / "rows.csv", {"queue": labels}, label_separator="|")
    assert recipe.labels == ["a;b", "b", "c;a"]
    assert (
        "--label_separator '|': no cell of 'queue' has it, so that no row has more than one label; "
        "'a;b' looks like --label_separator ';'"
    ) in recipe.notes
    bits = {"a": [0, 1], "b": [1, 1, 0]}
    columns = recipe_of(tmp_path / "rows.csv", bits, label_columns="a,b", label_separator=";")
    assert columns.labels == ["a", "b"]
    told = "--label_separator has no effect: a cell of --label_columns holds 0 or 1"
    assert told in columns.notes
    other = recipe_of(tmp_path / "rows.csv", {"queue": labels}, label_separator=";")
    assert other.labels == ["a", "b", "c"]
    assert not any("--label_separator" in note for note in other.notes)


# ---- several columns -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true", "false"),
    [("TRUE", "FALSE"), ("True", "false"), ("Yes", "no"), ("YES", "NO"), ("1", "0"), ("1.00", "0")],
)
def test_columns_of_truth_values_are_labels(tmp_path: Path, true: str, false: str) -> None:
    columns = {"angry": [true, false, true, false], "sad": [true, true, false, false]}
    recipe = recipe_of(tmp_path / "rows.csv", columns, label_columns="angry,sad")
    assert (recipe.kind.name, recipe.labels) == ("multi_label", ["angry", "sad"])
    assert recipe.task_reason == "the columns angry, sad hold 0 and 1"


@pytest.mark.parametrize(
    ("name", "stray", "place"), [("a.csv", 2, 5), ("a.jsonl", -1, 4), ("a.jsonl", 0.5, 4)]
)
def test_a_stray_number_among_bits_is_asked(
    tmp_path: Path, name: str, stray: float, place: int
) -> None:
    columns = {"a": [0, 1, 1, 0] * 15, "b": [1, 0, 0, stray] + [0, 1] * 28}
    shown = repr(str(stray)) if name == "a.csv" else stray
    assert refusal(recipe_of(tmp_path / name, columns, label_columns="a,b")) == (
        f"--label_columns: 'b' holds {shown} (train data, line {place}), while others hold 0 or 1: "
        "if these are labels, correct it and add --task multi_label; if they are quantities, add "
        "--task regression"
    )
    insisted = recipe_of(tmp_path / name, columns, label_columns="a,b", task="regression")
    assert insisted.kind.name == "regression"


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (1, 2), (0.5, 2.5)])
def test_two_other_numbers_in_several_columns_are_asked(
    tmp_path: Path, low: float, high: float
) -> None:
    columns = {"a": [high, low, high], "b": [high, high, low]}
    assert refusal(recipe_of(tmp_path / "a.jsonl", columns, label_columns="a,b")) == (
        f"--label_columns: 'a' holds {low} (train data, line 2), and the columns a, b "
        f"hold {low} and {high} only: if these are labels, write 0 and 1 instead; if they are "
        "quantities, add --task regression"
    )
    insisted = recipe_of(tmp_path / "a.jsonl", columns, label_columns="a,b", task="regression")
    assert insisted.kind.name == "regression"


def test_numbers_beside_bits_are_asked(tmp_path: Path) -> None:
    columns = {"stars": [3.5, 1.25, 2], "kept": [1, 0, 1]}
    told = refusal(recipe_of(tmp_path / "a.csv", columns, label_columns="stars,kept"))
    assert "'stars' holds '3.5' (train data, line 2), while others hold 0 or 1: if" in told


def test_other_columns_of_numbers_are_a_regression(tmp_path: Path) -> None:
    columns = {"stars": [3.5, 1.25, 0], "words": [120, 0, 8]}
    assert recipe_of(tmp_path / "a.csv", columns, label_columns="stars,words").kind.name == (
        "regression"
    )


@pytest.mark.parametrize("odd", ["maybe", "yes"])
def test_words_beside_numbers_are_refused(tmp_path: Path, odd: str) -> None:
    columns = {"a": ["0.5", "3", odd], "b": ["4", "2", "7"]}
    told = refusal(recipe_of(tmp_path / "a.csv", columns, label_columns="a,b"))
    assert (
        f"'a' holds '{odd}' (train data, line 4): expected 0 and 1, or true and false, or" in told
    )


@pytest.mark.parametrize(("name", "line"), [("a.csv", 4), ("a.jsonl", 3)])
def test_a_missing_value_is_told_with_its_column(tmp_path: Path, name: str, line: int) -> None:
    columns = {"angry": [True, False, None] + [True, False, True] * 19, "b": [False, True, True]}
    told = refusal(recipe_of(tmp_path / name, columns, label_columns="angry,b"))
    assert told == (
        f"1 of 60 train rows with no value in column 'angry': line {line}; --drop_invalid leaves "
        "them out"
    )
    dropped = recipe_of(tmp_path / name, columns, label_columns="angry,b", drop_invalid=True)
    assert sum(map(len, dropped.splits.values())) == 59


def test_a_null_among_the_labels_is_told(tmp_path: Path) -> None:
    values = [["good", None], ["bad"], ["good"]]
    assert "without a label in 'queue' (but ['good', None]): lines 1, 4, 7" in refusal(
        recipe_of(tmp_path / "a.jsonl", {"queue": values})
    )
    in_text = refusal(recipe_of(tmp_path / "a.csv", {"queue": list(map(json.dumps, values))}))
    assert in_text == (
        "--label_column: 'queue' holds '[\"good\", null]' (train data, line 2): a null is no "
        "label; leave it out of the list"
    )


def test_targets_that_are_one_number_are_refused_by_name(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path / "a.jsonl", {"queue": [1.5]}, task="regression")
    assert refusal(recipe) == (
        "'queue' is 1.5 in all 43 training rows: expected numbers that differ"
    )


def test_classes_of_a_single_row_each_are_told(tmp_path: Path) -> None:
    values = [f"id-{n}" for n in range(60)]
    told = refusal(recipe_of(tmp_path / "a.csv", {"queue": values}, task="single_label"))
    why = "each of the 60 labels occurs once, and training needs that row"
    assert told.splitlines() == [
        f"no rows are left for validation: {why}",
        f"no rows are left for test: {why}",
    ]


def test_classes_of_an_order_that_no_row_has_are_refused(tmp_path: Path) -> None:
    options = {"task": "ordinal", "label_order": "low,medium,middle,high"}
    values = ["low", "middle", "high"]
    assert refusal(recipe_of(tmp_path / "a.csv", {"queue": values}, **options)) == (
        "--label_order low,medium,middle,high: no row has the class 'medium' (the classes: 'low', "
        "'middle', 'high')"
    )


def test_a_fraction_among_classes_of_the_test_set_has_its_place(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path / "test.jsonl", {"queue": [1, 3.5]}, task="single_label")
    recipe_of(tmp_path / "train.jsonl", {"queue": [1, 2, 3]})
    recipe.dataset = str(tmp_path)
    assert refusal(recipe) == (
        "--label_column: 'queue' holds numbers with a fraction (3.5), first in test data, line 2: "
        "expected classes; is --label_column the right column?"
    )


# ---- what is no number among whole numbers -------------------------------------------------------


@pytest.mark.parametrize("stray", ["nan", "-inf", "1e400"])
def test_a_number_that_is_not_finite_is_no_class(stray: str, tmp_path: Path) -> None:
    values = ["1", "2", "3", "4", "5", "1", "2"]
    path = tmp_path / "a.csv"
    told = refusal(recipe_of(path, {"queue": [*values, stray, *values * 8]}))
    assert told == (
        f"--task: 'queue' holds '{stray}' (train data, line 9), while all others are whole "
        "numbers: if the label is missing, leave it empty; if it is the name of a class, add "
        "--task single_label"
    )
    insisted = recipe_of(path, {"queue": [*values, stray] * 10}, task="single_label")
    assert insisted.labels == ["1", "2", "3", "4", "5", stray]
    fractions = recipe_of(path, {"queue": ["0.5", "1", stray, "2"]}, drop_invalid=True)
    assert fractions.kind.name == "regression"
    words = recipe_of(path, {"queue": ["nan", "inf"]})
    assert (words.labels, words.task_reason) == (["inf", "nan"], "the labels are words")


@pytest.mark.parametrize("stray", ["nan", "N/A"])
def test_a_word_among_numbers_in_an_order_is_told(stray: str, tmp_path: Path) -> None:
    values = [*"1234512", stray, *"12345" * 10]
    assert refusal(recipe_of(tmp_path / "a.csv", {"queue": values}, task="ordinal")) == (
        f"--task ordinal: 'queue' holds '{stray}' (train data, line 9), while 5 of 6 classes are "
        "numbers: correct it, leave it empty if it is missing, or add --label_order "
        "1,2,3,4,5,..., from the lowest to the highest"
    )
