"""What is wrong with the data is said before any model is loaded, all of it at once."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from finetune.data import findings, memory
from finetune.data.prediction_columns import is_own
from finetune.errors import UserError
from finetune.recipe import TextClassification, catalog
from finetune.tasks.base import Task
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel


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


@pytest.mark.parametrize(
    ("cache", "why"), [("/proc/nope", "No such file or directory"), ("a.csv/x", "Not a directory")]
)
def test_a_cache_that_cannot_be_written_is_named(
    cache: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv", *lines(20))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / cache))
    expected = (
        f"the cache {tmp_path / cache} cannot be written ({why}): set HF_HOME or "
        "HF_DATASETS_CACHE to a directory of yours",
    )
    assert mistakes(path) == expected
    with pytest.raises(UserError) as refusal:
        memory.named([{"text": "a", "label": "x"}])
    assert refusal.value.mistakes == expected


def test_a_wrong_column_lists_those_there_are(reviews: Path) -> None:
    assert mistakes(reviews, text_column="texts") == (
        "--text_column: no column 'texts' in the train data; did you mean 'text'? "
        "(available: text, label)",
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
    assert mistake.endswith("(available: text, stars)")


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

    assert first.startswith("the test data has no rows (dropped 1 of 1 test rows without a label")
    assert "one class only ('good')" in second


def test_missing_values_are_counted_and_the_first_rows_named(tmp_path: Path) -> None:
    rows = lines(40)
    for number in (3, 5, 8, 13, 21, 34):
        rows[number] = f",{('bad', 'good')[number % 2]}"
    rows[7] = "   ,good"
    rows[30] = "review 30,"

    path = write(tmp_path / "reviews.csv", *rows)

    assert mistakes(path) == (
        "7 of 40 train rows without a text: lines 5, 7, 9, 10, 15, ...; "
        "--drop_invalid leaves them out",
        "1 of 40 train rows without a label: line 32; --drop_invalid leaves them out",
    )


def test_places_are_lines_of_the_file(tmp_path: Path) -> None:
    """A field of two lines and a blank line come before; a parquet file has no lines."""
    rows = ['"review\n 0",bad', "", "review 1,good", ",bad", "review 3,"]
    path = write(tmp_path / "reviews.csv", *rows)
    objects = [{"text": "a", "label": "x"}, {"text": None, "label": "x"}, {"label": "x"}]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, objects)))
    pd.DataFrame(objects).to_parquet(tmp_path / "a.parquet")

    assert [each.split(": ")[1] for each in mistakes(path)] == [
        "line 6; --drop_invalid leaves them out",
        "line 7; --drop_invalid leaves them out",
    ]
    for name, places in (("a.jsonl", "lines 3, 5"), ("a.parquet", "rows 2, 3")):
        (mistake,) = mistakes(tmp_path / name)
        assert mistake.startswith(f"2 of 3 train rows without a text: {places};")


def test_places_are_those_before_a_recipe_filters(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", "a,neutral", ",positive", "b,negative", header="review,division"
    )

    with pytest.raises(UserError, match="1 of 2 train rows without a text in 'review': line 3;"):
        catalog.find("sentiment")(dataset=path).load()


def test_values_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "numbers.csv", *(f"{number},{number % 2}" for number in range(20)))

    (mistake,) = mistakes(path)

    assert mistake == (
        "--text_column: the column 'text' of the train data holds numbers only, such as '0': "
        "expected text; is it the right column?"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [(7, "int64, such as 7"), ({"body": "x"}, "objects, such as"), (["x"], "lists, such as")],
)
def test_texts_of_another_type_are_called_what_they_are(
    text: Any, said: str, tmp_path: Path
) -> None:
    rows = [{"text": text, "label": "ab"[n % 2]} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    (mistake,) = mistakes(tmp_path / "a.jsonl")

    assert f"the column 'text' of the train data holds {said}" in mistake


def test_numbers_among_texts_are_texts(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *(f"{n},{n % 2}" for n in range(2000)), "ten,1")
    write(tmp_path / "test.csv", "7,0")

    assert Reviews(dataset=str(tmp_path)).load().num_rows == {"train": 2001, "test": 1}


def test_some_values_that_are_no_text(tmp_path: Path) -> None:
    rows = [{"text": value, "label": "ab"[n % 2]} for n, value in enumerate(["a", 5, "c", None])]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    (mistake,) = mistakes(tmp_path / "a.jsonl")

    assert mistake.startswith("2 of 4 train rows without a text (but 5): lines 2, 4;")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_several_labels_per_row_are_no_classes(suffix: str, tmp_path: Path) -> None:
    values = [["a"], ["a", "b"], [], ["b", "a"]] * 5
    table = pd.DataFrame({"text": [f"text {n}" for n in range(20)], "label": values})
    path = tmp_path / f"several.{suffix}"
    if suffix == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        getattr(table, f"to_{suffix}")(path, index=False)

    (mistake,) = mistakes(path, task="single_label")

    assert "holds lists, such as " in mistake
    assert "several labels per row are --task multi_label" in mistake


def test_a_list_in_json_is_one_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'a,"[""x"", null]"', 'b,"[""y""]"')

    (mistake,) = mistakes(path, task="single_label")

    assert """such as '["x", null]' (train data, line 2): several labels per row are""" in mistake


def test_brackets_alone_are_no_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", *lines(20, label="[PAD]"), *lines(20, label="[", start=20))

    assert Reviews(dataset=path).labels == ["[", "[PAD]"]


def test_a_separator_that_is_not_found_is_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a;b", "c;d;e", header="text;label")

    first, second = mistakes(path)

    for mistake in (first, second):
        assert "; if fields are separated by semicolons: --csv_separator ';'" in mistake


def test_the_number_of_the_row_is_no_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,7", "b,8", header="text,id")

    (mistake,) = mistakes(path, label_column="id")

    assert mistake == (
        "--label_column id: the toolkit numbers rows in a column of that name; rename yours"
    )


def test_columns_that_are_left_out_are_told(tmp_path: Path) -> None:
    header = "id,text,label,length,prediction,only"
    rows = [f"x{n},text {n},{'ab'[n % 2]},1,2,3" for n in range(20)]
    write(tmp_path / "train.csv", *rows, header=header)
    write(tmp_path / "test.csv", "9,t,a,1,2", header=header.removesuffix(",only"))
    recipe = Reviews(dataset=str(tmp_path))

    assert recipe.splits["train"].column_names == ["text", "id", "label"]
    assert recipe.notes == [
        "dropped the column 'id' of the train and test data: the toolkit numbers rows in a column "
        "of that name; rename it to keep it",
        "dropped from the data: 'length', 'prediction' (the toolkit writes columns of that name; "
        "rename to keep)",
        "dropped from the data: 'only' (not in every split)",
        "the test data has one row: a score on it says nothing of other rows",
        "2 classes with fewer than 10 training rows: 'a' (9), 'b' (9); add rows, or merge them: "
        "--label_map OLD=NEW",
        "1 class of the training rows without a test row: 'b'; nothing is known of how well it is "
        "recognised; add test rows of it, or merge the class: --label_map OLD=NEW",
    ]


def test_classes_that_are_probably_not_meant_are_told(tmp_path: Path) -> None:
    rows = lines(200)
    rows[3] = rows[3].replace(",good", ",good ")
    rows[4] = rows[4].replace(",bad", ",BAD")
    rows[5] = rows[5].replace(",good", ",7")
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *rows))

    assert recipe.splits["train"].features["label"].names == ["7", "BAD", "bad", "good", "good "]
    assert recipe.notes == [
        "similar labels kept as separate classes: 'BAD' and 'bad'; 'good' and 'good '; to merge "
        "them, make them identical in the data, or --label_map 'BAD=bad,\"good \"=good'",
        "labels are words except in 1 row: '7'; if these are mistakes, correct them in the data",
        "3 classes with a single row: '7', 'BAD', 'good '; one row cannot serve both training and "
        "evaluation: add rows, or remove such classes",
    ]


@pytest.mark.parametrize(
    "name",
    ["nan", "NaN", "None", "null", "N/A", "#N/A", "NA", "#REF!", "#NAME?", "NaT", r"\N", "?"],
)
def test_a_class_called_like_a_missing_label_is_told(name: str, tmp_path: Path) -> None:
    rows = [*lines(100), *lines(15, name, start=100)]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *rows))
    _ = recipe.splits
    assert recipe.notes == [
        f"a class is called '{name}' (15 rows): if these labels are missing, leave the field empty "
        "(--drop_invalid leaves such rows out)"
    ]


@pytest.mark.parametrize(
    ("labels", "code"),
    [(("0", "1", "2"), "-99"), (("1", "5"), "99"), (("0", "1"), "-9"), (("a", "b"), "-99")],
)
def test_a_number_that_stands_for_a_missing_label_is_told(
    labels: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    some = [row for n, each in enumerate(labels) for row in lines(50, each, start=50 * n)]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *some, *lines(15, code, start=200)))
    _ = recipe.splits
    assert recipe.notes == [
        f"a class is called '{code}' (15 rows), unlike the others: if it stands for a missing "
        "label, leave the field empty in the data"
    ]


@pytest.mark.parametrize("labels", [("-1", "0", "1"), ("90", "99"), ("-99", "99"), ("99", "b")])
def test_other_numbers_are_classes(labels: tuple[str, ...], tmp_path: Path) -> None:
    some = [row for n, each in enumerate(labels) for row in lines(30, each, start=50 * n)]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *some))
    _ = recipe.splits
    assert recipe.notes == []


def test_a_class_called_none_is_one(tmp_path: Path) -> None:
    rows = [*lines(100), *lines(15, "none", start=100)]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *rows))
    _ = recipe.splits
    assert recipe.notes == []


def test_long_numbers_that_differ_are_not_similar(tmp_path: Path) -> None:
    rows = [*lines(50, "9007199254740992"), *lines(50, "9007199254740993", start=50)]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *rows))
    _ = recipe.splits
    assert recipe.notes == []


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("caf\u00e9", "cafe\u0301", "'cafe\\u0301' and 'caf\u00e9'"),
        ("good", "good\u200b", "'good' and 'good\\u200b'"),
        ("good", "g\uff4fod", "'good' and 'g\uff4fod'"),
        ("good", "\u200fgood", "'good' and '\\u200fgood'"),
        ("\u2764", "\u2764\ufe0f", "'\u2764' and '\\u2764\\ufe0f'"),
    ],
)
def test_labels_that_look_the_same_are_told_apart(
    first: str, second: str, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", *lines(20, first), *lines(20, second, start=20))
    recipe = Reviews(dataset=path)

    assert len(recipe.labels) == 2
    assert recipe.notes == [
        f"similar labels kept as separate classes: {told}; to merge them, make them identical in "
        "the data"
    ]


@pytest.mark.parametrize(
    ("values", "names", "said"),
    [
        ([True, False], ["False", "True"], "labels are booleans: the classes are called 'False'"),
        ([0.0, 1.0], ["0", "1"], "labels are floating-point numbers: the class of 1.0 is called"),
        ([1, "x"], ["1", "x"], "labels are of several types: true is called 'True', 1 is"),
    ],
)
def test_labels_that_are_not_the_names_of_their_classes_are_told(
    values: list[Any], names: list[str], said: str, tmp_path: Path
) -> None:
    rows = [{"text": f"text {n}", "label": values[n % 2]} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = Reviews(dataset=str(tmp_path / "a.jsonl"))

    assert recipe.labels == names
    assert [note.startswith(said) for note in recipe.notes] == [True]


def test_truth_values_beside_bits_are_told(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": (0, 1, True)[n % 3]} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = Reviews(dataset=str(tmp_path / "a.jsonl"))
    assert recipe.labels == ["0", "1", "True"]
    told = "similar labels kept as separate classes: '1' and 'True'; to merge them, make them "
    assert any(note.startswith(told) for note in recipe.notes)
    assert any("--label_map True=1" in note for note in recipe.notes)


@pytest.mark.parametrize("marked", ['="good"', "'good"])
def test_a_mark_of_a_spreadsheet_makes_no_other_label(marked: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", *lines(20, "good"), *lines(10, marked, start=20))
    recipe = Reviews(dataset=path)
    told = f"similar labels kept as separate classes: {marked!r} and 'good'; to merge them"
    assert len(recipe.labels) == 2
    assert recipe.notes[0].startswith(told)


def test_labels_that_would_merge_are_refused(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": (1, "1", 2)[n % 3]} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    assert mistakes(tmp_path / "a.jsonl") == (
        "--label_column: 'label' holds both 1 and '1' (train data, line 2): expected one type; "
        "write one class in one way",
    )


def test_labels_of_bytes_are_refused(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b"], "label": [b"neg", b"pos"]}).to_parquet(tmp_path / "a.parquet")

    (mistake,) = mistakes(tmp_path / "a.parquet")

    assert "the column 'label' of the train data holds bytes, such as b'neg'" in mistake


def test_one_word_among_numbers_is_told(tmp_path: Path) -> None:
    rows = [*(f"text {n},{n % 2}" for n in range(299)), "text 299,x", "text 300,x"]
    recipe = Reviews(dataset=write(tmp_path / "a.csv", *rows))

    assert recipe.labels == ["0", "1", "x"]
    assert recipe.notes == [
        "labels are numbers except in 2 rows: 'x'; if these are mistakes, correct them in the data",
        "1 class with fewer than 10 training rows: 'x' (2); add rows, or merge them: --label_map "
        "OLD=NEW",
        "1 class of the training rows without a test row: 'x'; nothing is known of how well it is "
        "recognised; add test rows of it, or merge the class: --label_map OLD=NEW",
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_labels_of_a_csv_stay_as_written(suffix: str, tmp_path: Path) -> None:
    labels = ["0", "00", "01", "1.0"] * 10
    rows = (f"text {n}\t{label}" for n, label in enumerate(labels))
    path = tmp_path / f"a{suffix}"
    content = "\n".join(["text\tlabel", *rows]) + "\n"
    path.write_text(content if suffix == ".tsv" else content.replace("\t", ","))
    recipe = Reviews(dataset=str(path))

    assert recipe.labels == ["0", "00", "01", "1.0"]
    assert recipe.notes == [
        "similar labels kept as separate classes: '0' and '00'; '01' and '1.0'; to merge them, "
        "make them identical in the data, or --label_map 00=0,1.0=01",
        "4 classes with fewer than 10 training rows: '0' (7), '00' (7), '01' (7), '1.0' (8); add "
        "rows, or merge them: --label_map OLD=NEW",
    ]


def test_invalid_rows_of_every_split_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(20), ",good")
    write(tmp_path / "test.csv", *lines(9, start=50), "review,")

    first, second = mistakes(tmp_path)

    assert "1 of 21 train rows without a text: line 22;" in first
    assert "1 of 10 test rows without a label: line 11;" in second


def test_drop_invalid_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    rows = [*lines(100), ",good", "review 200,", ","]
    path = write(tmp_path / "reviews.csv", *rows)
    recipe = Reviews(dataset=path, drop_invalid=True)

    kept = sorted(each for split in recipe.splits.values() for each in split["id"])

    assert kept == list(range(100))
    assert recipe.labels == ["bad", "good"]
    assert recipe.notes == [
        "dropped 2 of 103 train rows without a text: lines 102, 104",
        "dropped 2 of 103 train rows without a label: lines 103, 104",
    ]


def test_a_missing_number_does_not_turn_labels_into_fractions(tmp_path: Path) -> None:
    rows = [f"review {number},{number % 3 + 1}" for number in range(99)]
    path = write(tmp_path / "reviews.csv", *rows, "review 99,")
    recipe = Reviews(dataset=path, drop_invalid=True)

    assert sum(recipe.splits.num_rows.values()) == 99
    assert recipe.labels == ["1", "2", "3"]


def test_nothing_left_after_dropping(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", ",bad", ",good")

    assert mistakes(path, drop_invalid=True) == (
        "the train data has no rows (dropped 2 of 2 train rows without a text: lines 2, 3)",
    )


@pytest.mark.parametrize("split", ["validation", "test"])
def test_labels_that_training_lacks(split: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(40))
    write(tmp_path / f"{split}.csv", *lines(8, start=100), "x,ugly", "y,awful")

    assert mistakes(tmp_path) == (
        f"the {split} data has labels in 'label' that the training data does not have: 'awful', "
        "'ugly', first in line 10 (write them as training does, by --label_map OLD=NEW, add "
        "training rows for them, or leave them out)",
    )


def test_many_labels_that_training_lacks_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", *lines(40))
    write(tmp_path / "test.csv", *(f"text {number},new {number}" for number in range(8)))

    (mistake,) = mistakes(tmp_path)

    assert "'new 0', 'new 1', 'new 2', 'new 3', 'new 4' and 3 more" in mistake


def test_too_few_rows_for_a_validation_set(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", *lines(4))

    assert "no rows are left for validation: the data is too small" in mistakes(path)


def test_what_emptied_a_split_is_told(tmp_path: Path) -> None:
    """By duplicates, by a leak, and by labels that are missing."""
    train = [f"text {n % 4},{'ab'[n % 2]}" for n in range(100)]
    path = write(tmp_path / "a.csv", *train)
    assert mistakes(path) == (
        "no rows are left for validation: the data is too small (dropped 96 exact duplicates)",
    )

    for name in ("train", "validation", "test"):
        write(tmp_path / f"{name}.csv", *lines(40, start=40 * (name == "train")))
    assert mistakes(tmp_path) == (
        "no rows are left for validation: the data is too small (not read: a.csv (expected train, "
        "validation and test); dropped 40 validation rows also found in the test set)",
    )

    write(tmp_path / "test.csv", "x,")
    assert mistakes(tmp_path, drop_invalid=True)[0].endswith(
        "dropped 1 of 1 test rows without a label: line 2; if its labels are hidden, "
        "--dataset_splits test=none does not read the split, and splits off another one)"
    )


def test_numbers_with_a_fraction_are_no_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv", "a,0.5", "b,1.0")

    (mistake,) = mistakes(path, task="single_label")

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


def test_leaving_out_every_row_is_no_advice(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"text": "", "label": "a"}\n{"text": " ", "label": "b"}\n')
    with pytest.raises(UserError, match="2 of 2 train rows without a text") as refusal:
        catalog.find("text")(dataset=str(path), text_column="text", label_column="label").load()
    assert "--drop_invalid" not in str(refusal.value)


# ---- columns that the toolkit writes -------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        SingleLabel(labels=["a", "b"]),
        SingleLabel(labels=[f"class {n}" for n in range(60)]),
        MultiLabel(labels=["a", "b"]),
        Regression(),
        Regression(labels=["stars", "words"]),
    ],
)
def test_columns_of_predictions_are_own(task: Task[Any]) -> None:
    outputs, targets = task.made_up()
    written = {*task.columns(targets, outputs), *task.predicted_names(every=True)}
    assert len(written) >= 2
    assert not [name for name in written if not is_own(name)]
    assert not any(map(is_own, ["stars", "labelled", "prediction_99", "probability_of"]))


def test_columns_of_the_names_of_predictions_are_dropped() -> None:
    names = ["probability", "label_probability", "prediction_2", "source"]
    columns = {name: [1, 2] for name in names}
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1], **columns})
    notes: list[str] = []
    found = findings.without_clashes(DatasetDict(train=rows), ["text", "label"], note=notes.append)
    assert found["train"].column_names == ["text", "label", "source"]
    assert notes == [
        "dropped from the data: 'probability', 'label_probability', 'prediction_2' (the toolkit "
        "writes columns of that name; rename to keep)",
        "'label' beside 'probability' is what predict writes: are the labels predictions?",
    ]
