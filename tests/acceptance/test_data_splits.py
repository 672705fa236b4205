"""Data: splits, duplicates, corrections and scale (rows C6 to C8, and C12)."""

import datetime
import decimal
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import DatasetDict

import finetune
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import flags, user_error
from tests.acceptance.test_data import Row, refusal, rows_of, text_recipe

SPLITS = ("train", "validation", "test")
HEAD = ("text", "label")
WORDS = [f"word{number}" for number in range(300)]
#: Texts of 50 words without a common word.
LONG = [" ".join(random.Random(number).choices(WORDS, k=50)) for number in range(200)]


def rows(count: int, labels: Sequence[str] = ("bad", "good"), first: int = 0) -> list[Row]:
    """Return rows with different texts and the labels in turn."""
    return [(f"text {n} of it", labels[n % len(labels)]) for n in range(first, first + count)]


def write(path: Path, table: Sequence[Sequence[Any]], head: Sequence[str] = HEAD) -> Path:
    """Write a CSV; if `head` ends with `number`, that column counts the rows."""
    numbered = head[-1] == "number"
    table = [(*row, n) for n, row in enumerate(table)] if numbered else table
    return data.write_csv(path, head, table)


def numbers(recipe: Text, *splits: str) -> list[int]:
    """Return the column `number` of the named splits, or of all, in order."""
    values = [number for name in splits or SPLITS for number in recipe.splits[name]["number"]]
    return sorted(map(int, values))


def split_rows(recipe: Text) -> dict[str, list[Row]]:
    """Return the rows of each split."""
    return {name: rows_of(split) for name, split in recipe.splits.items()}


def all_rows(recipe: Text) -> list[Row]:
    """Return the rows of all splits, sorted."""
    return sorted(row for split in split_rows(recipe).values() for row in split)


def note_of(recipe: Text, *fragments: str) -> str:
    """Return the only note with all fragments; numbers must match as a whole."""
    patterns = [rf"(?<!\d){re.escape(fragment)}(?!\d)" for fragment in fragments]
    (note,) = [note for note in recipe.notes if all(re.search(part, note) for part in patterns)]
    return note


# ---- C6: duplicates, contradictions, rows of held-out splits -------------------------------------


@pytest.mark.contract("C6")
def test_exact_duplicates_are_dropped_before_splitting(tmp_path: Path) -> None:
    """The first is kept, white space is ignored, and split sizes refer to the remaining rows."""
    spaced = ["  text  7\nof it ", "text\u30008 of it"]
    table = [*rows(100), *rows(30), (spaced[0], "good"), (spaced[1], "bad")]
    path = write(tmp_path / "a.csv", table, (*HEAD, "number"))
    recipe = text_recipe(path)
    assert recipe.splits.num_rows == {"train": 72, "validation": 8, "test": 20}
    assert numbers(recipe) == list(range(100))
    assert note_of(recipe, "duplicate") == note_of(recipe, "32")


@pytest.mark.contract("C6")
@pytest.mark.parametrize(("keep", "last"), [("none", 90), ("first", 100)])
def test_contradictions_are_left_out_or_the_first_is_kept(
    keep: str, last: int, tmp_path: Path
) -> None:
    """Ten texts have two labels and three rows; ten others are repeated with their label."""
    other = [(text, "good" if label == "bad" else "bad") for text, label in rows(10, first=90)]
    path = write(tmp_path / "a.csv", [*rows(100), *rows(10), *other, *other], (*HEAD, "number"))
    recipe = text_recipe(path, **({} if keep == "none" else {"keep_contradictions": keep}))
    assert numbers(recipe) == list(range(last))
    note = note_of(recipe, "30", "10", *(["20"] if keep == "first" else []))
    assert ("--keep_contradictions first" in note) == (keep == "none")
    assert note_of(recipe, "duplicate", "10") != note


@pytest.mark.contract("C6")
@pytest.mark.parametrize("seed", range(3))
def test_numbers_of_one_text_do_not_contradict_and_stay_in_one_split(
    seed: int, tmp_path: Path
) -> None:
    """Regression keeps rows of one text with different numbers, all in the same split.

    Rows of one text with the same number are duplicates: dropped and counted.
    """
    table = [(f"text {n % 40} of it", n / 7) for n in range(120)]
    path = write(tmp_path / "a.csv", [*table, *table[:10]], (*HEAD, "number"))
    recipe = text_recipe(path, task="regression", split_seed=seed)
    assert numbers(recipe) == list(range(120))
    texts = [set(recipe.splits[name]["text"]) for name in SPLITS]
    assert sum(map(len, texts)) == 40
    assert min(map(len, texts)) > 0
    assert note_of(recipe, "duplicate") == note_of(recipe, "10")
    assert "--keep_contradictions first" in note_of(recipe, "130", "40")
    recipe = text_recipe(path, task="regression", split_seed=seed, keep_contradictions="first")
    assert numbers(recipe) == list(range(40))


@pytest.mark.contract("C6", "C7")
@pytest.mark.parametrize("flag", ["group_column", "time_column"])
def test_numbers_of_one_text_stay_together_by_group_and_time(flag: str, tmp_path: Path) -> None:
    """A text in two groups joins them; rows of one text have the time of the oldest."""
    table = [(f"text {n % 60} of it", n / 7, n // 2) for n in range(120)]
    path = write(tmp_path / "a.csv", table, (*HEAD, "by", "number"))
    recipe = text_recipe(path, task="regression", **{flag: "by"})
    assert numbers(recipe) == list(range(120))
    texts = [set(recipe.splits[name]["text"]) for name in SPLITS]
    assert sum(map(len, texts)) == 60
    assert min(map(len, texts)) > 0
    if flag == "group_column":
        assert sum(len(set(recipe.splits[name]["by"])) for name in SPLITS) == 60


@pytest.mark.contract("C6")
def test_rows_of_held_out_splits_are_not_trained_on_and_stay_as_they_are(tmp_path: Path) -> None:
    """Rows of the test set are not in validation either; the test set keeps its duplicates."""
    train, flipped = rows(100), [(text, "odd") for text, _ in rows(3, first=60)]
    validation = [*rows(20, first=200), *rows(5, first=50), ("test row 1", "odd")]
    test = [("test row 1", "good"), ("test row 1", "good"), ("test row 2", "bad"),
            ("test row 2", "good"), (" text 7\n of it", "good"), *flipped]  # fmt: skip
    for name, table in zip(
        SPLITS, ([*train, ("test row 3", "odd")], validation, test), strict=True
    ):
        write(tmp_path / f"{name}.csv", table)
    recipe = text_recipe(tmp_path)
    splits = split_rows(recipe)
    assert splits["test"] == test
    assert splits["validation"] == validation[:-1]
    dropped = {7, *range(50, 55), *range(60, 63)}
    expected = [row for number, row in enumerate(train) if number not in dropped]
    assert splits["train"] == [*expected, ("test row 3", "odd")]
    assert note_of(recipe, "4 of 101 train", "3 with another label", "test data")
    assert note_of(recipe, "5 of 101 train", "validation data")
    assert note_of(recipe, "1 of 26 validation", "test data")


@pytest.mark.contract("C6", "B1")
def test_pairs_are_duplicates_where_both_texts_are(tmp_path: Path) -> None:
    """Pairs with one common text are neither duplicates nor contradictions."""
    pairs = [(f"text {n % 50}", f"other {n}", "ab"[n % 2]) for n in range(100)]
    table = [*pairs, ("text  3", "other 3 ", "b"), ("text 4", "other 4", "b")]
    path = write(tmp_path / "a.csv", table, ("one", "two", "label", "number"))
    recipe = Text(dataset=str(path), model="none", text_columns="one,two", label_column="label")
    assert numbers(recipe) == [n for n in range(100) if n != 4]


@pytest.mark.contract("C6", "A7")
def test_what_is_left_out_is_printed(cli: Callable[..., Any], tmp_path: Path, bert: Path) -> None:
    """The start of a training prints it."""
    contradiction = [(text, "good" if label == "bad" else "bad") for text, label in rows(4)]
    path = write(tmp_path / "a.csv", [*rows(120), *contradiction, *rows(7, first=20)])
    words = flags(dataset=path, model=bert, max_length=16)
    page = " ".join(cli("text", *words, "--dry_run").succeeded().stdout.split())
    assert re.search(r"\b8 of 131 train.{,80}\b4\b.{,160}--keep_contradictions first", page)
    assert re.search(r"\b7 of 131\b[^\d]{,40}duplicate", page)


# ---- C7: splits ----------------------------------------------------------------------------------


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("count", "options", "sizes"),
    [
        (100, {}, [72, 8, 20]),
        (1000, {}, [720, 80, 200]),
        (1003, {}, [722, 80, 201]),
        (200, {"test_size": 0.5}, [90, 10, 100]),
        (200, {"validation_size": 0.3}, [100, 60, 40]),
        (200, {"test_size": 0.3, "validation_size": 0.3}, [80, 60, 60]),
        (200, {"test_size": 25, "validation_size": 15}, [160, 15, 25]),
    ],
)
def test_splits_are_stratified_and_have_the_size_that_was_asked_for(
    count: int, options: dict[str, Any], sizes: list[int], tmp_path: Path
) -> None:
    """Class shares are right to a row; each row is in one split, in the order of the file."""
    names = [*"aaaaabbbb", "c"]  # half, two fifths, a tenth
    path = write(tmp_path / "a.csv", rows(count, names), (*HEAD, "number"))
    recipe = text_recipe(path, **options)
    assert list(recipe.splits.num_rows.values()) == sizes
    assert numbers(recipe) == list(range(count))
    classes = Counter(label for _, label in rows(count, names))
    for name, split in split_rows(recipe).items():
        for label, total in classes.items():
            share = Counter(label for _, label in split)[label]
            assert abs(share - total * len(split) / count) <= 1.01, (name, label)
        order = list(map(int, recipe.splits[name]["number"]))
        assert order == sorted(order)
        assert order != list(range(order[0], order[0] + len(order)))


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ({"test_size": 0}, ["--test_size 0"]),
        ({"validation_size": -0.5}, ["--validation_size -0.5"]),
        ({"validation_size": 2.5}, ["--validation_size 2.5"]),
        ({"test_size": 0.5, "validation_size": 0.5}, ["--test_size 0.5", "--validation_size 0.5"]),
        ({"test_size": 60}, ["--test_size 60", "60"]),
        ({"test_size": 40, "validation_size": 20}, ["--validation_size 20", "40"]),
        ({"train_samples": 0}, ["--train_samples 0"]),
        ({"eval_samples": -3}, ["--eval_samples -3"]),
        ({"group_column": "a", "time_column": "b"}, ["--group_column a", "--time_column b"]),
        ({"group_column": "autor"}, ["--group_column", "'autor'", "'author'"]),
    ],
)
def test_splits_that_cannot_be_made_are_refused_by_their_flag(
    options: dict[str, Any], fragments: list[str], tmp_path: Path
) -> None:
    """Sizes above the number of rows, missing columns, flags that exclude each other."""
    path = write(tmp_path / "a.csv", [(*row, "x") for row in rows(60)], (*HEAD, "author"))
    with user_error(*fragments):
        _ = text_recipe(path, **options).splits


@pytest.mark.contract("C7")
def test_splits_of_the_source_are_used_and_only_the_missing_one_is_split_off(
    tmp_path: Path,
) -> None:
    """A size for an existing split is refused."""
    write(tmp_path / "train.csv", rows(100))
    write(tmp_path / "validation.csv", rows(20, first=500))
    splits = split_rows(text_recipe(tmp_path))
    assert [len(splits[name]) for name in SPLITS] == [80, 20, 20]
    assert splits["validation"] == rows(20, first=500)
    assert sorted(splits["train"] + splits["test"]) == sorted(rows(100))
    assert "--validation_size" in refusal(text_recipe(tmp_path, validation_size=0.2))


@pytest.mark.contract("C7")
def test_a_time_column_without_effect_is_printed(tmp_path: Path) -> None:
    """The data has all splits, which stay as they are."""
    for number, name in enumerate(SPLITS):
        table = [(*row, n) for n, row in enumerate(rows(20, first=100 * number))]
        write(tmp_path / f"{name}.csv", table, (*HEAD, "day"))
    recipe = text_recipe(tmp_path, time_column="day")
    assert recipe.splits.num_rows == dict.fromkeys(SPLITS, 20)
    assert "no rows are split off by time" in note_of(recipe, "--time_column day")


@pytest.mark.contract("C7")
def test_a_validation_set_has_at_most_10_000_rows(tmp_path: Path) -> None:
    """The data has 101,000 training rows."""
    write(tmp_path / "train.csv", rows(101_000))
    write(tmp_path / "test.csv", rows(10, first=200_000))
    sizes = {"train": 91_000, "validation": 10_000, "test": 10}
    assert text_recipe(tmp_path).splits.num_rows == sizes


@pytest.mark.contract("C6", "C7")
def test_rows_sampled_of_very_many_are_in_one_split(tmp_path: Path) -> None:
    """In 120,000 rows with each text twice, a row is in the same split as without a sample."""
    path = write(tmp_path / "a.csv", rows(60_000) * 2)
    recipe = text_recipe(path, train_samples=9000, eval_samples=2000)
    assert recipe.splits.num_rows == {"train": 9000, "validation": 2000, "test": 2000}
    table = all_rows(recipe)
    assert len({text for text, _ in table}) == 13_000
    assert set(table) <= set(rows(60_000))
    undrawn = split_rows(text_recipe(path))
    for name, split in split_rows(recipe).items():
        assert set(split) <= set(undrawn[name])


@pytest.mark.contract("C7")
def test_a_class_of_one_row_stays_in_training(tmp_path: Path) -> None:
    """Otherwise an evaluation would have a class that was not trained."""
    rare = [(f"rare {number} it is", f"rare {number}") for number in range(12)]
    path = write(tmp_path / "a.csv", [*rows(100), *rare])
    for seed in range(3):
        splits = split_rows(text_recipe(path, split_seed=seed))
        assert [len(splits[name]) for name in SPLITS] == [81, 9, 22]
        assert set(rare) <= set(splits["train"])


@pytest.mark.contract("C7", "A13")
def test_splits_depend_on_the_split_seed_only(
    tmp_path: Path, reviews: Path, single_label_run: finetune.Run, second_seed_run: finetune.Run
) -> None:
    """They do not depend on the training seed, other options or the path of the file."""
    moved = shutil.copy(reviews, tmp_path / "moved.csv")
    splits = split_rows(text_recipe(reviews))
    assert sorted(row for split in splits.values() for row in split) == sorted(
        pd.read_csv(reviews)[list(HEAD)].itertuples(index=False, name=None)
    )
    assert split_rows(text_recipe(moved, split_seed=42)) == splits
    for options in (dict(max_length=9), dict(model="embedded:minilm"), dict(hidden_dropout=0.5)):
        assert split_rows(text_recipe(reviews, **options)) == splits
    assert split_rows(text_recipe(reviews, train_samples=50))["test"] == splits["test"]
    other = split_rows(text_recipe(reviews, split_seed=7))
    for name in SPLITS:
        assert len(other[name]) == len(splits[name])
        assert sorted(other[name]) != sorted(splits[name])
    for run in (single_label_run, second_seed_run):
        frame = run.predictions
        assert list(zip(frame["text"], frame["label"], strict=True)) == splits["test"]


@pytest.mark.contract("C7")
def test_labels_and_pairs_of_labels_keep_their_shares(tmp_path: Path) -> None:
    """Iterative stratification is closer than a random draw for every label and pair."""
    draw, table = random.Random(0), []
    chances = {"often": 0.6, "half": 0.4, "some": 0.15, "rare": 0.03, "rarer": 0.02}
    for number in range(1000):
        names = [name for name, chance in chances.items() if draw.random() < chance]
        table.append({"text": f"text {number} of it", "label": names})
    lines = "\n".join(map(json.dumps, table))
    (tmp_path / "a.jsonl").write_text(lines)
    recipe = text_recipe(tmp_path / "a.jsonl")
    assert recipe.splits.num_rows == {"train": 720, "validation": 80, "test": 200}
    total = Counter(name for row in table for name in row["label"])
    total.update(("often", "half") for row in table if {"often", "half"} <= set(row["label"]))
    names = recipe.labels
    for split in recipe.splits.values():
        labels = [{names[number] for number in row} for row in split["label"]]
        source = {row["text"]: set(row["label"]) for row in table}
        assert labels == [source[text] for text in split["text"]]
        count = Counter(name for row in labels for name in row)
        count.update(("often", "half") for row in labels if {"often", "half"} <= row)
        for name, rows_with_it in total.items():
            assert abs(count[name] - rows_with_it * len(split) / 1000) < 2, name


def authors(count: int, groups: int) -> list[tuple[str, str, str]]:
    """Return rows of authors with one to five rows each; a quarter of the labels is rare."""
    draw, table = random.Random(1), []
    while len(table) < count:
        author = f"author {len({row[2] for row in table}) % groups}"
        for _ in range(min(draw.randint(1, 5), count - len(table))):
            label = "rare" if draw.random() < 0.25 else "often"
            table.append((f"text {len(table)} of it", label, author))
    return table


@pytest.mark.contract("C7")
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_never_in_two_splits(seed: int, tmp_path: Path) -> None:
    """Sizes and class shares are as close as groups allow."""
    table = authors(300, 200)
    path = write(tmp_path / "a.csv", table, (*HEAD, "author"))
    recipe = text_recipe(path, group_column="author", split_seed=seed)
    groups = [set(recipe.splits[name]["author"]) for name in SPLITS]
    assert sum(map(len, groups)) == len(set.union(*groups)) == len({row[2] for row in table})
    assert all_rows(recipe) == sorted(row[:2] for row in table)
    sizes = recipe.splits.num_rows
    assert abs(sizes["test"] - 60) <= 2
    assert abs(sizes["validation"] - 24) <= 2
    share = sum(row[1] == "rare" for row in table) / 300
    for name in ("validation", "test"):
        rare = sum(label == "rare" for _, label in split_rows(recipe)[name])
        assert abs(rare - share * sizes[name]) <= 2
    assert "author" in recipe.loaded.facts.split_how


@pytest.mark.contract("C7")
def test_a_class_of_one_group_stays_in_training(tmp_path: Path) -> None:
    """It does even if most rows are split off."""
    table = authors(200, 100)
    table += [(f"rare {n} of it", f"class {n // 4}", f"only {n // 4}") for n in range(20)]
    path = write(tmp_path / "a.csv", table, (*HEAD, "author"))
    recipe = text_recipe(path, group_column="author", test_size=0.6)
    assert {row[:2] for row in table[200:]} <= set(split_rows(recipe)["train"])


@pytest.mark.contract("C7")
@pytest.mark.parametrize(("name", "held_out"), [("author {}", "author 3"), ("{}", "3.0")])
def test_groups_of_a_test_set_are_not_trained_on(name: str, held_out: str, tmp_path: Path) -> None:
    """Test rows stay; training rows of the same groups are dropped and counted. pandas writes whole
    numbers beside missing ones as 3.0.
    """
    train = [(*row, name.format(number % 20)) for number, row in enumerate(rows(200))]
    test = [(*row, held_out) for row in rows(20, first=500)]
    write(tmp_path / "train.csv", train, (*HEAD, "author"))
    write(tmp_path / "test.csv", test, (*HEAD, "author"))
    recipe = text_recipe(tmp_path, group_column="author")
    splits = split_rows(recipe)
    assert splits["test"] == [row[:2] for row in test]
    expected = [row[:2] for row in train if row[2] != name.format(3)]
    assert sorted(splits["train"] + splits["validation"]) == sorted(expected)
    assert note_of(recipe, "'author'") == note_of(recipe, "10", "train")
    (finding,) = [note for note in recipe.report.findings if "'author'" in note.message]
    assert (finding.name, finding.count, finding.rows[:2]) == ("dropped_rows", 10, [3, 23])


@pytest.mark.contract("C7")
@pytest.mark.parametrize("column", ["group_column", "time_column"])
def test_rows_without_a_group_or_time_are_refused_or_left_out(column: str, tmp_path: Path) -> None:
    """The message has their lines and the flag."""
    table = [(*row, "" if n in (0, 4) else 2000 + n % 50) for n, row in enumerate(rows(200))]
    path = write(tmp_path / "a.csv", table, (*HEAD, "year", "number")[:3])
    message = refusal(text_recipe(path, **{column: "year"}))
    for fragment in ("2 of 200", "'year'", "lines 2, 6", "--drop_invalid"):
        assert fragment in message
    recipe = text_recipe(path, drop_invalid=True, **{column: "year"})
    expected = [row[:2] for row in table if row[2]]
    assert all_rows(recipe) == sorted(expected)
    assert "lines 2, 6" in note_of(recipe, "2 of 200")


@pytest.mark.contract("C7")
@pytest.mark.parametrize(("names", "count"), [((1, "1", 2, 3), 3), (("a", "A", " A", "b"), 4)])
def test_groups_are_compared_as_text(names: tuple[Any, ...], count: int, tmp_path: Path) -> None:
    """The number 1 and the text "1" are one group; others that differ by case get a note."""
    lines = [
        {"text": t, "label": label, "g": names[n % 4]} for n, (t, label) in enumerate(rows(80))
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = text_recipe(tmp_path / "a.jsonl", group_column="g")
    groups = [{str(group) for group in split["g"]} for split in recipe.splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == count
    notes = [note for note in recipe.notes if "--group_column g" in note]
    assert ["'a' and 'A' and ' A'" in note for note in notes] == [True] * (count == 4)


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("group", "other", "held_out"),
    [
        (4915112345678.0, 1.5, 4915112345678),
        (decimal.Decimal("4915.00"), decimal.Decimal("0.50"), 4915),
        (datetime.datetime(2024, 1, 31), datetime.datetime(2024, 2, 1, 12, 30), "2024-01-31"),
    ],
)
def test_groups_of_another_type_in_the_test_rows_are_the_same(
    group: Any, other: Any, held_out: Any
) -> None:
    """As pandas and databases write the number of a customer, or a day."""
    train = pd.DataFrame(rows(80), columns=["text", "label"])
    test = pd.DataFrame(rows(9, first=100), columns=["text", "label"])
    validation = pd.DataFrame(rows(9, first=200), columns=["text", "label"])
    source = {
        "train": train.assign(customer=[group, group] + [other] * 39 + [None] * 39),
        "validation": validation.assign(customer="another"),
        "test": test.assign(customer=held_out),
    }
    recipe = text_recipe(source, group_column="customer", drop_invalid=True)
    _ = recipe.splits
    assert "2 of 80 train rows" in note_of(recipe, "'customer' is also in held-out data")


@pytest.mark.contract("C7")
def test_a_group_with_the_name_of_a_missing_value_is_reported(tmp_path: Path) -> None:
    table = [(*row, ["x", "y", "NaN", "z"][number % 4]) for number, row in enumerate(rows(80))]
    recipe = text_recipe(write(tmp_path / "a.csv", table, (*HEAD, "author")), group_column="author")
    _ = recipe.splits
    assert "all rows with 'NaN' are one group" in note_of(recipe, "may be a missing value")


@pytest.mark.contract("C7")
def test_too_few_groups_are_refused(tmp_path: Path) -> None:
    """There are two groups for three splits."""
    table = [(*row, "xy"[number % 2]) for number, row in enumerate(rows(60))]
    path = write(tmp_path / "a.csv", table, (*HEAD, "author"))
    message = refusal(text_recipe(path, group_column="author"))
    assert "--group_column author" in message
    assert "2 groups" in message


def days(count: int, form: str) -> list[str]:
    return pd.date_range("2023-11-20", periods=count, freq="D").strftime(form).tolist()


@pytest.mark.contract("C7")
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%s", "%Y%m%d", "types"])
def test_the_newest_rows_are_the_test_set(form: str, tmp_path: Path) -> None:
    """Validation has the next newest; dates in ISO 8601, numbers and Parquet times are sorted."""
    order = np.random.default_rng(0).permutation(200)
    dates = pd.date_range("2023-11-20", periods=200, freq="D", tz="Europe/Berlin")
    values = dates if form == "types" else days(200, form)
    frame = pd.DataFrame(rows(200), columns=HEAD).assign(day=values, number=range(200))
    path = tmp_path / ("a.parquet" if form == "types" else "a.csv")
    frame = frame.iloc[order]
    frame.to_parquet(path) if form == "types" else frame.to_csv(path, index=False)
    recipe = text_recipe(path, time_column="day")
    assert numbers(recipe, "train") == list(range(144))
    assert numbers(recipe, "validation") == list(range(144, 160))
    assert numbers(recipe, "test") == list(range(160, 200))


@pytest.mark.contract("C7")
def test_rows_of_one_time_stay_together_and_the_oldest_duplicate_is_kept(tmp_path: Path) -> None:
    """So split sizes may differ from those requested."""
    parts = np.repeat(["2023-01-01", "2023-01-02", "2023-01-03"], [90, 60, 50])
    table = [(*row, day) for row, day in zip(rows(200), parts, strict=True)]
    path = write(tmp_path / "a.csv", table, (*HEAD, "day"))
    recipe = text_recipe(path, time_column="day")
    assert [set(recipe.splits[name]["day"]) for name in SPLITS] == [
        {"2023-01-01"},
        {"2023-01-02"},
        {"2023-01-03"},
    ]
    table = [(*row, day) for row, day in zip(rows(200), days(200, "%Y-%m-%d")[::-1], strict=True)]
    table[0] = (*table[150][:2], table[0][2])  # the newest row repeats an old one
    path = write(tmp_path / "b.csv", table, (*HEAD, "day", "number"))
    recipe = text_recipe(path, time_column="day")
    assert numbers(recipe) == list(range(1, 200))
    assert 150 in numbers(recipe, "train")


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("values", "fragments"),
    [
        (["2023-01-01"] * 200, ["1 time"]),
        (["n/a", *days(199, "%Y-%m-%d")], ["line 2", "--drop_invalid"]),
        (["05/06/2023", "07/08/2023"] * 100, ["05/06/2023", "2024-01-31"]),
        (days(200, "%d.%m.%Y"), ["20.11.2023", "2024-01-31"]),
        (["soon", "later"] * 100, ["'soon'"]),
        (["1", "inf", *map(str, range(198))], ["1 of 200", "'inf'", "line 3", "--time_column"]),
        ([*days(199, "%Y-%m-%d"), "2024-W05-1"], ["1 of 200", "'2024-W05-1'", "line 201"]),
    ],
    ids=["one", "no date", "slashes", "dots", "words", "infinite", "week"],
)
def test_times_that_cannot_be_ordered_are_refused(
    values: list[str], fragments: list[str], tmp_path: Path
) -> None:
    """The message has the flag and a value."""
    table = [(*row, value) for row, value in zip(rows(200), values, strict=True)]
    message = refusal(
        text_recipe(write(tmp_path / "a.csv", table, (*HEAD, "day")), time_column="day")
    )
    for fragment in ["day", *fragments]:
        assert fragment in message


#: Times of 200 rows, one every third day from November 2021: the form, and the order of the rows or
#: a part of the message. A form is of `strftime`, or a function of a `Timestamp`.
TIMES: dict[str, tuple[Any, str]] = {
    "seconds": ("%s", "in order"),
    "milliseconds": (lambda day: int(day.timestamp() * 1000), "in order"),
    "floats": (lambda day: day.timestamp() + 0.5, "in order"),
    "year month day": ("%Y%m%d", "in order"),
    "year month": ("%Y%m", "in order"),
    "year.month": ("%Y.%m", "in order"),
    "year quarter": (lambda day: f"{day.year}{day.quarter}", "in order"),
    "decimal years": (lambda day: round(day.year + day.day_of_year / 400, 2), "in order"),
    "Excel's days": (lambda day: (day - pd.Timestamp("1899-12-30")).days, "in order"),
    "a counter": (lambda day: (day - pd.Timestamp("2021-11-20")).days // 3 + 1000, "in order"),
    "counts": (lambda day: (day - pd.Timestamp("2021-11-20")).days + 950, "in order"),
    "five digits": (lambda day: (day - pd.Timestamp("2021-11-20")).days + 14400, "in order"),
    "zones": (lambda day: f"{day + pd.Timedelta(hours=day.day % 3)}+0{day.day % 3}:00", "in order"),
    "month.year": ("%m.%Y", "%m.%Y"),
    "day month year": ("%d%m%Y", "%d%m%Y"),
    "month day year": ("%m%d%Y", "%m%d%Y"),
    "lost zeros": (lambda day: int(day.strftime("%d%m%Y")), "%d%m%Y"),
    "floats of days": (lambda day: float(day.strftime("%d%m%Y")), "%d%m%Y"),
    "short years": ("%d%m%y", "%d%m%y"),
    "quarter year": (lambda day: f"{day.quarter}{day.year}", "%m%Y"),
    "week year": ("%V%G", "%j%Y"),
    "months of one digit": (lambda day: f"{day.year}.{day.month}", "%Y.%m"),
    "day.month": ("%d.%m", "%d.%m"),
    "one mistake": (lambda day: 0 if day.day == 1 else day.strftime("%d%m%Y"), "%d%m%Y"),
    "two units": (lambda day: int(day.timestamp() * (1000 if day.day % 2 else 1)), "one unit"),
    "years and months": (lambda day: day.strftime("%Y%m" if day.day % 2 else "%Y"), "one unit"),
    "named zones": ("%Y-%m-%d CET", "CET'"),
    "times of day": ("%H:%M", "'00:00'"),
    "thousands": (lambda day: f"{day.day_of_year * 9:,}".replace(",", "."), "'1.008'"),
}


def write_times(path: Path, form: Any) -> Path:
    """Write 200 rows in a random order, with the column `number` in the order of time."""
    times = pd.Series(pd.date_range("2021-11-20", periods=200, freq="3D"))
    values = times.map(form) if callable(form) else times.dt.strftime(form)
    frame = pd.DataFrame(rows(200), columns=HEAD).assign(day=values, number=range(200))
    frame.iloc[np.random.default_rng(0).permutation(200)].to_csv(path, index=False)
    return path


@pytest.mark.contract("C7")
@pytest.mark.parametrize("name", TIMES)
def test_numbers_are_times_only_if_they_are_in_order(name: str, tmp_path: Path) -> None:
    """Numbers that may be dates in another order are refused with the format to set."""
    form, expected = TIMES[name]
    path = write_times(tmp_path / "a.csv", form)
    recipe = text_recipe(path, time_column="day")
    if expected != "in order":
        message = refusal(recipe)
        for fragment in ("--time_column day", "--time_format", expected):
            assert fragment in message
        return
    newest = numbers(recipe, "test")
    assert newest == list(range(200 - len(newest), 200))
    assert len(newest) < 100


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("form", "time_format"),
    [
        ("%d.%m.%Y", "%d.%m.%Y"),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
        ("%d%m%Y", "%d%m%Y"),
        (TIMES["lost zeros"][0], "%d%m%Y"),
        (TIMES["floats of days"][0], "%d%m%Y"),
        ("%G-W%V-%u", "%G-W%V-%u"),
    ],
)
def test_dates_are_read_in_the_format_that_is_named(
    form: Any, time_format: str, tmp_path: Path
) -> None:
    path = write_times(tmp_path / "a.csv", form)
    recipe = text_recipe(path, time_column="day", time_format=time_format)
    assert numbers(recipe, "test") == list(range(160, 200))
    recipe = text_recipe(path, time_column="day", time_format="%d/%m/%Y")
    assert "200 of 200" in refusal(recipe)


@pytest.mark.contract("C7")
@pytest.mark.parametrize("time_format", ["%d.%m", "%d.%m.%Y", "%Y-%m-%d %I %p"])
def test_a_time_format_without_a_year_is_reported(time_format: str, tmp_path: Path) -> None:
    """December is after January then, whatever the year."""
    path = write_times(tmp_path / "a.csv", time_format)
    recipe = text_recipe(path, time_column="day", time_format=time_format)
    _ = recipe.splits
    assert any("no year" in note for note in recipe.notes) == (time_format == "%d.%m")


@pytest.mark.contract("C7", "F4")
def test_a_time_format_that_says_nothing_is_refused(tmp_path: Path) -> None:
    """`number` reads numbers as they are; a format needs a column and directives."""
    path = write_times(tmp_path / "a.csv", TIMES["quarter year"][0])
    in_order = pd.read_csv(path).sort_values("day")["number"]
    recipe = text_recipe(path, time_column="day", time_format="number")
    newest = numbers(recipe, "test")
    assert newest == sorted(in_order.iloc[-len(newest) :])
    for options, fragment in (
        ({"time_format": "%d.%m.%Y"}, "needs --time_column"),
        ({"time_column": "day", "time_format": "german"}, "--time_format german"),
        ({"time_column": "day", "time_format": "%d.%Q"}, "--time_format %d.%Q"),
        ({"time_column": "day", "time_format": "%Y-%m-%d %I:%M"}, "both %I and %p"),
        ({"time_column": "day", "time_format": "%Y-%m-%d %H:%M %p"}, "both %I and %p"),
    ):
        with user_error(fragment):
            _ = text_recipe(path, **options).splits


@pytest.mark.contract("C5", "C7")
def test_a_class_that_only_the_newest_rows_have_is_refused(tmp_path: Path) -> None:
    """It cannot be learned from the older rows."""
    names = ["new" if number > 190 else "ab"[number % 2] for number in range(200)]
    table = zip([text for text, _ in rows(200)], names, days(200, "%Y-%m-%d"), strict=True)
    path = write(tmp_path / "a.csv", list(table), (*HEAD, "day"))
    message = refusal(text_recipe(path, time_column="day"))
    assert "'new'" in message
    assert "line 193" in message


class Counted(Text):
    """A recipe that counts the rows that it tokenizes."""

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        self.tokenized = dataset.num_rows
        return super().prepare(dataset)


@pytest.mark.contract("C7")
@pytest.mark.parametrize("samples", [3, 50, 720])
def test_samples_are_drawn_by_class_before_tokenization(
    samples: int, tmp_path: Path, bert: Path
) -> None:
    """Splits are made first; samples have at most their rows."""
    path = write(tmp_path / "a.csv", rows(1000, [*"aaaaaaabbc"]))
    undrawn = split_rows(text_recipe(path))
    columns = {"text_column": "text", "label_column": "label", "max_length": 16}
    options: dict[str, Any] = {"train_samples": samples, "eval_samples": samples, **columns}
    recipe = Counted(dataset=str(path), model=str(bert), **options)
    sizes = {"train": samples, "validation": min(samples, 80), "test": min(samples, 200)}
    assert recipe.splits.num_rows == sizes
    assert recipe.prepared.num_rows == sizes
    assert recipe.tokenized == sizes
    for name, split in split_rows(recipe).items():
        assert set(split) <= set(undrawn[name])
        if samples == 50:
            assert Counter(label for _, label in split) == {"a": 35, "b": 10, "c": 5}


# ---- C8: near duplicates and corrections ---------------------------------------------------------


def replace_words(text: str, count: int) -> str:
    """Return a text with a few words replaced; each loses two word pairs."""
    words = text.split()
    for number in range(count):
        words[10 * number + 5] = f"other{number}"
    return " ".join(words)


@pytest.mark.contract("C8")
def test_near_duplicates_are_dropped_before_rows_are_split(tmp_path: Path) -> None:
    """With the option, only the first of texts with 80% common word pairs is kept."""
    near = [(f"{text.upper()}!", "bad" if n < 7 else "good") for n, text in enumerate(LONG[:60])]
    edited = [(replace_words(text, 2), "bad") for text in LONG[60:90]]  # 85% of the pairs
    distant = [(replace_words(text, 3), "bad") for text in LONG[90:100]]  # 78% of the pairs
    table = [(text, "good" if number % 2 else "bad") for number, text in enumerate(LONG)]
    table += near + edited + distant
    path = write(tmp_path / "a.csv", table, (*HEAD, "number"))
    assert numbers(text_recipe(path)) == list(range(300))
    recipe = text_recipe(path, drop_duplicates="near")
    assert numbers(recipe) == [*range(200), *range(290, 300)]
    different = sum(table[200 + n][1] != table[n][1] for n in range(90))
    assert "near" in note_of(recipe, "90", str(different))


@pytest.mark.contract("C8")
def test_training_rows_near_held_out_rows_are_dropped(tmp_path: Path) -> None:
    """So are validation rows near test rows; the test set stays as it is."""
    originals = [(text, "good" if number % 2 else "bad") for number, text in enumerate(LONG)]
    repeated = [(f"{text} again", label) for text, label in originals]
    train = originals[:150] + repeated[150:170]
    validation, test = originals[150:180] + repeated[180:185], originals[180:] + repeated[199:]
    for name, table in zip(SPLITS, (train, validation, test), strict=True):
        write(tmp_path / f"{name}.csv", table)
    assert split_rows(text_recipe(tmp_path))["train"] == train
    recipe = text_recipe(tmp_path, drop_overlap="near")
    assert split_rows(recipe) == {
        "train": originals[:150],
        "validation": originals[150:180],
        "test": test,
    }
    assert note_of(recipe, "20") == note_of(recipe, "20 of 170 train")
    assert note_of(recipe, "5") == note_of(recipe, "5 of 35 validation")
    assert split_rows(text_recipe(tmp_path, drop_duplicates="near"))["train"] == train


def suspects_of(path: Path, cli: Callable[..., Any], bert: Path, **options: Any) -> pd.DataFrame:
    """Return the file of `check --suspects`, which is beside the data, as strings."""
    output = path.with_name("suspects.csv")
    options |= dict(dataset=path, model=bert, max_length=32, suspects=output)
    assert cli("check", "text", *flags(**options)).status == 3
    return pd.read_csv(output, dtype=str, keep_default_na=False, encoding="utf-8-sig")


#: Rows of `doubtful`, and their positions in its file.
DOUBTFUL = {4: "line 6", 50: "line 52", 51: "line 53", 120: "line 122"}


def doubtful() -> list[Row]:
    """Return 300 rows, four of them without a letter."""
    return [
        (f"§ {n} ?!" if n in DOUBTFUL else text, label) for n, (text, label) in enumerate(rows(300))
    ]


@pytest.mark.contract("C8")
@pytest.mark.parametrize("saved", ["csv", "semicolons", "xlsx"])
def test_suspects_come_back_as_corrected_or_excluded_rows(
    saved: str, cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """`--relabel` and `--exclude` apply an edited file to its rows and no others."""
    path = write(tmp_path / "a.csv", doubtful())
    frame = suspects_of(path, cli, bert)
    assert list(frame["place"]) == list(DOUBTFUL.values())
    assert [*zip(frame["text"], frame["label"], strict=True)] == [
        doubtful()[number] for number in DOUBTFUL
    ]
    frame["new_label"] = ["good", "drop", "", "good"]
    edited = tmp_path / f"edited.{'xlsx' if saved == 'xlsx' else 'csv'}"
    if saved == "xlsx":
        frame.to_excel(edited, index=False)
    else:
        semicolons = saved == "semicolons"
        frame.sample(frac=1, random_state=0).to_csv(
            edited, index=False, sep=";" if semicolons else ",",
            encoding="cp1252" if semicolons else "utf-8-sig",
        )  # fmt: skip
    listed = [doubtful()[number] for number in DOUBTFUL]
    new = dict(zip(listed, ["good", "drop", None, "good"], strict=True))
    before = split_rows(text_recipe(path))
    expected = {
        name: [(text, new.get((text, label)) or label) for text, label in split
               if new.get((text, label)) != "drop"]
        for name, split in before.items()
    }  # fmt: skip
    recipe = text_recipe(path, relabel=str(edited))
    assert split_rows(recipe) == expected
    (sentence,) = [note for note in recipe.notes if "--relabel" in note]
    assert edited.name in sentence
    for name, split in before.items():
        count = sum(new.get(row) == "good" for row in split)
        assert (f"{count} {name} row" in sentence.partition("left out")[0]) == (count > 0)
    assert "left out 1" in sentence
    expected = {name: [row for row in split if row not in listed] for name, split in before.items()}
    assert split_rows(text_recipe(path, exclude=str(edited))) == expected


@pytest.mark.contract("C8")
def test_corrections_of_several_labels_and_of_numbers(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """Lists are JSON; numbers are text."""
    tags = [("a", "b"), ("b",), (), ("c", "a")]
    table = [(text, json.dumps(tags[n % 4])) for n, (text, _) in enumerate(doubtful())]
    path = write(tmp_path / "a.csv", table)
    frame = suspects_of(path, cli, bert)
    frame["new_label"] = ['["c"]', "", '["b", "a"]', ""]
    frame.to_csv(tmp_path / "edited.csv", index=False)
    recipe = text_recipe(path, relabel=str(tmp_path / "edited.csv"))
    labels = {
        text: {recipe.labels[number] for number in numbers_of_row}
        for split in recipe.splits.values()
        for text, numbers_of_row in zip(split["text"], split["label"], strict=True)
    }
    expected = {text: set(json.loads(cell)) for text, cell in table}
    expected |= {table[4][0]: {"c"}, table[51][0]: {"a", "b"}}
    assert labels == expected
    table = [(text, n / 7) for n, (text, _) in enumerate(doubtful())]
    path = write(tmp_path / "b.csv", table)
    (tmp_path / "suspects.csv").unlink()
    frame = suspects_of(path, cli, bert)
    frame["new_label"] = ["-3.5", "drop", "", ""]
    frame.to_csv(tmp_path / "edited.csv", index=False)
    recipe = text_recipe(path, relabel=str(tmp_path / "edited.csv"))
    targets = {
        text: label
        for split in recipe.splits.values()
        for text, label in zip(split["text"], split["label"], strict=True)
    }
    expected_numbers = dict(table) | {table[4][0]: -3.5}
    del expected_numbers[table[50][0]]
    assert targets == pytest.approx(expected_numbers, abs=1e-5)


@pytest.mark.contract("C8", "E9")
@pytest.mark.parametrize(
    ("column", "value", "fragments"),
    [
        ("new_label", "", ["'new_label'"]),
        ("new_label", "god", ["line 3", "'god'", "'good'"]),
        ("label", "god", ["line 3", "'god'"]),
        ("digest", "", ["line 3", "'digest'"]),
        ("digest", "x0", ["line 3"]),
        ("text", "of line 2", ["line 3", "'text'"]),
    ],
)
def test_a_file_of_corrections_that_does_not_fit_is_refused_with_its_line(
    column: str,
    value: str,
    fragments: list[str],
    cli: Callable[..., Any],
    tmp_path: Path,
    bert: Path,
) -> None:
    """Unknown labels, labels of another kind, and rows that are not in the data are refused."""
    path = write(tmp_path / "a.csv", doubtful())
    frame = suspects_of(path, cli, bert)
    frame.loc[1, "new_label"] = "good"
    frame.loc[1, column] = frame.loc[0, "text"] if value == "of line 2" else value
    edited = tmp_path / "edited.csv"
    frame.to_csv(edited, index=False)
    message = refusal(text_recipe(path, relabel=str(edited)))
    for fragment in ["--relabel", "edited.csv", *fragments]:
        assert fragment in message


def corrections_of(path: Path, lines: Sequence[Sequence[str]]) -> str:
    """Write corrections with `id`, as earlier releases did, and return the option."""
    head = ("split", "id", "text", "label", "new_label", "digest")
    table = [
        (split, "7", text, label, new, f"x{blake2b(text.encode(), digest_size=8).hexdigest()}")
        for split, text, label, new in lines
    ]
    return f'"{data.write_csv(path, head, table)}"'


TWICE = [("twice", "bad"), ("twice", "good"), ("twice", "good"), ("once", "bad")]
CASES = [("twice", "bad"), ("twice", "Bad"), ("once", "good")]
#: Labels of the training rows, test rows, corrections, and the corrected labels of test rows.
CORRECTED: list[tuple[Sequence[str], list[Row], list[Sequence[str]], list[str]]] = [
    (("bad", "good"), TWICE, [("twice", "bad", "good")], ["good", "good", "good", "bad"]),
    (("bad", "good"), TWICE, [("twice", "good", "bad")], ["bad", "bad", "bad", "bad"]),
    (("bad", "good"), TWICE, [("twice", "good", "drop")], ["bad", "bad"]),
    (
        ("bad", "Bad", "good"),
        CASES,
        [("twice", "Bad", "good"), ("once", "GOOD", "bad")],
        ["bad", "good", "bad"],
    ),
    *(
        (names, [("once", names[0])], [("once", names[0], cell)], [name])
        for names, cell, name in (
            (("pos", "neg", " neg"), " neg", " neg"),
            (("pos", "neg", " neg"), "neg", "neg"),
            (("pos", "neg", " neg"), "neg ", "neg"),
            ((" pos", " neg"), " neg", " neg"),
            (("pos", " drop"), " drop", " drop"),
        )
    ),
]


@pytest.mark.contract("C4", "C8")
@pytest.mark.parametrize(("names", "test", "lines", "expected"), CORRECTED)
def test_a_correction_is_of_the_rows_with_its_content_and_label(
    names: Sequence[str],
    test: list[Row],
    lines: list[Sequence[str]],
    expected: list[str],
    tmp_path: Path,
) -> None:
    """Contradicting rows are corrected one by one, equal rows together.

    Labels are as they are written, with their blanks; a spreadsheet that changed the case is
    understood where one fits.
    """
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.csv", rows(60, names))
    write(tmp_path / "data" / "test.csv", test)
    option = corrections_of(tmp_path / "edited, by hand.csv", [("test", *line) for line in lines])
    splits = split_rows(text_recipe(tmp_path / "data", relabel=option))
    assert [row[1] for row in splits["test"]] == expected


@pytest.mark.contract("C8")
def test_suspects_are_the_rows_that_were_read(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """They are right if `--drop_invalid` has dropped rows before them."""
    path = write(tmp_path / "a.csv", [("no label", ""), *doubtful()])
    frame = suspects_of(path, cli, bert, drop_invalid="true")
    assert [*zip(frame["text"], frame["label"], strict=True)] == [
        doubtful()[number] for number in DOUBTFUL
    ]


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("lines", "fragments"),
    [
        ([("test", "twice", "", "good")], ["line 2", "'label'"]),
        ([("test", "once", "bad", "good"), ("test", "once", "bad", "drop")], ["lines 2, 3"]),
        ([("test", "twice", "good", "bad"), ("test", "twice", "good", "")], ["lines 2, 3"]),
        ([("train", "once", "bad", "good"), ("test", "once", "bad", "x")], ["line 2", "line 3"]),
    ],
    ids=["several labels", "two labels", "one of two", "two mistakes"],
)
def test_an_ambiguous_correction_is_refused(
    lines: Sequence[Sequence[str]], fragments: list[str], tmp_path: Path
) -> None:
    """The message has its lines and all mistakes at once."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.csv", rows(40))
    write(tmp_path / "data" / "test.csv", TWICE)
    option = corrections_of(tmp_path / "edited.csv", lines)
    message = refusal(text_recipe(tmp_path / "data", relabel=option))
    for fragment in ["--relabel", "edited.csv", *fragments]:
        assert fragment in message


@pytest.mark.contract("C8", "E8")
def test_suspects_have_the_columns_of_the_user(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """They keep names that the toolkit writes, too; the file can still be applied."""
    table = [(*row, f"part {n % 3}", n, f"why {n}") for n, row in enumerate(doubtful())]
    path = write(tmp_path / "a.csv", table, (*HEAD, "split", "id", "why"))
    frame = suspects_of(path, cli, bert)
    assert list(frame["id"]) == [str(number) for number in DOUBTFUL]
    assert list(frame["why"]) == [f"why {number}" for number in DOUBTFUL]
    assert list(frame["split"]) == [f"part {number % 3}" for number in DOUBTFUL]
    frame["new_label"] = ["drop", "", "", ""]
    frame.to_csv(tmp_path / "edited.csv", index=False)
    lost = {row[:2] for row in table} - set(
        all_rows(text_recipe(path, relabel=str(tmp_path / "edited.csv")))
    )
    assert lost == {table[4][:2]}


def assert_not_replaced(path: Path, cli: Callable[..., Any], bert: Path) -> None:
    """Assert that `check` refuses to replace `edited.csv` and the data, and leaves them."""
    for file in (path.with_name("edited.csv"), path):
        content = file.read_bytes()
        result = cli("check", "text", *flags(dataset=path, model=bert, suspects=file))
        assert (result.status, file.name in result.output) == (2, True)
        assert file.read_bytes() == content


@pytest.mark.contract("C8")
def test_suspects_do_not_replace_a_file_that_was_edited(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """Nor do they replace a file that is not a list of suspects."""
    path = write(tmp_path / "a.csv", doubtful())
    frame = suspects_of(path, cli, bert)
    frame.loc[1, "new_label"] = "good"
    frame.to_csv(tmp_path / "edited.csv", index=False)
    assert_not_replaced(path, cli, bert)


@pytest.mark.contract("C8", "E8")
def test_a_column_of_the_user_called_new_label_is_no_edit(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """Only our column, then `model_new_label`, corrects rows and protects an edited file."""
    table = [(*row, "bad") for row in doubtful()]
    path = write(tmp_path / "a.csv", table, (*HEAD, "new_label"))
    frame = suspects_of(path, cli, bert)
    assert list(frame["new_label"]) == ["bad"] * len(DOUBTFUL)
    frame = suspects_of(path, cli, bert)  # not edited, so it is replaced
    edited = tmp_path / "edited.csv"
    frame.to_csv(edited, index=False)
    assert "'new_label'" in refusal(text_recipe(path, relabel=str(edited)))
    frame.assign(model_new_label=["drop", "", "", ""], new_label="").to_csv(edited, index=False)
    lost = {row[:2] for row in table} - set(all_rows(text_recipe(path, relabel=str(edited))))
    assert lost == {table[4][:2]}
    assert_not_replaced(path, cli, bert)


# ---- C12: rows and classes at scale --------------------------------------------------------------


@pytest.mark.contract("C12")
def test_two_thousand_classes_keep_their_rows_and_shares(tmp_path: Path) -> None:
    """Of ten rows of each class, the test set has two and validation at most one."""
    classes = [f"class {number}" for number in range(2000)]
    table = rows(20_000, classes)
    recipe = text_recipe(write(tmp_path / "a.csv", table), task="single_label")
    splits = split_rows(recipe)
    assert sorted(recipe.labels) == sorted(classes)
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 14_400, "validation": 1600, "test": 4000
    }  # fmt: skip
    assert all_rows(recipe) == sorted(table)
    counts = {name: Counter(label for _, label in split) for name, split in splits.items()}
    assert set(counts["test"].values()) == {2}
    assert set(counts["validation"].values()) == {1}
    assert set(counts["train"].values()) == {7, 8}


@pytest.mark.contract("C12")
@pytest.mark.slow
def test_a_million_rows_are_read_and_split(tmp_path: Path) -> None:
    """No row is lost, and each class keeps its share."""
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("text,label\n")
        file.writelines(f"text {n} of it,class {n % 100}\n" for n in range(1_000_000))
    recipe = text_recipe(path)
    assert recipe.splits.num_rows == {"train": 790_000, "validation": 10_000, "test": 200_000}
    for split in recipe.splits.values():
        assert set(np.bincount(split.with_format("numpy")["label"][:])) == {len(split) // 100}
