"""Data sets of several files: shards, patterns, directories, folders of texts, spreadsheets."""

import datetime
import os
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

import finetune
from finetune.data import bounds, columnar, files, listing, positions, sources
from finetune.data.layout import ReadOptions
from finetune.errors import UserError
from finetune.runtime import hub

TEXTS = ["a fine film", "a dull one", "fine again", "dull again", "neither", "both"]
LABELS = ["good", "bad", "good", "bad", "bad", "good"]
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS})


def texts(dataset: str, **options: Any) -> dict[str, list[str]]:
    return {split: rows["text"][:] for split, rows in sources.read(dataset, **options).items()}


def shards(directory: Path, split: str = "train", suffix: str = "csv", of: int = 3) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(of):
        part = FRAME.iloc[number * 2 : number * 2 + 2]
        path = directory / f"{split}-{number:05}-of-{of:05}.{suffix}"
        if suffix == "parquet":
            part.to_parquet(path, index=False)
        else:
            part.to_csv(path, index=False)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_shards_are_read_in_their_order(suffix: str, tmp_path: Path) -> None:
    shards(tmp_path, suffix=suffix)
    shards(tmp_path, "test", suffix, of=1)
    expected = {"train": TEXTS, "test": TEXTS[:2]}
    assert texts(str(tmp_path)) == expected
    assert texts(str(tmp_path / f"*.{suffix}")) == expected
    assert texts(str(tmp_path / "train-*")) == {"train": TEXTS}
    found = sources.read(str(tmp_path))["train"]
    assert found["id"][:] == list(range(6))
    noun, first = ("line", 2) if suffix == "csv" else ("row", 1)
    assert positions.places(str(tmp_path), "train", [0, 2, 3, 5]) == (
        f"train-00000-of-00003.{suffix} {noun} {first}; "
        f"train-00001-of-00003.{suffix} {noun}s {first}, {first + 1}; "
        f"train-00002-of-00003.{suffix} {noun} {first + 1}"
    )


@pytest.mark.parametrize("layout", ["files", "pattern", "folders", "texts", "saved"])
def test_a_split_that_is_not_wanted_is_not_read(layout: str, tmp_path: Path) -> None:
    dataset, hidden = str(tmp_path), FRAME.assign(label="-1")
    if layout in ("files", "pattern"):
        FRAME.to_csv(tmp_path / "train.csv", index=False)
        hidden.to_csv(tmp_path / "test.csv", index=False)
        dataset += "/*.csv" * (layout == "pattern")
    elif layout == "folders":
        shards(tmp_path / "train")
        shards(tmp_path / "test")
    elif layout == "texts":
        for split, label in (("train", "good"), ("train", "bad"), ("testing", "unknown")):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "a.txt").write_text(f"{split} {label}")
    else:
        both = {name: Dataset.from_pandas(FRAME) for name in ("train", "test")}
        DatasetDict(both).save_to_disk(dataset)
    told: list[str] = []
    found = texts(dataset, names={"test": "none"}, note=told.append)
    expected = TEXTS if layout != "texts" else ["train bad", "train good"]
    assert found == {"train": expected}
    if layout in ("files", "pattern"):
        assert told == [
            "not read: test.csv (expected train and validation: --dataset_splits test=none)"
        ]
    assert positions.each_place(dataset, "train", [0], names={"test": "none"})


def test_hidden_labels_of_a_test_set_say_how_to_do_without(tmp_path: Path, tiny_model: str) -> None:
    rows = pd.DataFrame({"text": [f"{TEXTS[n % 6]} {n}" for n in range(60)], "label": [0, 1] * 30})
    rows.to_csv(tmp_path / "train.csv", index=False)
    rows[:5].assign(label=-1).to_csv(tmp_path / "test.csv", index=False)
    way = "; if its labels are hidden, --dataset_splits test=none does not read the split, and spl"
    options: dict[str, Any] = {"model": tiny_model, "max_length": 128}

    def refusals(**others: Any) -> list[str]:
        found = finetune.check("text", **options, **others).findings
        return [each.message for each in found if each.severity == "error"]

    (message,) = refusals(dataset=str(tmp_path))
    assert "'-1', first in line 2" in message
    assert way in message
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    columns = {"train": rows, "test": rows[:5].assign(label=-1)}
    splits = {
        name: Dataset.from_dict(each.to_dict("list"), features) for name, each in columns.items()
    }
    (message,) = refusals(dataset=splits)
    assert message.startswith("5 of 5 test rows without a label: positions 0, 1")
    assert way in message
    for dataset in (str(tmp_path), splits):
        found = finetune.check("text", dataset=dataset, dataset_splits="test=none", **options)
        assert {name: each.rows for name, each in found.splits.items()} == {
            "train": 43,
            "validation": 5,
            "test": 12,
        }
    (message,) = refusals(dataset=str(tmp_path), dataset_splits="train=none")
    assert "expected train=NAME" in message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([0, 1, 2]), True),
        (pa.array([5, 3, 4]), True),
        (pa.array([0, 1, 1]), False),
        (pa.array([-1, 0, 1]), False),
        (pa.array([0, 1, None]), False),
        (pa.array([0.0, 1.0, 2.0]), True),
        (pa.array([0.0, 1.5, 2.0]), False),
        (pa.array([0.0, float("nan"), 2.0]), False),
        (pa.array([0.0, 1.0, float("inf")]), False),
        (pa.array(["0", "1", "10"]), True),
        (pa.array(["0.0", "2.0", "1"]), True),
        (pa.array(["1.0", "1"]), False),
        (pa.array(["a", "1"]), False),
        (pa.array(["", "1"]), False),
        (pa.array([True, False]), False),
    ],
)
def test_a_column_that_numbers_rows_is_told_from_others(values: pa.Array, expected: bool) -> None:
    table = pa.table({"Unnamed: 0": values, "text": pa.array(["t"] * len(values))})
    rows = sources._without_index("a.csv", Dataset(table), (notes := list[str]()).append)
    assert (rows.column_names == ["text"]) is bool(notes) is expected


def test_part_ten_comes_after_part_two(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"part{number}.csv").write_text(f"text,label\nrow {number},x\n")
    assert texts(str(tmp_path / "part*.csv"))["train"] == [f"row {n}" for n in range(12)]
    assert not hub.names_repository(str(Path("data") / "part*"))


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "train-00001-of-00003.csv").unlink()
    with pytest.raises(UserError, match=r"'train' has 2 of 3 parts.*rename them without -of-00003"):
        sources.read(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "dataset", "told"),
    [
        (["train_1", "train_3"], "", "train_1.csv to train_3.csv: no part 2; is a file missing?"),
        (["train/b1", "train/b2", "train/b5", "train/b6", "train/b7"], "", "b7.csv: no parts 3, 4"),
        (["a-00000-of-00004", "a-00002-of-00004"], "a-*", "00002-of-00004.csv: no parts 1, 3; is"),
        (["a-1-of-2", "a-2-of-2"], "a-*", ""),
        (["tickets-1003", "tickets-2044"], "*", ""),
        (["2024-01", "2024-02", "other"], "*", ""),
        (["log-2024-01-02", "log-2024-01-03", "log-2024-01-05"], "*", ""),
        (["train_2", "train_3"], "", ""),
        (["export_1704067200000", "export_1706745600000"], "*", ""),  # milliseconds, not parts
    ],
)
def test_a_gap_in_the_numbers_of_files_is_told(
    names: Sequence[str], dataset: str, told: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        FRAME.to_csv(tmp_path / f"{name}.csv", index=False)
    sources.read(str(tmp_path / dataset), note=notes.append)
    assert len(notes) == bool(told)
    assert told in " ".join(notes)


def test_folders_of_splits_and_of_the_hub(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        (tmp_path / "a" / split).mkdir(parents=True)
        FRAME.to_csv(tmp_path / "a" / split / "part-1.csv", index=False)
        FRAME.to_csv(tmp_path / "a" / split / "part-2.csv", index=False)
    assert texts(str(tmp_path / "a")) == dict.fromkeys(("train", "validation", "test"), TEXTS * 2)
    shards(tmp_path / "b" / "data", suffix="parquet")
    assert texts(str(tmp_path / "b")) == {"train": TEXTS}


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    FRAME.rename(columns={"text": "body"}).to_csv(tmp_path / "b.csv", index=False)
    message = r"b\.csv lacks a column 'text' that \S*a\.csv has and has a column 'body' that \S*a\."
    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path / "*.csv"))
    FRAME.assign(label=1).to_json(tmp_path / "c.jsonl", orient="records", lines=True)
    FRAME.to_json(tmp_path / "d.jsonl", orient="records", lines=True)
    message = r"'label' is int64 in .*c\.jsonl and string in .*d\.jsonl"
    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path / "*.jsonl"))


def test_types_that_have_one_in_common_are_read_as_that(tmp_path: Path) -> None:
    one, two = tmp_path / "a-1.parquet", tmp_path / "a-2.parquet"
    FRAME.assign(n=1, empty=None).to_parquet(one)
    other = FRAME.assign(n=[None, 0.5, 1, 1, 1, 1], empty="x")
    other.astype({"label": "category"}).to_parquet(two)
    FRAME.assign(n=2, empty="y").to_json(tmp_path / "a-3.jsonl", orient="records", lines=True)
    found = sources.read(str(tmp_path / "a-*"))["train"]
    assert found["n"][:] == [1.0] * 6 + [None, 0.5, 1, 1, 1, 1] + [2.0] * 6
    assert found["empty"][:] == [None] * 6 + ["x"] * 6 + ["y"] * 6
    assert found["label"][:] == LABELS * 3
    assert {str(each.dtype) for each in found.features.values()} == {"string", "float64", "int64"}


def test_classes_of_other_numbers_are_refused(tmp_path: Path) -> None:
    for number, names in enumerate((["bad", "good"], ["good", "bad"])):
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        rows = Dataset.from_dict({"text": TEXTS[:2], "label": [0, 1]}, features)
        rows.to_parquet(tmp_path / f"train-{number}.parquet")
    message = (
        r"'label' is a class of bad, good in .*0\.parquet and a class of good, bad in .*1\.par"
    )
    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path))


def test_parts_of_two_exports_are_refused(tmp_path: Path) -> None:
    shards(tmp_path, of=2)
    shards(tmp_path, of=3)
    with pytest.raises(UserError, match="parts of 'train' are of two exports, of 2 and 3 parts"):
        sources.read(str(tmp_path))


def test_columns_in_another_order_are_the_same(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    FRAME[["label", "text"]].to_csv(tmp_path / "b.csv", index=False)
    assert texts(str(tmp_path / "*.csv")) == {"train": TEXTS * 2}


def test_what_is_unusual_in_many_files_is_told_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        FRAME.to_csv(tmp_path / f"{name}.csv", index=False, sep=";")
    notes: list[str] = []
    sources.read(str(tmp_path / "*.csv"), note=notes.append)
    assert notes == [
        "a.csv: read as fields separated by semicolons (--csv_separator) (and 2 more files)"
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["2021.csv", "2022.csv"], r"to read several files as one, --dataset '.*\*\.csv'"),
        (["tickets.csv"], r"for its rows, --dataset .*tickets\.csv"),
        (["my tickets.csv"], r"for its rows, --dataset '.*my tickets\.csv'"),
        (["it's 1.csv", "a.csv"], r"to read several files as one, --dataset '.*\*\.csv'"),
        (["train.csv", "train-1.csv"], r"one file for 'train', found train-1\.csv and train\.csv"),
        (["train.csv", "dev.csv"], r"or --dataset_splits validation=dev"),
    ],
)
def test_directories_without_known_names(
    names: Sequence[str], message: str, tmp_path: Path
) -> None:
    for name in names:
        FRAME.to_csv(tmp_path / name, index=False)
    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path))


@pytest.mark.parametrize("name", ["val/a.csv", "Test/a.csv", "dev-00000-of-00001.csv", "dev_1.csv"])
@pytest.mark.parametrize("train", ["train.csv", "train/a.csv"])
def test_what_was_probably_a_split_is_refused(train: str, name: str, tmp_path: Path) -> None:
    for each in (train, name):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        FRAME.to_csv(tmp_path / each, index=False)
    with pytest.raises(UserError, match=rf"{name.partition('/')[0]} would not be read; expected"):
        sources.read(str(tmp_path))


def test_a_folder_that_is_not_read_is_told(tmp_path: Path) -> None:
    for each in ("train/a.csv", "more/b.csv"):
        (tmp_path / each).parent.mkdir()
        FRAME.to_csv(tmp_path / each, index=False)
    notes: list[str] = []
    assert texts(str(tmp_path), note=notes.append) == {"train": TEXTS}
    assert notes == ["not read: b.csv (expected train, validation and test)"]


def test_what_lies_below_the_folders_that_are_read_is_told(tmp_path: Path) -> None:
    for each in ("train/a.csv", "train/more/b.csv"):
        (tmp_path / each).parent.mkdir()
        FRAME.to_csv(tmp_path / each, index=False)
    (tmp_path / "train" / "b.txt").write_text("a")
    notes: list[str] = []
    assert texts(str(tmp_path), note=notes.append) == {"train": TEXTS}
    assert notes == ["not read: train/b.txt, train/more/ (expected train, validation and test)"]
    for each in ("neg/1.txt", "pos/1.txt", "pos/more/2.txt", "mid/1.md"):
        (path := tmp_path / "texts" / each).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a text of {each}")
    notes.clear()
    assert len(texts(str(tmp_path / "texts"), note=notes.append)["train"]) == 2
    assert notes == ["not read: mid/, pos/more/ (expected .txt in folders)"]


def test_a_file_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """As archives unpack one over another."""
    for label in ("x", "y"):
        FRAME.assign(label=label).to_csv(path := tmp_path / "a.csv", index=False)
        os.utime(path, (0, 0))
        assert {*sources.read(str(path))["train"]["label"]} == {label}


def test_a_pattern_that_names_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--dataset '.*\*\.csv': no file has such a name"):
        sources.read(str(tmp_path / "*.csv"))


def test_splits_of_other_names(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "fit.csv", index=False)
    FRAME[:2].to_csv(tmp_path / "heldout.csv", index=False)
    found = texts(str(tmp_path), names={"train": "fit", "test": "heldout"})
    assert found == {"train": TEXTS, "test": TEXTS[:2]}
    with pytest.raises(UserError, match=r"test=held: no such file; did you mean 'heldout'"):
        sources.read(str(tmp_path), names={"train": "fit", "test": "held"})
    with pytest.raises(UserError, match="is a single file"):
        sources.read(str(tmp_path / "fit.csv"), names={"test": "heldout"})


def test_texts_in_folders_of_their_classes(tmp_path: Path) -> None:
    for split, several in (("train", range(4)), ("test", range(4, 6))):
        for number in several:
            path = tmp_path / split / LABELS[number] / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                f"{TEXTS[number]} å café\n".encode("cp1252" if number == 1 else "utf-8")
            )
    found = sources.read(str(tmp_path))
    assert found["train"]["label"][:] == ["bad", "bad", "good", "good"]
    assert found["train"]["text"][:] == [f"{TEXTS[n]} å café" for n in (1, 3, 0, 2)]
    assert found["test"]["label"][:] == ["bad", "good"]
    place = positions.places(str(tmp_path), "train", [1])
    assert place == str(tmp_path / "train" / "bad" / "3.txt")
    assert texts(str(tmp_path / "train"))["train"] == found["train"]["text"][:]

    (tmp_path / "train" / "good" / "b.md").write_text("a")
    (tmp_path / "train" / "loose.txt").write_text("a")
    notes: list[str] = []
    sources.read(str(tmp_path), note=notes.append)
    assert notes == ["not read: train/loose.txt, train/good/b.md (expected .txt in folders)"]
    (tmp_path / "dev" / "bad").mkdir(parents=True)
    (tmp_path / "dev" / "bad" / "1.txt").write_text("a")
    with pytest.raises(UserError, match=r"dev would not be read; .* --dataset_splits valid.*=dev"):
        sources.read(str(tmp_path))
    found = sources.read(str(tmp_path), names={"validation": "dev"})
    assert found["validation"]["text"][:] == ["a"]


def test_what_datasets_saved(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1, 0, 0, 1]}, features)
    DatasetDict({"train": rows, "unsupervised": rows}).save_to_disk(str(tmp_path / "a"))
    rows.save_to_disk(str(tmp_path / "b"))
    for name in ("a", "b"):
        found = sources.read(str(tmp_path / name))
        assert list(found) == ["train"]
        assert found["train"].features["label"] == features["label"]
    with pytest.raises(UserError, match=r"has no such split .*it has: train, unsupervised"):
        sources.read(str(tmp_path / "a"), names={"test": "heldout"})
    with pytest.raises(UserError, match=r"--encoding cp1252: .* not made of files of text"):
        sources.read(str(tmp_path / "a"), options=ReadOptions(encoding="cp1252"))


@pytest.mark.parametrize("order", [range(6), (3, 0, 5, 1, 4, 2)])
def test_a_column_that_numbers_the_rows_is_left_out(order: Sequence[int], tmp_path: Path) -> None:
    FRAME.iloc[list(order)].to_csv(tmp_path / "a.csv")
    notes: list[str] = []
    found = sources.read(str(tmp_path / "a.csv"), note=notes.append)["train"]
    assert found.column_names == ["text", "label", "id"]
    assert notes == ["a.csv: left out the first column 'Unnamed: 0', which only numbers the rows"]
    FRAME.set_index("text").to_csv(tmp_path / "b.csv", index_label="")
    assert sources.read(str(tmp_path / "b.csv"))["train"].column_names == [
        "Unnamed: 0",
        "label",
        "id",
    ]


def test_an_index_in_parquet_is_left_out(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.parquet", list[str]()
    FRAME.iloc[[3, 0, 5]].to_parquet(path)
    assert sources.read(str(path), note=notes.append)["train"].column_names == [*FRAME, "id"]
    assert notes == [
        "a.parquet: left out the column '__index_level_0__', which only numbers the rows"
    ]


def test_numbers_that_repeat_are_no_index(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",text\n1,a\n0,b\n1,c\n")
    assert sources.read(str(tmp_path / "a.csv"))["train"]["Unnamed: 0"][:] == ["1", "0", "1"]


def workbook(path: Path, sheets: dict[str, Sequence[Sequence[Any]]], hidden: str = "") -> Path:
    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
        if name == hidden:
            sheet.sheet_state = "hidden"
    book.save(path)
    return path


CELLS = [
    ("text", "label", "when", "share"),
    ("a fine\nfilm", 1, datetime.date(2024, 2, 3), 0.5),
    (),
    ("naïve café", True, datetime.datetime(2024, 2, 3, 4, 5), 12345678.0),
    (None, "x", None, None),
]


def test_a_spreadsheet_is_read_like_a_csv_of_it(tmp_path: Path) -> None:
    path = workbook(tmp_path / "Tickets.XLSX", {"Cover": [["only a title"]], "Data": CELLS})
    rows = sources.read(str(path))["train"]
    assert rows.remove_columns("id").to_list() == [
        {"text": "a fine\nfilm", "label": "1", "when": "2024-02-03", "share": "0.5"},
        {"text": "naïve café", "label": "TRUE", "when": "2024-02-03 04:05:00", "share": "12345678"},
        {"text": None, "label": "x", "when": None, "share": None},
    ]
    assert positions.places(str(path), "train", [0, 1, 2]) == "rows 2, 4, 5"


def test_the_sheet_is_said_and_can_be_named(tmp_path: Path) -> None:
    sheets = {"Old": CELLS, "Tickets": CELLS[:2], "Other": CELLS[:3]}
    path, notes = workbook(tmp_path / "a.xlsx", sheets, hidden="Old"), list[str]()
    assert len(sources.read(str(path), note=notes.append)["train"]) == 1
    assert notes == ["a.xlsx: read the sheet 'Tickets', not 'Other' (--sheet)"]
    assert len(sources.read(str(path), options=ReadOptions(sheet="Old"))["train"]) == 3
    with pytest.raises(
        UserError, match=r"--sheet tickts: .* no such sheet; did you mean 'Tickets'"
    ):
        sources.read(str(path), options=ReadOptions(sheet="tickts"))
    with pytest.raises(UserError, match=r"--sheet Old: .* is not a spreadsheet"):
        files.inspected(tmp_path / "a.csv", ReadOptions(sheet="Old"))


def test_spreadsheets_that_cannot_be_read(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", {"A": [("text", None), ("a", "lost")]})
    with pytest.raises(UserError, match=r"sheet 'A', row 2: 'lost' is in a column without a name"):
        sources.read(str(path))
    path = workbook(tmp_path / "b.xlsx", {"A": [("text", "text"), ("a", "b")]})
    with pytest.raises(UserError, match="two columns"):
        sources.read(str(path))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="damaged or no spreadsheet"):
        sources.read(str(path))
    with pytest.raises(UserError, match="holds no rows"):
        sources.read(str(workbook(tmp_path / "c.xlsx", {"A": [["text", "label"]]})))


def test_names_again_and_merged_cells_are_found_wherever_a_sheet_begins(tmp_path: Path) -> None:
    rows = [(None, "text", "label"), *((n, "a", "x") for n in range(3)), (None, "text", "label")]
    path = workbook(tmp_path / "index.xlsx", {"A": rows})
    with pytest.raises(UserError, match="row 5: the names of the columns again"):
        sources.read(str(path))
    path = workbook(tmp_path / "b.xlsx", {"A": [(None, *row[1:]) for row in rows[:4]]})
    book = openpyxl.load_workbook(path)
    book["A"].merge_cells("C3:C4")
    book.save(path)
    with pytest.raises(UserError, match=r"the cells C3:C4 are merged:"):
        sources.read(str(path))


def test_hidden_rows_of_a_sheet_are_read_and_told(tmp_path: Path) -> None:
    path, notes = workbook(tmp_path / "a.xlsx", {"A": CELLS, "B": CELLS}), list[str]()
    book = openpyxl.load_workbook(path)
    for row in (1, 2, 3, 5):  # the header, and an empty row, are no rows
        book["A"].row_dimensions[row].hidden = True
    book.save(path)
    assert len(sources.read(str(path), note=notes.append)["train"]) == 3
    assert notes == [
        "a.xlsx: read the sheet 'A', not 'B' (--sheet); read 2 hidden rows of the sheet 'A' too, "
        "as of a filter (rows 2, 5); to leave them out, copy the visible rows into another sheet "
        "and read that (--sheet)"
    ]
    sources.read(str(path), options=ReadOptions(sheet="B"), note=notes.append)
    assert len(notes) == 1


def test_merged_cells_and_formulas_without_a_value_are_refused_by_name(tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(25)]
    rows = [("text", *names, "label"), *(("a", *names, "x") for _ in range(4))]
    path = workbook(tmp_path / "a.xlsx", {"A": rows})
    book = openpyxl.load_workbook(path)
    book["A"].merge_cells("A2:B2")  # in a row
    book.save(path)
    assert len(sources.read(str(path))["train"]) == 4
    book["A"].merge_cells("AA2:AA3")
    book["A"].merge_cells("AA4:AA5")
    book.save(path)
    with pytest.raises(UserError, match=r"sheet 'A': the cells AA2:AA3 are merged \(and 1 more"):
        sources.read(str(path))
    rows = [("text", "label"), ("a", "x"), ("b", '=IF(A2="a","x","y")'), ("c", "=B3")]
    path = workbook(tmp_path / "b.xlsx", {"A": [["title"]], "B": rows})
    with pytest.raises(UserError, match=r"sheet 'B', cell B3: a formula without a value.*1 more"):
        sources.read(str(path))


@pytest.mark.parametrize(
    ("value", "attribute", "is_read"),
    [("0", "", True), ("0", ' fullCalcOnLoad="1"', False), ("2", ' fullCalcOnLoad="1"', True)],
)
def test_a_zero_that_a_program_wrote_for_whoever_opens_the_file_is_no_value(
    value: str, attribute: str, is_read: bool, tmp_path: Path
) -> None:
    """As XlsxWriter does; a zero that a spreadsheet program has computed is one."""
    made = workbook(tmp_path / "made.xlsx", {"A": [("text", "label"), ("a", 1), ("b", "=B2-1")]})
    path = tmp_path / "a.xlsx"
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name).decode()
            content = content.replace("<f>B2-1</f><v />", f"<f>B2-1</f><v>{value}</v>")
            content = content.replace(' fullCalcOnLoad="1"', attribute)
            new.writestr(name, content)
    if is_read:
        assert sources.read(str(path))["train"]["label"] == ["1", value]
    else:
        with pytest.raises(UserError, match="cell B3: a formula without a value"):
            sources.read(str(path))


@pytest.mark.trains
@pytest.mark.usefixtures("one_thread")
def test_a_spreadsheet_goes_all_the_way(tmp_path: Path, tiny_model: str) -> None:
    generator = random.Random(0)
    rows = [(f"{generator.choice(TEXTS)} number {n}", LABELS[n % 6]) for n in range(80)]
    path = workbook(tmp_path / "export.xlsx", {"Tickets": [("body", "queue"), *rows]})
    given = {"text_column": "body", "label_column": "queue"}
    run = finetune.train(
        "text",
        dataset=str(path),
        model=tiny_model,
        max_steps=2,
        output_dir=str(tmp_path / "run"),
        baseline=False,
        **given,
    )
    assert finetune.evaluate(run, path, **given).rows == 80
    done = finetune.predict_file(run, path, tmp_path / "out.csv", text_column="body")
    assert done.rows == 80
    assert finetune.check("text", dataset=str(path), model=tiny_model, **given).splits


def test_which_files_are_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("text,label\nx,y\n")
    assert not listing.is_pattern(str(tmp_path / "a[1].csv"))
    assert listing.is_pattern(str(tmp_path / "a?.csv"))
    assert texts(str(tmp_path / "a[1].csv")) == {"train": ["x"]}


def test_each_place_is_that_of_the_row_alone(tmp_path: Path) -> None:
    shards(tmp_path / "shards")
    (tmp_path / "one.csv").write_text("text,label\n" + '"a\nb",x\n' * 6)
    workbook(tmp_path / "a.xlsx", {"A": [("text", "label"), (), *(("a", "x") for _ in range(6))]})
    for number in range(6):
        path = tmp_path / "texts" / LABELS[number] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a")
    rows = [4, 0, 5, 1]
    for name in ("shards", "one.csv", "a.xlsx", "texts"):
        dataset = str(tmp_path / name)
        sources.read(dataset)
        alone = [positions.places(dataset, "train", [row]) for row in rows]
        assert positions.each_place(dataset, "train", rows) == alone
        assert len(set(alone)) == 4


def test_large_rows_of_parquet_are_read_few_at_once(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["short"] * 5000}).to_parquet(tmp_path / "small.parquet")
    noise = random.Random(0).randbytes
    pd.DataFrame({"image": [{"bytes": noise(20_000)} for _ in range(5000)]}).to_parquet(
        tmp_path / "large.parquet"
    )
    for name, expected in (("small", 16), ("large", 3)):
        with pq.ParquetFile(tmp_path / f"{name}.parquet") as file:
            assert columnar._tables_at_once(file.metadata, 1024) == expected
        ends = [end for _, end in columnar.parquet(tmp_path / f"{name}.parquet", 1024)]
        assert ends == [1024, 2048, 3072, 4096, 5000]


def test_of_a_row_group_of_many_texts_few_are_in_memory(tmp_path: Path) -> None:
    words = random.Random(0).choices(ascii_lowercase, k=2000)
    texts = [f"{number} " + "".join(words) for number in range(20_000)]  # 40 MB
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"text": texts}), path)
    del texts
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for table, _ in columnar.parquet(path, 1024):
        most = max(most, pa.total_allocated_bytes() - before)
        assert table["text"][0].as_py().startswith(f"{rows} ")
        rows += len(table)
    assert rows == 20_000
    assert most < 10 * 2**20


ALIKE = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}


@pytest.mark.parametrize(
    ("texts", "options", "stay"),
    [
        ([f"text {number}" for number in range(50)], {}, []),
        ([f"text {number}" for number in range(50)], {"use_dictionary": False}, []),
        # of this encoding a text is what differs from the one before
        ([f"text {number}" for number in range(50)], ALIKE, ["text"]),
        # a single one may be of a page, and not the dictionary
        (["the same"], {}, ["text"]),
        # 3,000 rows are 900 MB
        ([f"{number:300000}" for number in range(50)], {}, ["text"]),
    ],
)
def test_texts_that_may_be_far_larger_than_their_file_stay_dictionaries(
    texts: list[str], options: dict[str, Any], stay: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "texts.parquet"
    numbers = pa.array([row % len(texts) for row in range(3000)], pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(numbers, texts)})
    pq.write_table(table, path, store_schema=False, **options)
    opened, dictionaries = bounds.open_parquet(path, pq.read_metadata(path), 1024, [0])
    with opened:
        assert dictionaries == stay


def test_columns_of_parquet_share_what_may_be_unpacked_without_counting(tmp_path: Path) -> None:
    texts = [f"{number}" * 120_000 for number in range(3)]  # 123 MB of 1,024 rows
    numbers = pa.array([row % 3 for row in range(1024)], pa.int32())
    column = pa.DictionaryArray.from_arrays(numbers, texts)
    path = tmp_path / "several.parquet"
    pq.write_table(pa.table({name: column for name in "abcd"}), path, store_schema=False)
    opened, dictionaries = bounds.open_parquet(path, pq.read_metadata(path), 1024, [0])
    with opened:
        assert dictionaries == ["c", "d"]
